// SPDX-License-Identifier: Apache-2.0

package static

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Config is what a Static is made from.
type Config struct {
	Names     []Host        // one that is here is not looked for in files
	Files     []string      // paths of files in the format of hosts(5), followed by Run
	TTL       time.Duration // of the hosts' records, whole seconds
	NoReverse bool          // the addresses of hosts have no names
	Templates []Template    // the first that fits a question is taken
	Log       *slog.Logger  // nil: silent
}

// A Host is a name with its addresses.
type Host struct {
	Name      string // with or without the dot at its end
	Addresses []netip.Addr
}

// Static holds hosts and templates. It is safe for use by many goroutines.
type Static struct {
	cfg       Config
	ttl       uint32 // seconds
	files     []*file
	table     atomic.Pointer[table]
	templates []*answering
	memos     memos
	failures  atomic.Uint64

	mu     sync.Mutex // guards states
	states []FileStats
}

// New reads the files for the first time. A file that cannot be read has no names until
// it can be; it is in the log and in Stats.
func New(cfg Config) (*Static, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Static{cfg: cfg, ttl: uint32(cfg.TTL / time.Second)}
	for _, h := range cfg.Names {
		if _, ok := appendName(nil, h.Name); !ok {
			return nil, fmt.Errorf("making the hosts: %q is not a name", h.Name)
		}
	}
	for i, t := range cfg.Templates {
		a, err := newAnswering(t)
		if err != nil {
			return nil, fmt.Errorf("making template %d: %w", i, err)
		}
		s.templates = append(s.templates, a)
	}
	s.memos.init()
	for _, path := range cfg.Files {
		s.files = append(s.files, &file{path: path})
	}
	s.read(true)
	return s, nil
}

// A Verdict says what there is for a query.
type Verdict uint8

// The verdicts.
const (
	None     Verdict = iota // nothing: the query is somebody else's
	Answered                // the answer, which may be a denial
	Alias                   // the answer ends with the CNAME record of a name whose answer is to follow
	Failed                  // a template is for this query and made no answer of it
)

// A Result is what came of a query.
type Result struct {
	Verdict Verdict
	Target  []byte // with Alias: the name outside, canonical, in the answer that was appended
}

// Answer appends to dst the answer to q, a query of class IN: header with QR and AA,
// the question in canonical spelling, records, no OPT record. [wire.Ask.Reply] makes
// it the client's. With None and Failed dst is as it was. It keeps no reference to
// dst. For hosts, and for questions of templates that were asked a moment ago, it
// allocates nothing where dst has room.
func (s *Static) Answer(q *wire.Query, dst []byte) ([]byte, Result) {
	if t := s.table.Load(); t != nil {
		if out, ok := t.answer(q, s.ttl, dst); ok {
			return out, Result{Verdict: Answered}
		}
	}
	if len(s.templates) > 0 {
		return s.fromTemplates(q, dst)
	}
	return dst, Result{}
}

// Stats is what is held and what failed.
type Stats struct {
	Names     int         // of hosts
	Addresses int         // of hosts; names that share one count it each
	Templates int         // templates
	Failures  uint64      // questions of which a template made no answer, since the start
	Files     []FileStats // in the order of the configuration
}

// FileStats is the state of one file.
type FileStats struct {
	Path    string
	Names   int    // read
	Skipped int    // lines that are neither empty nor a comment, and could not be used
	Reads   uint64 // contents put to work, since the start
	Err     error  // why the file cannot be read now; nil: it can
}

// Stats may be called at any time.
func (s *Static) Stats() Stats {
	st := Stats{Templates: len(s.templates), Failures: s.failures.Load()}
	if t := s.table.Load(); t != nil {
		st.Names, st.Addresses = len(t.names), t.addresses
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Files = append(st.Files, s.states...)
	return st
}

// String names the task in logs.
func (s *Static) String() string { return "hosts files" }
