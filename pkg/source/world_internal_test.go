// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
)

// A world is a source and an agent that puts to work what it gets, unless its size of the cache is 2 MiB: that one it refuses.
type harness struct {
	*Source
	api *fakeAPI
	log *bytes.Buffer

	busy   time.Duration // that the agent takes for each configuration
	doubts bool          // the agent does not serve yet

	mu         sync.Mutex // guards what follows
	told       []string   // "applied SIZE", "refused WHY", in order
	at         []time.Time
	generation uint64
	trap       string // what has the log panic when it is to be written; empty: nothing
	stumbles   int    // times that the agent panics
}

// size is a configuration that is told by the size of its cache, in MiB.
func size(mib int) string { return fmt.Sprintf("cache: {size: %dMi}\n", mib) }

// newWorld is one with a ConfigMap, unless cfg has a file.
func newHarness(t *testing.T, cfg Config) *harness {
	t.Helper()
	w := &harness{api: newFakeAPI(), log: &bytes.Buffer{}}
	if cfg.File == "" {
		cfg.ConfigMap = Object{"kube-system", "node-cache"}
	}
	cfg.Now, cfg.Changed = time.Now, w.changed
	cfg.Log = slog.New(slog.NewTextHandler(&lockedWriter{w: w}, nil))
	var err error
	if w.Source, err = newSource(cfg, w.api.dial); err != nil {
		t.Fatal(err)
	}
	return w
}

// A lockedWriter writes the log of a world.
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

func (w *harness) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

// changed is what the agent does.
func (w *harness) changed(cfg config.Config, err error) {
	if w.busy > 0 {
		time.Sleep(w.busy)
	}
	mib := cfg.Cache.Size >> 20
	if err == nil && mib == 2 {
		err = fmt.Errorf("a cache of 2 MiB")
	}
	w.mu.Lock()
	if w.stumbles > 0 {
		w.stumbles--
		w.mu.Unlock()
		panic("a trap in the agent")
	}
	w.at = append(w.at, time.Now())
	if err == nil {
		w.generation++
	}
	generation := w.generation
	w.mu.Unlock()
	if err != nil {
		w.tell("refused " + err.Error())
		w.Refused(err)
		return
	}
	w.tell(fmt.Sprintf("applied %d", mib))
	if w.doubts {
		w.AppliedProvisionally()
		return
	}
	w.Applied(cfg, generation)
}

func (w *harness) tell(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, what)
}

// setTrap has the log panic for what has a text in it; empty: for nothing.
func (w *harness) setTrap(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trap = text
}

// saying is what was told so far.
func (w *harness) saying() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.told, "; ")
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// tales is what was told so far, and forgets it.
func (w *harness) tales() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := strings.Join(w.told, "; ")
	w.told, w.at = nil, nil
	return all
}

// begin loads the configuration and runs the source until the test ends, or stop is called.
func (w *harness) begin(t *testing.T) (stop func()) {
	t.Helper()
	cfg, why, err := w.Load(t.Context())
	switch {
	case err != nil:
		t.Fatal(err)
	case why != nil:
		w.tell("last good " + fmt.Sprint(cfg.Cache.Size>>20))
		w.Refused(why)
	default:
		w.generation = 1
		w.tell(fmt.Sprintf("loaded %d", cfg.Cache.Size>>20))
		w.Applied(cfg, 1)
	}
	return w.follow(t)
}

// follow runs the source.
func (w *harness) follow(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// expect compares what was told since the last time.
func (w *harness) expect(t *testing.T, when, want string) {
	t.Helper()
	if got := w.tales(); got != want {
		t.Errorf("%s: told %q, want %q", when, got, want)
	}
}

// keepGood writes a last good configuration, of 7 MiB, into a folder of the test's own.
func keepGood(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, lastGoodName), []byte(size(7)), 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}
