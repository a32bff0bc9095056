// SPDX-License-Identifier: Apache-2.0

package localdata_test

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/names/localdata"
)

// TestPredecessor replaces a Static while its file is gone. The content of the file stays as long as the file is configured.
func TestPredecessor(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "hosts")
	write(t, path, "192.0.2.1 a.test\n")
	cfg := localdata.Config{Files: []string{path}, TTL: 30 * time.Second}
	first := newLocalData(t, cfg)
	assert.NoError(t, os.Remove(path))
	expect := func(s *localdata.Data, name, want string) {
		t.Helper()
		assert.Equal(t, name, want, query(t, s, name, dns.TypeA))
	}
	cfg.Predecessor, cfg.Templates = first, []localdata.Template{{Zone: "made.test.", Answer: parse(t, "{{ .Name }} 60 IN A 192.0.2.2")}}
	second := newLocalData(t, cfg)
	if second.Hosts() != first.Hosts() {
		t.Error("a change of templates replaced the hosts")
	}
	expect(second, "a.test.", "NOERROR| a.test. 30 A 192.0.2.1")
	expect(second, "x.made.test.", "NOERROR| x.made.test. 60 A 192.0.2.2")
	if st := second.Stats(); st.Files[0].Reads != 1 || st.Files[0].LastError != "" {
		t.Errorf("%+v, want one read", st.Files[0])
	}

	cfg.Predecessor, cfg.Names = second, map[string][]netip.Addr{"own.test": addrs("192.0.2.3")}
	third := newLocalData(t, cfg)
	expect(third, "own.test.", "NOERROR| own.test. 30 A 192.0.2.3")
	expect(third, "a.test.", "NOERROR| a.test. 30 A 192.0.2.1")
	expect(second, "own.test.", "none")
	if st := third.Stats(); st.Files[0].LastError == "" || st.Files[0].Names != 1 || st.Names != 2 {
		t.Errorf("%+v, want the file's name and its error", st)
	}

	cfg.Predecessor, cfg.Files = third, []string{path + ".other"}
	expect(newLocalData(t, cfg), "a.test.", "none")
	cfg.Predecessor, cfg.Files = nil, []string{path}
	expect(newLocalData(t, cfg), "a.test.", "none")
}

// A panicLog panics on the message about skipped lines, while panics is set.
type panicLog struct {
	slog.Handler
	panics atomic.Bool
}

func newPanicLog() *panicLog { return &panicLog{Handler: slog.DiscardHandler} }

// Enabled implements [slog.Handler].
func (*panicLog) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler].
func (l *panicLog) Handle(_ context.Context, r slog.Record) error {
	if l.panics.Load() && strings.HasPrefix(r.Message, "hosts file lines skipped") {
		panic("by the test")
	}
	return nil
}

// TestPanicWhileFollowing panics while a changed file is loaded. The previous content is answered, and the load is
// retried.
func TestPanicWhileFollowing(t *testing.T) {
	t.Parallel()
	path, log := filepath.Join(t.TempDir(), "hosts"), newPanicLog()
	write(t, path, "192.0.2.1 a.test\n")
	s := newLocalData(t, localdata.Config{Files: []string{path}, TTL: 30 * time.Second, Log: slog.New(log)})
	run(t, s)
	log.panics.Store(true)
	write(t, path, "nonsense\n192.0.2.2 a.test\n")
	proctest.Eventually(t, time.Minute, "a panic", func() bool { return s.Stats().Panics > 0 })
	if got := query(t, s, "a.test.", dns.TypeA); got != "NOERROR| a.test. 30 A 192.0.2.1" {
		t.Errorf("after a panic: %s", got)
	}
	log.panics.Store(false)
	proctest.Eventually(t, time.Minute, "a retry", func() bool { return query(t, s, "a.test.", dns.TypeA) == "NOERROR| a.test. 30 A 192.0.2.2" })
}

// TestPanicInNew panics in the first load. A predecessor stays in use; without one the configured hosts are answered,
// and the load is retried.
func TestPanicInNew(t *testing.T) {
	t.Parallel()
	path, log := filepath.Join(t.TempDir(), "hosts"), newPanicLog()
	write(t, path, "nonsense\n192.0.2.1 a.test\n")
	cfg := localdata.Config{Files: []string{path}, TTL: 30 * time.Second, Log: slog.New(log)}
	before := newLocalData(t, cfg)
	log.panics.Store(true)
	cfg.Predecessor, cfg.TTL = before, time.Minute
	if _, err := localdata.New(cfg); err == nil {
		t.Error("New succeeded, want the error of the panic")
	}
	assert.Equal(t, "the predecessor counts panics", 1, before.Stats().Panics)
	cfg.Predecessor, cfg.Names = nil, map[string][]netip.Addr{"own.test": addrs("192.0.2.3")}
	s := newLocalData(t, cfg)
	if got := query(t, s, "own.test.", dns.TypeA); got != "NOERROR| own.test. 60 A 192.0.2.3" || s.Stats().Panics != 1 {
		t.Errorf("%s, %d panics", got, s.Stats().Panics)
	}
	log.panics.Store(false)
	run(t, s)
	proctest.Eventually(t, time.Minute, "a retry", func() bool { return query(t, s, "a.test.", dns.TypeA) == "NOERROR| a.test. 60 A 192.0.2.1" })
}
