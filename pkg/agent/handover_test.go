// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// continues checks that an agent has not handed over and serves.
func continues(t *testing.T, a *Agent) {
	t.Helper()
	if st := a.handover.stats(); a.notReady() != nil || !answers(t, a) || st.Given {
		t.Errorf("the first one: %q, %+v", notAnswered(a), st)
	}
}

// waitToListen calls Listen, and waits until the agent waits for addresses.
func waitToListen(ctx context.Context, t *testing.T, a *Agent) (ended <-chan error) {
	t.Helper()
	listening := make(chan error, 1)
	go func() { listening <- a.Listen(ctx) }()
	until(t, "it waits", func() bool { return a.handover.recorder.Stats().WaitsFor != "" })
	return listening
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

// TestHandOverToOneThatFails has the next agent fail at the link: the first one reverts that and goes on.
func TestHandOverToOneThatFails(t *testing.T) {
	t.Parallel()
	cfg := handingConfig(t)
	m1, m2 := newFakeHost(), newFakeHost()
	m2.setupErr = errors.New("no link today")
	first, _ := startHanding(t, m1, cfg)
	retaken := make(chan struct{})
	m1.mu.Lock()
	m1.do["link"] = func() { close(retaken) }
	m1.mu.Unlock()
	second := agentOnHost(t, m2, cfg)
	stop := runNode(t, second)
	<-retaken
	if err := stop(); err == nil || !strings.Contains(err.Error(), "no link today") {
		t.Errorf("the second one ended with %v", err)
	}
	continues(t, first)
	assert.Equal(t, "successors are counted as abandoned", 1, first.handover.stats().Abandoned)
}

// TestHandOverToOneThatNeverRuns ends agents before they run: at each point the next one can take over.
func TestHandOverToOneThatNeverRuns(t *testing.T) {
	t.Parallel()
	cfg := handingConfig(t)
	first, _ := startHanding(t, newFakeHost(), cfg)

	met := agentOnHost(t, newFakeHost(), cfg) // never listens
	other := agentOnHost(t, newFakeHost(), cfg)
	if got := other.handover.stats(); got.Taken != handover.OutcomeRefused || !strings.Contains(got.Why, handover.ReasonBusy) {
		t.Errorf("while another one is about to take over: %+v", got)
	}
	listening := waitToListen(t.Context(), t, other)
	met.handover.Close()
	assert.NoError(t, <-listening)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // stopped before it serves
	if err := other.Run(ctx); err != nil {
		t.Errorf("one that was stopped before serving ended with %v", err)
	}
	continues(t, first)
	last, _ := startHanding(t, newFakeHost(), cfg)
	if !answers(t, last) {
		t.Error("no agent answers")
	}
}

// TestHandOverWaitEnds stops agents that wait for addresses which are never handed over, or that have not begun to wait:
// that is no failure, and the first one goes on.
func TestHandOverWaitEnds(t *testing.T) {
	t.Parallel()
	cfg := handingConfig(t)
	first, _ := startHanding(t, newFakeHost(), cfg)
	met := agentOnHost(t, newFakeHost(), cfg)
	defer met.handover.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	listening := waitToListen(ctx, t, agentOnHost(t, newFakeHost(), cfg))
	cancel()
	if err := <-listening; !errors.Is(err, context.Canceled) {
		t.Errorf("it waits: Listen: %v", err)
	}
	if err := agentOnHost(t, newFakeHost(), cfg).Listen(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("it does not wait yet: Listen: %v", err)
	}
	continues(t, first)
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
