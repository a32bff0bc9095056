// SPDX-License-Identifier: Apache-2.0

package static_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/static"
)

// TestBefore makes one Static after the other while the file is gone: what was read of it stays for as long as the file is
// in the configuration.
func TestBefore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "hosts")
	write(t, path, "192.0.2.1 a.test\n")
	cfg := static.Config{Files: []string{path}, TTL: 30 * time.Second}
	first := newStatic(t, cfg)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect := func(s *static.Static, name, want string) {
		t.Helper()
		if got := ask(t, s, name, dns.TypeA); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	cfg.Before, cfg.Templates = first, []static.Template{{Zone: "made.test.", Answer: parse(t, "{{ .Name }} 60 IN A 192.0.2.2")}}
	second := newStatic(t, cfg)
	if second.Hosts() != first.Hosts() {
		t.Error("other templates make other hosts")
	}
	expect(second, "a.test.", "NOERROR| a.test. 30 A 192.0.2.1")
	expect(second, "x.made.test.", "NOERROR| x.made.test. 60 A 192.0.2.2")
	if st := second.Stats(); st.Files[0].Reads != 1 || st.Files[0].Err != nil {
		t.Errorf("%+v, want one reading, of the first", st.Files[0])
	}

	cfg.Before, cfg.Names = second, []static.Host{{Name: "own.test", Addresses: addrs("192.0.2.3")}}
	third := newStatic(t, cfg)
	expect(third, "own.test.", "NOERROR| own.test. 30 A 192.0.2.3")
	expect(third, "a.test.", "NOERROR| a.test. 30 A 192.0.2.1")
	expect(second, "own.test.", "none")
	if st := third.Stats(); st.Files[0].Err == nil || st.Files[0].Names != 1 || st.Names != 2 {
		t.Errorf("%+v, want the file's name, and that it is gone", st)
	}

	cfg.Before, cfg.Files = third, []string{path + ".other"}
	expect(newStatic(t, cfg), "a.test.", "none")
	cfg.Before, cfg.Files = nil, []string{path}
	expect(newStatic(t, cfg), "a.test.", "none")
}

// A trap is a log that panics, while it is set, when it is told of lines that were left out.
type trap struct {
	slog.Handler
	set atomic.Bool
}

func newTrap() *trap { return &trap{Handler: slog.DiscardHandler} }

// Enabled implements [slog.Handler].
func (*trap) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler].
func (l *trap) Handle(_ context.Context, r slog.Record) error {
	if l.set.Load() && strings.HasPrefix(r.Message, "lines of a hosts file") {
		panic("a trap")
	}
	return nil
}

// TestDefectInFollowing has the making of a table panic while the file is followed: what was read before is answered, and
// the new is tried again.
func TestDefectInFollowing(t *testing.T) {
	t.Parallel()
	path, log := filepath.Join(t.TempDir(), "hosts"), newTrap()
	write(t, path, "192.0.2.1 a.test\n")
	s := newStatic(t, static.Config{Files: []string{path}, TTL: 30 * time.Second, Log: slog.New(log)})
	run(t, s)
	log.set.Store(true)
	write(t, path, "nonsense\n192.0.2.2 a.test\n")
	eventually(t, "a panic", func() bool { return s.Stats().Panics > 0 })
	if got := ask(t, s, "a.test.", dns.TypeA); got != "NOERROR| a.test. 30 A 192.0.2.1" {
		t.Errorf("after a panic: %s", got)
	}
	log.set.Store(false)
	eventually(t, "another try", func() bool { return ask(t, s, "a.test.", dns.TypeA) == "NOERROR| a.test. 30 A 192.0.2.2" })
}

// TestDefectInNew has it panic at the first reading. With hosts before, those stay in use; without, the names that are in
// no file are there, and the file is tried again.
func TestDefectInNew(t *testing.T) {
	t.Parallel()
	path, log := filepath.Join(t.TempDir(), "hosts"), newTrap()
	write(t, path, "nonsense\n192.0.2.1 a.test\n")
	cfg := static.Config{Files: []string{path}, TTL: 30 * time.Second, Log: slog.New(log)}
	before := newStatic(t, cfg)
	log.set.Store(true)
	cfg.Before, cfg.TTL = before, time.Minute
	if _, err := static.New(cfg); err == nil {
		t.Error("hosts that cannot be read take the place of those that could")
	}
	if got := before.Stats().Panics; got != 1 {
		t.Errorf("%d panics counted by those that stay, want that one", got)
	}
	cfg.Before, cfg.Names = nil, []static.Host{{Name: "own.test", Addresses: addrs("192.0.2.3")}}
	s := newStatic(t, cfg)
	if got := ask(t, s, "own.test.", dns.TypeA); got != "NOERROR| own.test. 60 A 192.0.2.3" || s.Stats().Panics != 1 {
		t.Errorf("%s, %d panics", got, s.Stats().Panics)
	}
	log.set.Store(false)
	run(t, s)
	eventually(t, "another try", func() bool { return ask(t, s, "a.test.", dns.TypeA) == "NOERROR| a.test. 60 A 192.0.2.1" })
}
