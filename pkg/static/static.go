// SPDX-License-Identifier: Apache-2.0

package static

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Config is what a Static is made from.
type Config struct {
	Names     []Host        // one that is here is not looked for in files
	Files     []string      // paths of files in the format of hosts(5), followed by Hosts.Run
	TTL       time.Duration // of the hosts' records, whole seconds
	NoReverse bool          // the addresses of hosts have no names
	Templates []Template    // the first that fits a question is taken
	Before    *Static       // whose place it takes: hosts that are the same are not read anew; nil: none
	Log       *slog.Logger  // nil: silent
}

// A Host is a name with its addresses.
type Host struct {
	Name      string // with or without the dot at its end
	Addresses []netip.Addr
}

// Static answers from hosts and templates. It is safe for use by many goroutines.
type Static struct {
	log       *slog.Logger
	hosts     *Hosts
	templates []*answering
	memos     memos
	failures  atomic.Uint64
}

// New reads the files. One that cannot be read has the names that it had before, if it had any, until it can be; it is
// in the log and in Stats.
func New(cfg Config) (*Static, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Static{log: cfg.Log}
	for i, t := range cfg.Templates {
		a, err := newAnswering(t)
		if err != nil {
			return nil, fmt.Errorf("making template %d: %w", i, err)
		}
		s.templates = append(s.templates, a)
	}
	s.memos.init()
	var before *Hosts
	if cfg.Before != nil {
		before = cfg.Before.hosts
	}
	var err error
	hosts := hostsConfig{Names: cfg.Names, Files: cfg.Files, TTL: cfg.TTL, NoReverse: cfg.NoReverse}
	if s.hosts, err = newHosts(hosts, before, cfg.Log); err != nil {
		return nil, err
	}
	return s, nil
}

// Hosts follows the files. They may be those of the Static before.
func (s *Static) Hosts() *Hosts { return s.hosts }

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
// the question in canonical spelling, records, no OPT record. [wire.Question.Reply] makes
// it the client's. With None and Failed dst is as it was. It keeps no reference to
// dst. For hosts, and for questions of templates that were asked a moment ago, it
// allocates nothing where dst has room.
func (s *Static) Answer(q *wire.Query, dst []byte) ([]byte, Result) {
	if out, ok := s.hosts.table.Load().answer(q, s.hosts.ttl, dst); ok {
		return out, Result{Verdict: Answered}
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
	Panics    uint64      // defects that cut short the reading of files, since the start
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
	t := s.hosts.table.Load()
	return Stats{
		Names: len(t.names), Addresses: t.addresses, Templates: len(s.templates),
		Failures: s.failures.Load(), Files: s.hosts.fileStats(), Panics: s.hosts.panics.Load(),
	}
}
