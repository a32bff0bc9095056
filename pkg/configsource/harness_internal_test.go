// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
)

// A harness is a source and an agent that applies its configurations, but refuses a cache size of 2 MiB.
type harness struct {
	*Source
	api *fakeAPI
	log *bytes.Buffer

	busy time.Duration // time that the agent takes for each configuration

	mu         sync.Mutex // guards the following fields
	reported   []string   // "applied SIZE", "refused WHY", in order
	at         []time.Time
	generation uint64
	trap       string // the log panics at messages with this text; empty: never
	stumbles   int    // panics of the agent
}

// size returns a configuration that is identified by the size of its cache, in MiB.
func size(mib int) string { return fmt.Sprintf("cache: {size: %dMi}\n", mib) }

// watched is the ConfigMap of the tests.
func watched() types.NamespacedName {
	return types.NamespacedName{Namespace: "kube-system", Name: "node-cache"}
}

// newHarness returns a harness with a ConfigMap, unless cfg has a file.
func newHarness(t *testing.T, cfg Config) *harness {
	t.Helper()
	w := &harness{api: newFakeAPI(), log: &bytes.Buffer{}}
	if cfg.File == "" {
		cfg.ConfigMap = watched()
	}
	cfg.Now, cfg.Apply = time.Now, w.apply
	if cfg.Serving == nil {
		serving := make(chan struct{})
		close(serving)
		cfg.Serving = serving
	}
	cfg.Log = slog.New(slog.NewTextHandler(&lockedWriter{w: w}, nil))
	var err error
	if w.Source, err = newSource(cfg, w.api.dial); err != nil {
		t.Fatal(err)
	}
	return w
}

// A lockedWriter writes the log of a harness.
type lockedWriter struct{ w *harness }

// Write implements [io.Writer].
func (l *lockedWriter) Write(p []byte) (int, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.w.trap != "" && strings.Contains(string(p), l.w.trap) {
		panic("a trap in the log")
	}
	return l.w.log.Write(p)
}

func (h *harness) logged() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.String()
}

// apply is the agent's Apply.
func (h *harness) apply(cfg config.Config, err error) (InUse, error) {
	if h.busy > 0 {
		time.Sleep(h.busy)
	}
	mib := cfg.Cache.Size >> 20
	if err == nil && mib == 2 {
		err = fmt.Errorf("a cache of 2 MiB")
	}
	h.mu.Lock()
	if h.stumbles > 0 {
		h.stumbles--
		h.mu.Unlock()
		panic("a trap in the agent")
	}
	h.at = append(h.at, time.Now())
	if err == nil {
		h.generation++
	}
	generation := h.generation
	h.mu.Unlock()
	if err != nil {
		h.report("refused " + err.Error())
	} else {
		h.report(fmt.Sprintf("applied %d", mib))
	}
	return InUse{Config: cfg, Generation: generation, NeedRestart: slices.Repeat([]string{"listen.port"}, int(mib/6))}, err
}

func (h *harness) report(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reported = append(h.reported, what)
}

// setTrap makes the log panic at messages with a text; empty: never.
func (h *harness) setTrap(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trap = text
}

// saying returns the reports so far.
func (h *harness) saying() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.reported, "; ")
}

// reports returns the reports since the last call.
func (h *harness) reports() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := strings.Join(h.reported, "; ")
	h.reported, h.at = nil, nil
	return all
}

// begin loads the configuration and runs the source until the test ends, or stop is called.
func (h *harness) begin(t *testing.T) (stop func()) {
	t.Helper()
	cfg, why, err := h.Load(t.Context())
	switch {
	case err != nil:
		t.Fatal(err)
	case why != nil:
		h.report("last good " + fmt.Sprint(cfg.Cache.Size>>20))
	default:
		h.generation = 1
		h.report(fmt.Sprintf("loaded %d", cfg.Cache.Size>>20))
	}
	return h.follow(t)
}

// follow runs the source.
func (h *harness) follow(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// watching returns a harness that has loaded a ConfigMap of 3 MiB and watches it until the test ends.
func watching(t *testing.T, cfg Config) *harness {
	t.Helper()
	w := newHarness(t, cfg)
	w.api.putText(size(3))
	w.begin(t)
	w.expect(t, "at the start", "loaded 3")
	return w
}

// expect compares the reports since the last call.
func (h *harness) expect(t *testing.T, when, want string) {
	t.Helper()
	assert.Equal(t, when+": reported", want, h.reports())
}

// keepGood writes a last good configuration, of 7 MiB, into a temporary folder.
func keepGood(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	assert.NoError(t, os.WriteFile(filepath.Join(folder, lastGoodName), []byte(size(7)), 0o600))
	return folder
}
