// SPDX-License-Identifier: Apache-2.0

package skydns

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Config configures a Source.
type Config struct {
	Prefix string   // prefix of all keys, with a slash at its end
	Zones  []string // names of the zones, lower-case and absolute
	Onward bool     // names in the zones without a record get the verdict None; false: they do not exist (NXDOMAIN)
}

// A Source answers for zones from the latest Records. It is safe for concurrent use.
type Source struct {
	prefix string
	zones  []zone // the longest first
	onward bool
	seed   maphash.Seed // hash seed for the slots of Records.recent

	records atomic.Pointer[Records] // nil: not read yet
	failed  atomic.Uint64           // see Stats.Failed
	unused  sync.Pool               // *answer values to be used again
}

// A zone is a name in several forms.
type zone struct {
	name string // absolute
	wire []byte // in wire form
	path string // see pathOf
}

// New returns a Source without records.
func New(cfg Config) (*Source, error) {
	s := &Source{prefix: cfg.Prefix, onward: cfg.Onward, seed: maphash.MakeSeed()}
	for _, name := range cfg.Zones {
		packed, err := wire.AppendName(nil, name)
		if err != nil {
			return nil, fmt.Errorf("reading the zone %q: %w", name, err)
		}
		s.zones = append(s.zones, zone{name, packed, pathOf(packed)})
	}
	slices.SortFunc(s.zones, func(a, b zone) int { return len(b.wire) - len(a.wire) })
	return s, nil
}

// NewRecords returns empty records for the zones of the source.
func (s *Source) NewRecords() *Records {
	return &Records{prefix: s.prefix, zones: s.zones, sizes: map[string]int{}, invalid: map[string]string{}}
}

// Use sets the records that later answers are built from.
func (s *Source) Use(r *Records) { s.records.Store(r) }

// Records returns the records in use, nil before the first call of Use.
func (s *Source) Records() *Records { return s.records.Load() }

// zoneOf returns the zone with the longest name that a canonical name in wire form is in; nil: it is in none.
func (s *Source) zoneOf(name []byte) *zone {
	for i := range s.zones {
		z := &s.zones[i]
		if !bytes.HasSuffix(name, z.wire) {
			continue
		}
		off := 0
		for off < len(name)-len(z.wire) {
			off += 1 + int(name[off])
		}
		if off == len(name)-len(z.wire) {
			return z
		}
	}
	return nil
}

// Has reports whether a canonical name in wire form is in one of the zones.
func (s *Source) Has(name []byte) bool { return s.zoneOf(name) != nil }

// Stats describe the records in use.
type Stats struct {
	Synced  bool   `json:"synced"`        // the records were read; before that, queries get SERVFAIL
	Records int    `json:"records"`       // valid records
	Invalid int    `json:"invalid"`       // values that are no records, and keys that are no names
	Why     string `json:"why,omitempty"` // key of the first invalid value, and what is wrong with it; empty: none
	Refused int    `json:"refused"`       // records that exceeded the memory bound
	Bytes   int    `json:"bytes"`         // approximate memory of the records and invalid values
	Failed  uint64 `json:"failed"`        // queries answered SERVFAIL, because they need too many records or an alias has no end
}

// Stats may be called at any time.
func (s *Source) Stats() Stats {
	st := Stats{Failed: s.failed.Load()}
	r := s.records.Load()
	if r == nil {
		return st
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	st.Synced, st.Records, st.Invalid, st.Refused, st.Bytes = true, len(r.list), len(r.invalid), r.refused, r.bytes
	first := ""
	for key := range r.invalid {
		if first == "" || key < first {
			first = key
		}
	}
	if first != "" {
		st.Why = fmt.Sprintf("%.255q: %s", first, r.invalid[first])
	}
	return st
}
