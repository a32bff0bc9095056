// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// CacheFlushed is the key of the number of entries removed in the response of /cache/flush.
const CacheFlushed = "flushed"

// A CacheView is the response of /cache/get and /cache/top.
type CacheView struct {
	Entries []CacheEntry `json:"entries"`
	Kernel  []string     `json:"kernel,omitempty"` // the requested record types of the name that the kernel answers; only in /cache/get
}

// A CacheEntry is one entry of the cache.
type CacheEntry struct {
	Name    string   `json:"name"`
	Type    string   `json:"type"`             // "*": all types, because the name does not exist
	Flags   []string `json:"flags,omitempty"`  // "DO", "CD": of the queries that the entry answers; "outside": of the outside view
	Subnet  string   `json:"subnet,omitempty"` // client subnet of the entry, if its route stores answers by subnet
	State   string   `json:"state"`            // a cache.Freshness
	Rcode   string   `json:"rcode"`
	Age     int64    `json:"ageSeconds"`        // since it was stored
	Left    int64    `json:"leftSeconds"`       // until it expires; negative: since it expired
	Kept    bool     `json:"kept,omitempty"`    // by push since it was stored: it does not expire until a change is reported
	Hits    int      `json:"hits"`              // since it was stored; 65535: that many or more
	Bytes   int      `json:"bytes"`             // memory used
	Records []string `json:"records,omitempty"` // in presentation form, with remaining TTLs; only in /cache/get
}

// allTypes is the type of an NXDOMAIN entry.
const allTypes = "*"

// CachePages returns the handlers of the cache pages. current returns the cache in use; inKernel reports whether the kernel
// answers a question.
func CachePages(current func() *cache.Cache, inKernel func(name []byte, rrtype uint16) bool, log *slog.Logger) *admin.Cache {
	p := &cachePages{current, inKernel, log}
	return &admin.Cache{Get: p.get, Top: p.top, Flush: p.flush}
}

type cachePages struct {
	current  func() *cache.Cache
	inKernel func(name []byte, rrtype uint16) bool
	log      *slog.Logger
}

// get returns the entries of a name, of one type if rrtype is set.
func (p *cachePages) get(name, rrtype string) (any, error) {
	wireForm, err := parseName(name)
	if err != nil {
		return nil, err
	}
	var only uint16
	if rrtype != "" {
		if only, err = RecordType(rrtype); err != nil {
			return nil, err
		}
	}
	view := CacheView{Entries: []CacheEntry{}}
	types := map[uint16]bool{only: true}
	if only == 0 {
		types = map[uint16]bool{dns.TypeA: true, dns.TypeAAAA: true}
	}
	held := p.current().Inspect(wireForm, time.Now())
	for i := range held {
		if e := &held[i]; only == 0 || e.Type == only || e.Type == 0 {
			view.Entries = append(view.Entries, entryView(e))
			types[e.Type] = true
		}
	}
	for _, t := range slices.Sorted(maps.Keys(types)) {
		if p.inKernel(wireForm, t) {
			view.Kernel = append(view.Kernel, TypeName(t))
		}
	}
	return view, nil
}

// top returns the n entries with the most hits or bytes.
func (p *cachePages) top(n int, by string) (any, error) {
	top := p.current().Top(n, by == "size", time.Now())
	view := make([]CacheEntry, 0, len(top))
	for i := range top {
		view = append(view, entryView(&top[i]))
	}
	return CacheView{Entries: view}, nil
}

// flush removes the entries of a name, with zone set also those of all names below it.
func (p *cachePages) flush(name string, zone bool) (any, error) {
	wireForm, err := parseName(name)
	if err != nil {
		return nil, err
	}
	flushed := p.current().Flush(wireForm, zone)
	p.log.Info("cache flushed", "name", name, "zone", zone, "entries", flushed)
	return map[string]int{CacheFlushed: flushed}, nil
}

// parseName returns the canonical wire form of a name that a user typed.
func parseName(text string) ([]byte, error) {
	name, err := wire.AppendName(nil, text)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", text, err)
	}
	return name, nil
}

// RecordType parses a record type: a mnemonic in any case, or TYPE and a number (RFC 3597 section 5).
func RecordType(text string) (uint16, error) {
	upper := strings.ToUpper(text)
	if t, known := dns.StringToType[upper]; known {
		return t, nil
	}
	if number, ok := strings.CutPrefix(upper, "TYPE"); ok {
		if n, err := strconv.ParseUint(number, 10, 16); err == nil && n > 0 {
			return uint16(n), nil
		}
	}
	return 0, fmt.Errorf("%q: not a record type", text)
}

// entryView formats a cache entry.
func entryView(e *cache.Entry) CacheEntry {
	v := CacheEntry{
		Type: allTypes, Subnet: subnetText(e.Subnet), State: e.State.String(), Rcode: dns.RcodeToString[e.Rcode],
		Age: int64(e.Age / time.Second), Left: secondsLeft(e.Left), Kept: e.Vouched, Hits: e.Hits, Bytes: e.Size,
	}
	v.Name, _, _ = dns.UnpackDomainName(e.Name, 0)
	if e.Type != 0 {
		v.Type = dns.Type(e.Type).String()
	}
	if e.DO {
		v.Flags = append(v.Flags, "DO")
	}
	if e.CD {
		v.Flags = append(v.Flags, "CD")
	}
	if e.Outside {
		v.Flags = append(v.Flags, "outside")
	}
	var m dns.Msg
	if len(e.Msg) > 0 && m.Unpack(e.Msg) == nil {
		for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
			for _, rr := range section {
				v.Records = append(v.Records, strings.ReplaceAll(rr.String(), "\t", " "))
			}
		}
	}
	return v
}

// secondsLeft rounds up, like the TTLs of the records.
func secondsLeft(d time.Duration) int64 {
	if d > 0 {
		d += time.Second - 1
	}
	return int64(d / time.Second)
}

// subnetText formats the client subnet of option data (RFC 7871 section 6), "" for none.
func subnetText(data []byte) string {
	if len(data) < 4 {
		return ""
	}
	var addr netip.Addr
	switch binary.BigEndian.Uint16(data) {
	case 1:
		var a [4]byte
		copy(a[:], data[4:])
		addr = netip.AddrFrom4(a)
	case 2:
		var a [16]byte
		copy(a[:], data[4:])
		addr = netip.AddrFrom16(a)
	default:
		return "none"
	}
	return netip.PrefixFrom(addr, int(data[2])).String()
}
