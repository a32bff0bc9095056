// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// startHandOver sets up a node with an agent that can hand over.
func startHandOver(t *testing.T, o options) (*harness, daemon) {
	t.Helper()
	b := newHarness(t, o)
	b.extra += handoverConfig(t)
	b.writeConfig(t, b.configText())
	return b, b.start(t)
}

// launchWaiting starts an agent that gets the sockets and then waits for the cluster, which never answers.
func (b *harness) launchWaiting(t *testing.T) daemon {
	t.Helper()
	config := filepath.Join(t.TempDir(), "next.yaml") // the old agent follows its own
	proctest.WriteFile(t, config, b.configText()+"cluster: {resolver: local, kubeconfig: kubeconfig}\n")
	writeKubeconfig(t, config)
	next := b.launchProgram(t, nodeCache, "agent", "--config", config)
	proctest.Eventually(t, time.Minute, "the next agent waits", func() bool {
		if next.Ended() {
			t.Fatalf("the agent has ended: %v", next.Err())
		}
		return strings.Contains(next.Stderr.String(), "waiting for cluster sync")
	})
	return next
}

// writeKubeconfig writes the way to an API server that never answers beside an agent's configuration.
func writeKubeconfig(t *testing.T, config string) {
	t.Helper()
	proctest.WriteFile(t, filepath.Join(filepath.Dir(config), "kubeconfig"), `apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: "https://10.201.0.2:6443", insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: test}}]
`)
}

// awaitLog waits until an agent has logged something.
func awaitLog(t *testing.T, a daemon, what string) {
	t.Helper()
	proctest.Eventually(t, time.Minute, "the log says: "+what, func() bool { return strings.Contains(a.Stderr.String(), what) })
}

// expectAllAnswered stops the load: nothing was lost, and only the agents have answered.
func (b *harness) expectAllAnswered(t *testing.T, l *load, what string, sessionsCut int, fallbackBefore uint64) {
	t.Helper()
	time.Sleep(500 * time.Millisecond)
	end := time.Now().Add(-200 * time.Millisecond)
	reports := l.stop(t)
	l.expectNoneLostExcept(t, reports, l.began, end, what, sessionsCut)
	if leaked := b.fallbackQueries(); leaked > fallbackBefore {
		t.Errorf("%s: %d queries more than expected went to the fallback", what, leaked-fallbackBefore)
	}
	proctest.Figure(t, "hand-over, %s, %s: %s", what, b.backend, l.merge(reports).Between(l.began, end))
}

// faultBackends are the backends for faults of a hand-over, which are the same with each. TestHandOver has both in any run.
func faultBackends() []string {
	return proctest.OrdinaryOrSoak([]string{nftables}, []string{nftables, iptablesNFT})
}

// TestHandOverNewKilled kills an agent that has the sockets and does not serve yet, several times, and then has one take over.
func TestHandOverNewKilled(t *testing.T) {
	t.Parallel()
	for _, backend := range faultBackends() {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b, old := startHandOver(t, options{backend: backend})
			before := b.fallbackQueries()
			l := b.load(t)
			for range 3 {
				next := b.launchWaiting(t)
				time.Sleep(100 * time.Millisecond)
				next.Kill()
				awaitLog(t, old, "successor ended before takeover")
			}
			next := b.launchWaiting(t)
			next.end(t) // in order
			last := b.launch(t)
			b.awaitHandOver(t, last)
			old.end(t)
			b.expectAllAnswered(t, l, "the next agent dies before it serves", 1, before)
			b.askAll(t, byAgent)
		})
	}
}

// TestHandOverOldStops has the old agent stopped while the next one still waits for the cluster.
func TestHandOverOldStops(t *testing.T) {
	t.Parallel()
	for _, backend := range faultBackends() {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b, old := startHandOver(t, options{backend: backend, onExit: "remove"})
			l := b.load(t)
			next := b.launchWaiting(t)
			old.Signal(syscall.SIGTERM)
			awaitLog(t, next, `"taken over"`)
			if err := old.Wait(t, time.Minute); err != nil {
				t.Errorf("the old agent ended with %v", err)
			}
			time.Sleep(500 * time.Millisecond)
			end := time.Now().Add(-200 * time.Millisecond)
			// Without a view of the cluster the lease comes after ten seconds: the fallback answers until then, and sessions
			// that are open when the old one's lease ends are reset.
			sum := l.merge(l.stop(t)).Between(l.began, end)
			if sum.Lost() > sum.Count(nodetest.Reset) || sum.Lost() > 20 {
				t.Errorf("the old agent ends: %s", sum)
			}
			proctest.Figure(t, "hand-over, the old agent ends first, %s: %s", b.backend, sum)
			next.end(t)
		})
	}
}

// TestHandOverOldKilled kills the old agent while the next one has its sockets and waits.
func TestHandOverOldKilled(t *testing.T) {
	t.Parallel()
	for _, backend := range faultBackends() {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b, old := startHandOver(t, options{backend: backend})
			l := b.load(t)
			next := b.launchWaiting(t)
			time.Sleep(100 * time.Millisecond)
			before := time.Now().Add(-b.scaled(t, 100*time.Millisecond)) // later sessions may still be open when the agent goes
			killed := time.Now()
			old.Kill()
			again := l.awaitAnyServer(t, killed, 5*time.Second)
			awaitLog(t, next, `"taken over"`)
			limit := b.scaled(t, time.Second)
			time.Sleep(time.Until(killed.Add(fallbackLimit + time.Second)))
			end := time.Now().Add(-200 * time.Millisecond)
			reports := l.stop(t)
			// What a reader had in hand dies with it, and its sessions do, until the kernel has noticed.
			if took := again.Sub(killed); took > limit {
				t.Errorf("the last client was answered %s after the old agent was killed, want %s", ms(took), ms(limit))
			}
			l.expectNoneLost(t, reports, l.began, before, "before")
			l.expectNoneLost(t, reports, killed.Add(fallbackLimit), end, "after")
			proctest.Figure(t, "hand-over, the old agent is killed while the next one waits, %s: %s, the last client answered after %s", b.backend,
				l.merge(reports).Between(l.began, end), ms(again.Sub(killed)))
		})
	}
}

// TestHandOverConcurrent starts several agents at once.
func TestHandOverConcurrent(t *testing.T) {
	t.Parallel()
	b, old := startHandOver(t, options{})
	before := b.fallbackQueries()
	l := b.load(t)
	const together = 3
	all := []daemon{old}
	for range together {
		all = append(all, b.launch(t))
	}
	var last daemon
	proctest.Eventually(t, time.Minute, "all but one have handed over", func() bool {
		idle := 0
		for _, a := range all {
			if a.Ended() {
				t.Fatalf("an agent has ended: %v", a.Err())
			}
			if strings.Contains(a.Stderr.String(), `"handed over"`) {
				idle++
			} else {
				last = a
			}
		}
		return idle == together
	})
	b.awaitHandOver(t, last)
	for _, a := range all {
		if a != last {
			a.end(t)
		}
	}
	b.expectAllAnswered(t, l, fmt.Sprintf("%d agents at once", together), together, before)
}

// TestHandOverHung has the old agent hang when the next one comes, which waits until it does not, or is stopped.
func TestHandOverHung(t *testing.T) {
	t.Parallel()
	b, old := startHandOver(t, options{})
	old.Signal(syscall.SIGSTOP)
	undone := b.launch(t)
	awaitLog(t, undone, "waiting for addresses of another agent")
	undone.end(t)
	next := b.launch(t)
	awaitLog(t, next, "waiting for addresses of another agent")
	old.Signal(syscall.SIGCONT)
	b.awaitHandOver(t, next)
	b.askAll(t, byAgent)
}

// TestHandOverNewKilledLater kills the agent that has taken over: the fallback answers, and the old one ends when no other
// comes, so that it is started again.
func TestHandOverNewKilledLater(t *testing.T) {
	t.Parallel()
	b, old := startHandOver(t, options{})
	next := b.launch(t)
	b.awaitHandOver(t, next)
	awaitLog(t, old, "idle after handover")
	next.Kill()
	b.askAll(t, byCentral)
	if err := old.Wait(t, time.Minute); err == nil || !strings.Contains(old.Stderr.String(), "ended without a successor") {
		t.Errorf("the old agent ended with %v", err)
	}
	b.start(t)
	b.askAll(t, byAgent)
}

// TestHandOverOtherConfig hands over between agents that are configured otherwise.
func TestHandOverOtherConfig(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name          string
		first, second options
		env           [2]string // of each
		between       uint64    // queries that may be between two hooks when the rules come: the first had no rule, the second has
		gap           bool      // the kernel removes rules one after the other: a few queries may meet half of them
	}{
		{name: "rules by another backend", first: options{backend: nftables}, second: options{backend: iptablesNFT}},
		{name: "and back", first: options{backend: iptablesNFT}, second: options{backend: nftables}},
		{name: "no rules any more", first: options{backend: nftables}, second: options{backend: nftables, unmanaged: true}, gap: true},
		{name: "rules from now on", first: options{unmanaged: true}, second: options{}, between: 2},
		{name: "one more reader", env: [2]string{"GOMAXPROCS=1", "GOMAXPROCS=3"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t, tt.first)
			config := handoverConfig(t)
			b.extra = config
			b.writeConfig(t, b.configText())
			old := b.startWith(t, tt.env[0])
			before := b.fallbackQueries()
			l := b.load(t)
			l.awaitServer(t, byAgent, l.began, 5*time.Second)

			second := *b
			second.options = tt.second
			second.extra = config
			if second.backend == "" {
				second.backend = nftables
			}
			second.lease = lease
			second.config = filepath.Join(t.TempDir(), "second.yaml") // the first agent follows its own
			second.writeConfig(t, second.configText())
			if second.backend != b.backend {
				second.addKubeProxyChains(t)
			}
			next := second.launchWith(t, tt.env[1])
			second.awaitHandOver(t, next)
			time.Sleep(lease + time.Second) // what the old one had would have lapsed
			old.end(t)
			time.Sleep(500 * time.Millisecond)
			if tt.gap {
				proctest.Figure(t, "hand-over, %s: %s", tt.name, l.merge(l.stop(t)).Between(l.began, time.Now()))
				second.askAll(t, byAgent)
			} else {
				second.expectAllAnswered(t, l, tt.name, 1, before+tt.between)
			}
			if second.unmanaged {
				if rules := b.rules(t); strings.Contains(rules, "node-cache") || strings.Contains(rules, "NODE-CACHE") {
					t.Errorf("rules stay:\n%s", rules)
				}
			}
		})
	}
}

func (b *harness) launchWith(t *testing.T, env string) daemon {
	t.Helper()
	if env == "" {
		return b.launch(t)
	}
	return b.launchProgram(t, "env", env, nodeCache, "agent", "--config", b.config)
}

func (b *harness) startWith(t *testing.T, env string) daemon {
	t.Helper()
	a := b.launchWith(t, env)
	b.awaitAgent(t, a)
	return a
}

// logTime is a time as the agents' logs have it.
func logTime(at time.Time) string { return at.UTC().Format("15:04:05.000") }
