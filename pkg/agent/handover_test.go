// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/handover"
)

// handingConfig is nodeConfig with a socket for hand-overs.
func handingConfig(t *testing.T) config.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "handover") //nolint:usetesting // t.TempDir is too long for a socket
	assert.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := nodeConfig(t)
	cfg.Handover.Socket = filepath.Join(dir, "h.sock")
	cfg.Intercept.OnExit = config.ExitRemove
	return cfg
}

// startHanding runs an agent that a successor can take over from.
func startHanding(t *testing.T, m *fakeHost, cfg config.Config) (a *Agent, stop func() error) {
	t.Helper()
	a, stop = serveOnHost(t, m, cfg)
	until(t, "a successor can ask", func() bool { return a.handover.stats().Listening })
	return a, stop
}

// notAnswered is the reason why an agent does not serve any more, or not yet.
func notAnswered(a *Agent) string {
	if err := a.notReady(); err != nil {
		return err.Error()
	}
	return ""
}

func TestHandOver(t *testing.T) {
	t.Parallel()
	cfg := handingConfig(t)
	cfg.Snapshot.Folder = t.TempDir()
	m1, m2 := newFakeHost(), newFakeHost()
	m2.kernel = m1.kernel // both are on one node
	first, stopFirst := startHanding(t, m1, cfg)
	held := func() bool {
		return len(m1.kernel.Rules().Addresses) > 0 && first.node.InterceptStats().NotHeldFor == 0
	}
	if !held() {
		t.Error("the first one does not hold the lease")
	}
	m2.do["rules"] = func() {
		if got := notAnswered(first); got != "handed over to agent "+first.handover.recorder.Stats().To {
			t.Errorf("the next one writes rules while the first one reports %q", got)
		}
	}
	second, stopSecond := startHanding(t, m2, cfg)
	if second.snapshots.Stats().Loaded.Outcome != "loaded" {
		t.Errorf("no snapshot: %+v", second.snapshots.Stats().Loaded)
	}
	if !answers(t, second) {
		t.Error("no agent answers")
	}
	if got := notAnswered(first); got != "handed over to agent "+second.token {
		t.Errorf("the first one reports %q", got)
	}
	st := first.Status()
	if st.Handover.To != second.token || st.Handover.Given == nil || st.Handover.Listening || len(st.Problems) > 0 {
		t.Errorf("status of the first: %+v, %v", st.Handover, st.Problems)
	}
	if st := second.Status().Handover; st.Taken != handover.OutcomeTaken || st.From != first.token || !st.Listening {
		t.Errorf("status of the second: %+v", st)
	}
	if err := stopFirst(); err != nil {
		t.Errorf("the first one ended with %v", err)
	}
	assert.Same(t, "what the first one did to the node", []string{"link", "rules", "lease"}, m1.lines())
	if m1.closed != 1 {
		t.Errorf("the backend was closed %d times", m1.closed)
	}
	if !answers(t, second) || second.notReady() != nil {
		t.Errorf("when the first one has ended: %q", notAnswered(second))
	}
	if err := stopSecond(); err != nil {
		t.Errorf("the second one ended with %v", err)
	}
	want, got := []string{"link", "lease", "rules", "released", "rules removed", "link removed"}, m2.lines()
	if m2.lateLease() && slices.Index(got, "rules") < slices.Index(got, "lease") { // the agent was too slow to ask itself
		want[1], want[2] = want[2], want[1]
	}
	assert.Same(t, "what the second one did to the node", want, got)
}

// TestHandOverOtherPort starts an agent at another port with the same socket: it is no successor.
func TestHandOverOtherPort(t *testing.T) {
	t.Parallel()
	cfg := handingConfig(t)
	first, _ := startHanding(t, newFakeHost(), cfg)
	other := cfg
	other.Listen.Port = nodeConfig(t).Listen.Port
	second := agentOnHost(t, newFakeHost(), other)
	runNode(t, second)
	until(t, "the second agent is ready", func() bool { return second.notReady() == nil })
	if !answers(t, first) || !answers(t, second) || first.notReady() != nil {
		t.Errorf("both should answer: %q", notAnswered(first))
	}
	until(t, "it reports that no agent can take over from it", func() bool {
		return second.Status().Handover.LastError != "" && slices.ContainsFunc(second.Status().Problems, func(p status.Problem) bool { return p.Where == "handover" })
	})
	if st := first.handover.stats(); !st.Listening || st.Given {
		t.Errorf("the first one: %+v", st)
	}
}
