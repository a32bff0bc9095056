// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// A trap is a log that panics, while it is set, on the message about a resolv.conf without a server.
type trap struct {
	journal
	set atomic.Bool
}

// Write implements io.Writer.
func (t *trap) Write(p []byte) (int, error) {
	if t.set.Load() && strings.Contains(string(p), "no upstream in any resolv.conf") {
		panic("a trap")
	}
	return t.journal.Write(p)
}

// TestPanicInReload loads a configuration whose building panics: it is refused, and the next is taken.
func TestPanicInReload(t *testing.T) {
	t.Parallel()
	up := upstreamtest.New(upstreamtest.Zone(zoneOf(2)...))
	cfg := local(t, up.Listen(t))
	log := &trap{}
	a, _ := start(t, agent.Options{Config: &cfg, Log: log})
	path := filepath.Join(t.TempDir(), "resolv.conf")
	assert.NoError(t, os.WriteFile(path, nil, 0o600))
	more := cfg
	more.Forward = append(more.Forward[:1:1], config.DefaultRoute("example.com."))
	more.Forward[1].To = []config.Target{{Kind: config.ResolvConf, Path: path}}
	log.set.Store(true)
	if _, err := a.Reload(more, nil); err == nil || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("got %v, want it refused", err)
	}
	if !strings.Contains(log.String(), "recovered from a panic") {
		t.Errorf("the log does not say so:\n%s", log.String())
	}
	if _, series := page(t, a, "/metrics"); !strings.Contains(series, "\nnodecache_panics_total{where=\"config\"} 1\n") {
		t.Error("/metrics does not count it")
	}
	log.set.Store(false)
	if now, err := a.Reload(more, nil); err != nil || now.Generation != 2 || len(now.Config.Forward) != 2 {
		t.Errorf("generation %d, %v, want the next one applied", now.Generation, err)
	}
}
