// SPDX-License-Identifier: Apache-2.0

package localdata

import (
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Config configures a Data.
type Config struct {
	Names       map[string][]netip.Addr // addresses of names, with or without the trailing dot; they have precedence over files
	Files       []string                // paths of files in the format of hosts(5), watched by Hosts.Run
	TTL         time.Duration           // TTL of the hosts' records, whole seconds
	NoReverse   bool                    // do not answer PTR queries for the hosts' addresses
	Templates   []Template              // the first that matches a question answers it
	Changed     func()                  // called after names have changed while Hosts.Run runs; nil: no call
	Predecessor *Data                   // its hosts are reused if their configuration is the same; nil: none
	Log         *slog.Logger            // nil: silent
}

// Data answers from hosts and templates. It is safe for concurrent use.
type Data struct {
	log       *slog.Logger
	hosts     *Hosts
	templates []Template
	failures  atomic.Uint64 // see Stats

	// Recent answers of templates, one per slot. Evaluating a template costs as much as fifty cache hits.
	// A cached answer takes little more memory than maxCachedAnswer.
	seed    maphash.Seed
	answers [answerCacheSlots]atomic.Pointer[cachedAnswer]
}

// New compiles the templates and reads the files. A file that cannot be read keeps the content that the predecessor has of it; the
// error is logged and appears in Stats.
func New(cfg Config) (*Data, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d := &Data{log: cfg.Log, seed: maphash.MakeSeed(), templates: slices.Clone(cfg.Templates)}
	for i := range d.templates {
		if err := d.templates[i].compile(); err != nil {
			return nil, fmt.Errorf("compiling template %d: %w", i, err)
		}
	}
	var predecessor *Hosts
	if cfg.Predecessor != nil {
		predecessor = cfg.Predecessor.hosts
	}
	var err error
	if d.hosts, err = newHosts(cfg, predecessor); err != nil {
		return nil, err
	}
	return d, nil
}

// Hosts returns the task that watches the files. The predecessor may have the same one.
func (d *Data) Hosts() *Hosts { return d.hosts }

// A Verdict classifies the result for a query.
type Verdict uint8

// The verdicts.
const (
	None     Verdict = iota // neither hosts nor templates match
	Answered                // the answer is complete; it may be a denial
	Alias                   // the answer ends with a CNAME record to an external name, which the caller must resolve
	Failed                  // a template matches and failed
)

// Answer appends to dst the answer to q, a query of class IN: header with QR and AA, the question in canonical case, records, no OPT
// record. [wire.Question.Reply] turns it into the client's reply. With None and Failed it leaves dst unchanged. It keeps no reference
// to dst. With Alias, target is the canonical external name, within the appended answer. It does not allocate for hosts and for
// cached template answers if dst has room.
func (d *Data) Answer(q *wire.Query, dst []byte) (_ []byte, verdict Verdict, target []byte) {
	if out, ok := d.hosts.table.Load().answer(q, d.hosts.ttl, dst); ok {
		return out, Answered, nil
	}
	if len(d.templates) > 0 {
		return d.answerFromTemplates(q, dst)
	}
	return dst, None, nil
}

// AnswerHosts is Answer without templates, for the target of an alias. Only templates make aliases, so a chain of aliases ends. It returns
// false if the hosts have no answer to q.
func (d *Data) AnswerHosts(q *wire.Query, dst []byte) ([]byte, bool) {
	return d.hosts.table.Load().answer(q, d.hosts.ttl, dst)
}

// Leaves reports whether hosts have the name of q, but leave its type to templates and upstreams. The name exists, so the caller must
// turn their NXDOMAIN into NODATA.
func (d *Data) Leaves(q *wire.Query) bool {
	return d.hosts.table.Load().leaves(q)
}

// Rule returns what of the configuration decides about q: hosts.names, a hosts file with the line, such as /etc/hosts:12, or a template,
// such as templates[2]. It is empty if nothing does.
func (d *Data) Rule(q *wire.Query) string {
	t := d.hosts.table.Load()
	from, left, ok := t.originOf(q)
	if ok && !left {
		return d.hosts.origin(from)
	}
	if first := slices.IndexFunc(d.templates, func(a Template) bool { return a.covers(q) }); first >= 0 {
		if m := d.evaluated(q, first); m.verdict != None {
			return fmt.Sprintf("templates[%d]", m.template)
		}
	}
	if ok {
		return d.hosts.origin(from)
	}
	return ""
}

// Stats holds the sizes and error counters of a Data.
type Stats struct {
	Names     int         `json:"names"`     // number of hosts' names
	Addresses int         `json:"addresses"` // number of hosts' addresses; one counts for each of its names
	Templates int         `json:"templates"`
	Failures  uint64      `json:"failures"`        // queries whose template failed
	Files     []FileStats `json:"files,omitempty"` // in the order of the configuration
	Panics    uint64      `json:"-"`               // recovered panics while reading files
}

// FileStats is the state of one file.
type FileStats struct {
	Path      string `json:"path"`
	Names     int    `json:"names"`               // names read from the file, with repeated ones
	Skipped   int    `json:"skipped,omitempty"`   // lines that could not be used, except empty ones and comments
	Reads     uint64 `json:"reads"`               // contents loaded since the configuration of the hosts last changed
	LastError string `json:"lastError,omitempty"` // why the file cannot be read now; empty: it can be
}

// Stats may be called at any time.
func (d *Data) Stats() Stats {
	t := d.hosts.table.Load()
	return Stats{
		Names: len(t.names), Addresses: t.addresses, Templates: len(d.templates),
		Failures: d.failures.Load(), Files: d.hosts.fileStats(), Panics: d.hosts.panics.Load(),
	}
}
