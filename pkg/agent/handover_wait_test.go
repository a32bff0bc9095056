// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cluster"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/configsource"
	"github.com/nodecache/node-cache/pkg/handover"
)

// save writes a configuration as an editor does.
func save(t *testing.T, path string, cfg config.Config, more string) {
	t.Helper()
	text, err := config.Marshal(cfg)
	assert.NoError(t, err)
	assert.NoError(t, os.WriteFile(path+".new", append(text, more...), 0o600))
	assert.NoError(t, os.Rename(path+".new", path))
}

// TestHandOverWaitsAndFollows has the next agent wait for a cluster that it cannot get to. A bad change to its
// configuration is refused, another wrong one leaves it waiting, and a good one has it take over. A configuration that it
// did not serve with is not kept as the last good one.
func TestHandOverWaitsAndFollows(t *testing.T) {
	t.Parallel()
	cfg := handingConfig(t)
	usual := config.Default(config.Agent)
	cfg.Interface, cfg.Intercept = usual.Interface, usual.Intercept // a file does not let these go with a loopback address
	first, _ := startHanding(t, newFakeHost(), cfg)

	wrong := cfg
	wrong.Cluster.Resolver, wrong.Cluster.Kubeconfig = config.ResolverLocal, awayKubeconfig(t)
	file, kept := filepath.Join(t.TempDir(), "node-cache.yaml"), t.TempDir()
	save(t, file, wrong, "")
	second, err := newAgent(t.Context(), newFakeHost(), Options{Source: configsource.Config{File: file, LastGood: kept}, Log: t.Output()})
	assert.NoError(t, err)
	stop := runNode(t, second)
	until(t, "it waits for the cluster", func() bool { return second.handover.recorder.Stats().WaitsFor != "" })

	save(t, file, wrong, "nonsense: true\n")
	until(t, "a bad one is refused", func() bool { return second.config.bad.Load() == 1 })
	other := wrong
	other.Cluster.Kubeconfig = awayKubeconfig(t)
	save(t, file, other, "")
	until(t, "another wrong one is taken", func() bool { return second.config.generation.Load() == 2 })
	time.Sleep(50 * time.Millisecond) // for what should not happen
	if st := second.Status().Handover; st.WaitsFor == "" || st.Taken != handover.OutcomeNone || first.notReady() != nil {
		t.Errorf("it does not wait any more: %+v", st)
	}
	if entries, err := os.ReadDir(kept); err != nil || len(entries) > 0 {
		t.Errorf("a configuration that was never served is kept as the last good one: %v, %v", entries, err)
	}

	save(t, file, cfg, "")
	until(t, "it takes over", func() bool { return second.notReady() == nil })
	if !answers(t, second) {
		t.Error("the second one does not answer")
	}
	if got := notAnswered(first); got != "handed over to agent "+second.token {
		t.Errorf("the first one reports %q", got)
	}
	until(t, "the last good one is kept", func() bool {
		entries, err := os.ReadDir(kept)
		return err == nil && len(entries) == 1
	})
	if err := stop(); err != nil {
		t.Errorf("the second one ended with %v", err)
	}
}

// A swapping source runs do and is in sync when Ready is called for the second time, which is when the agent waits for it.
type swapping struct {
	*fakeSource
	asked int
	do    func()
}

func (s *swapping) Ready() <-chan struct{} {
	if s.asked++; s.asked == 2 { // the first was whether it is in sync
		s.do()
		close(s.ready)
	}
	return s.ready
}

// TestHandOverAwaitsReplacedSource replaces a configuration whose source is about to be in sync by another one: the agent waits
// for the source of that one.
func TestHandOverAwaitsReplacedSource(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, next := new(Agent), before()
		a.running.Store(&generation{cluster: &cluster.Cluster{Source: &swapping{fakeSource: before(), do: func() {
			a.running.Store(&generation{cluster: &cluster.Cluster{Source: next}})
		}}}})
		h := &socketHandover{running: &a.running, log: slog.New(slog.DiscardHandler)}
		took := make(chan struct{})
		go func() {
			defer close(took)
			h.awaitSync(t.Context(), &handover.Client{Predecessor: "another"})
		}()
		synctest.Wait()
		select {
		case <-took:
			t.Error("it takes over without what runs knowing the cluster")
		default:
		}
		close(next.ready)
		<-took
	})
}
