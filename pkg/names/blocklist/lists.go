// SPDX-License-Identifier: Apache-2.0

package blocklist

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/filewatch"
	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	maxBytes    = 64 << 20  // memory of all lists; while one is loaded, its old content is held too
	maxFileSize = 256 << 20 // bytes read of one file
	maxLabel    = 64        // bytes of List.Name
)

// ttl is the TTL of addresses in answers, in seconds: a name that leaves the lists works again this long after.
const ttl = 10

// Config configures Lists.
type Config struct {
	Files       []string     // paths of the lists, watched by Lists.Run
	NoData      bool         // answer without records instead of NXDOMAIN
	Addresses   []netip.Addr // answer with these addresses instead of NXDOMAIN; other types get no records
	Predecessor *Lists       // lists of the same files are taken over; nil: none
	Changed     func()       // called after a list has changed while Run runs
	Log         *slog.Logger // nil: silent
}

// Lists are the block lists of a configuration. They are safe for concurrent use.
type Lists struct {
	cfg     Config // without Predecessor
	current atomic.Pointer[[]List]

	// Used by New, and after that only by Run.
	files    []*file
	outdated bool // lists were read, but a panic kept them out of current

	panics atomic.Uint64

	mu     sync.Mutex // guards states
	states []file     // copies of files after the last check
}

// A List is one file's rules.
type List struct {
	Name    string // base name of the file: printable ASCII without spaces, at most maxLabel bytes
	Reason  string // text of the Extended DNS Error of a reply; at most [wire.MaxEDEText] bytes
	rules   *rules
	replies *atomic.Uint64 // see Count
}

// A file is a list and the state of its file.
type file struct {
	FileStats

	changes filewatch.Changes
	rules   *rules // nil: not read yet
	replies *atomic.Uint64
	written time.Time // when the content in use was written; zero: there is none
	unread  string    // why the content found last is not in use; kept until the file changes
}

// New reads the files. A file that cannot be read keeps the content that the predecessor has of it; the error is logged and appears in
// Stats.
func New(cfg Config) (*Lists, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	predecessor := cfg.Predecessor
	cfg.Predecessor = nil
	l := &Lists{cfg: cfg, outdated: true}
	l.current.Store(new([]List))
	for _, path := range cfg.Files {
		l.files = append(l.files, predecessor.file(path))
	}
	err := l.guard().Do(context.Background(), func() error {
		l.check()
		return nil
	})
	if err != nil && predecessor != nil {
		predecessor.panics.Add(l.panics.Load()) // l is discarded, and its counters with it
		return nil, fmt.Errorf("reading the block lists: %w", err)
	}
	return l, nil
}

// file returns the file at path, with what l has of it. l may be nil.
func (l *Lists) file(path string) *file {
	if l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		for i := range l.states {
			if l.states[i].Path == path {
				f := l.states[i]
				if f.unread != "" { // there may be more room for it now
					f.changes = filewatch.Changes{}
				}
				return &f
			}
		}
	}
	return &file{FileStats: FileStats{Path: path}, replies: new(atomic.Uint64)}
}

// Run watches the files until ctx ends, and returns nil then. Run may be called once.
func (l *Lists) Run(ctx context.Context) error {
	check := func(bool) time.Duration {
		changed, again := l.check()
		if changed && l.cfg.Changed != nil {
			l.cfg.Changed()
		}
		return again
	}
	filewatch.Watch(ctx, filewatch.Config{
		Paths: l.cfg.Files, Check: check, Log: l.cfg.Log,
		OnPanic: func(panicked any) { _ = l.guard().Recovered(ctx, panicked) },
	})
	return nil
}

// String names the task in logs.
func (l *Lists) String() string { return "block lists" }

// guard recovers panics while files are read.
func (l *Lists) guard() panics.Guard {
	return panics.Guard{Where: "block", Log: l.cfg.Log, Count: &l.panics}
}

// check reads the files that have changed. It reports whether a list changed, and the time after which the caller must call it again, 0
// for none.
func (l *Lists) check() (changed bool, again time.Duration) {
	changed = l.outdated
	l.outdated = true // stays set if a panic ends this call
	for _, f := range l.files {
		before := f.LastError
		if f.reload(maxBytes - l.bytesBeside(f)) {
			changed = true
			l.cfg.Log.Info("block list loaded", "path", f.Path, "names", f.Names, "exceptions", f.Exceptions, "bytes", f.Bytes)
			if f.Skipped+f.Unsupported > 0 {
				l.cfg.Log.Warn("block list lines skipped", "path", f.Path, "invalid", f.Skipped, "unsupported", f.Unsupported, "first", f.FirstSkipped)
			}
		}
		if f.changes.Unsettled {
			again = filewatch.SettleTime
		}
		if f.LastError != "" && f.LastError != before {
			l.cfg.Log.Debug("block list unreadable, keeping its previous content", "path", f.Path, "names", f.Names, "err", f.LastError)
		}
	}
	if changed {
		l.publish()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.states = l.states[:0:0]
	for _, f := range l.files {
		l.states = append(l.states, *f)
	}
	l.outdated = false
	return changed, again
}

// bytesBeside returns the memory of the lists but f.
func (l *Lists) bytesBeside(f *file) (n int64) {
	for _, other := range l.files {
		if other != f {
			n += other.Bytes
		}
	}
	return n
}

// publish makes the lists that were read the current ones.
func (l *Lists) publish() {
	list := make([]List, 0, len(l.files))
	for _, f := range l.files {
		if f.rules != nil {
			name := label(f.Path)
			list = append(list, List{Name: name, Reason: "blocked by " + name, rules: f.rules, replies: f.replies})
		}
	}
	l.current.Store(&list)
}

// label returns the base name of a path as a word.
func label(path string) string {
	word := strings.Map(func(c rune) rune {
		if c <= ' ' || c > '~' {
			return '_'
		}
		return c
	}, filepath.Base(path))
	return word[:min(len(word), maxLabel)]
}

// reload reads the file if it has changed, and reports whether the list has new rules: at most limit bytes. It keeps the previous ones if
// the file is gone, unreadable, still being written, or has no line that can be used.
func (f *file) reload(limit int64) bool {
	due, err := f.changes.Due(f.Path, false)
	if err == nil && !due {
		f.LastError = f.unread
		return false
	}
	if err != nil {
		f.LastError = err.Error()
		return false
	}
	p, err := read(f.Path, limit)
	if err != nil {
		f.LastError = err.Error()
		if _, ok := errors.AsType[*contentError](err); ok {
			f.changes.Use(false, false) // the same content is not read again
			f.unread = f.LastError
		}
		return false
	}
	f.LastError, f.unread = "", ""
	if !f.changes.Use(p.names == 0, f.Names > 0) {
		return false
	}
	f.rules = p.rules
	f.Names, f.Exceptions, f.Skipped, f.Unsupported, f.FirstSkipped = p.names, p.exceptions, p.skipped, p.unsupported, p.firstBad
	f.Bytes = p.bytes()
	f.written = f.changes.ModTime()
	f.Reads++
	return true
}

// Check reads the list at path, and returns why it would not be used, or how many of its lines would not be.
func Check(path string) error {
	p, err := read(path, maxBytes)
	if content, ok := errors.AsType[*contentError](err); ok {
		return content.why
	}
	if err == nil && p.firstBad > 0 {
		err = fmt.Errorf("%d lines are not used, the first is line %d", p.skipped+p.unsupported, p.firstBad)
	}
	return err
}

// read reads a list.
func read(path string, limit int64) (*parser, error) {
	from, err := filewatch.Open(path, maxFileSize)
	if err != nil {
		return nil, err
	}
	defer func() { _ = from.Close() }() // read only
	p, err := parse(from, limit)
	if _, ok := errors.AsType[*fs.PathError](err); err != nil && !ok {
		return nil, &contentError{path, err}
	}
	return p, err
}

// A contentError says why the content of a file is not used. It is the same each time the content is read.
type contentError struct {
	path string
	why  error
}

func (e *contentError) Error() string { return e.path + ": " + e.why.Error() }
func (e *contentError) Unwrap() error { return e.why }

// A Rule is the rule of a list for a name.
type Rule struct {
	List      *List  // nil: no list has one
	Name      []byte // canonical name in wire form; it does not change
	Below     bool   // the rule is for the names below Name
	Exception bool   // the name is not blocked
}

// Blocks reports whether the name is blocked.
func (r *Rule) Blocks() bool { return r.List != nil && !r.Exception }

// AppendText appends the name of the rule as lists have it: a.example. or *.a.example.
func (r *Rule) AppendText(dst []byte) []byte {
	if r.Below {
		dst = append(dst, "*."...)
	}
	return wire.AppendText(dst, r.Name)
}

// Count counts a reply that the rule decided.
func (r *Rule) Count() { r.List.replies.Add(1) }

// Find returns the rule for a canonical name in wire form: an exception of any list, else the rule of the first list that blocks the name.
// It does not allocate.
func (l *Lists) Find(name []byte) (found Rule) {
	lists := *l.current.Load()
	for i := range lists {
		rule, kind := lists[i].rules.find(name)
		if kind&excepts == 0 && (kind == 0 || found.List != nil) {
			continue
		}
		found = Rule{List: &lists[i], Name: rule, Below: kind&below != 0, Exception: kind&excepts != 0}
		if found.Exception {
			break
		}
	}
	return found
}

// AppendAnswer appends the answer to a query of class IN for a blocked name, canonical and in wire form, and a type: header with QR, the
// question, records, no OPT record. [wire.Question.Reply] turns it into the client's reply.
func (l *Lists) AppendAnswer(dst, name []byte, rrtype uint16) []byte {
	start := len(dst)
	dst = append(append(dst, 0, 0, 0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0), name...)
	dst = append(dst, byte(rrtype>>8), byte(rrtype), 0, byte(wire.ClassIN))
	if len(l.cfg.Addresses) == 0 && !l.cfg.NoData {
		dst[start+3] = wire.RcodeNXDomain
		return dst
	}
	count := uint16(0)
	for _, addr := range l.cfg.Addresses {
		if rrtype != wire.TypeA && addr.Is4() || rrtype != wire.TypeAAAA && addr.Is6() {
			continue
		}
		bytes := addr.As16()
		data := bytes[:]
		if addr.Is4() {
			data = data[12:]
		}
		dst = append(dst, 0xc0, wire.HeaderLen, byte(rrtype>>8), byte(rrtype), 0, byte(wire.ClassIN), 0, 0, 0, ttl, 0, byte(len(data)))
		dst = append(dst, data...)
		count++
	}
	binary.BigEndian.PutUint16(dst[start+6:], count)
	return dst
}

// Stats are the sizes and counters of the lists.
type Stats struct {
	Names  int         `json:"names"` // of all lists
	Bytes  int64       `json:"bytes"` // memory of all lists
	Files  []FileStats `json:"files"` // in the order of the configuration
	Panics uint64      `json:"-"`     // recovered panics while reading files
}

// FileStats is the state of one list.
type FileStats struct {
	Path         string  `json:"path"`
	Names        int     `json:"names"`                  // different names, with or without an asterisk
	Exceptions   int     `json:"exceptions,omitempty"`   // exceptions, with repeated ones
	Skipped      int     `json:"skipped,omitempty"`      // lines that are not understood
	Unsupported  int     `json:"unsupported,omitempty"`  // records of RPZ that are not supported
	FirstSkipped int     `json:"firstSkipped,omitempty"` // number of the first line in Skipped, else in Unsupported, from 1
	Bytes        int64   `json:"bytes"`                  // memory
	Age          float64 `json:"ageSeconds"`             // since the file was written
	Replies      uint64  `json:"replies"`                // replies that this list decided
	Reads        uint64  `json:"reads"`                  // contents loaded
	LastError    string  `json:"lastError,omitempty"`    // why the file cannot be read now; empty: it can be
}

// Stats may be called at any time.
func (l *Lists) Stats(now time.Time) Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{Panics: l.panics.Load(), Files: make([]FileStats, 0, len(l.states))}
	for i := range l.states {
		f := l.states[i].FileStats
		f.Replies = l.states[i].replies.Load()
		if written := l.states[i].written; !written.IsZero() {
			f.Age = max(0, now.Sub(written)).Truncate(time.Second).Seconds()
		}
		s.Names += f.Names
		s.Bytes += f.Bytes
		s.Files = append(s.Files, f)
	}
	return s
}
