// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
)

// TestUpgrade stops the agent in order and starts the next one, under load.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	for _, backend := range loadedBackends() {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t, options{backend: backend})
			a := b.start(t)
			l := b.load(t)
			l.awaitServer(t, byAgent, l.began, 5*time.Second)
			stopped := time.Now()
			a.Signal(syscall.SIGTERM)
			fallback := l.awaitServer(t, byCentral, stopped, 5*time.Second)
			if err := a.Wait(t, time.Minute); err != nil {
				t.Errorf("the agent ended with %v", err)
			}
			ended := time.Now()
			time.Sleep(time.Second)
			b.askAll(t, byCentral)
			next := b.launch(t)
			again := l.awaitServer(t, byAgent, next.started, 10*time.Second)
			time.Sleep(500 * time.Millisecond)
			end := time.Now().Add(-200 * time.Millisecond)
			reports := l.stop(t)
			l.expectNoneLostExcept(t, reports, l.began, end, "stopped and started again", 2, next.started)
			proctest.Figure(t, "stopped for an upgrade, %s: fallback after %s, ended after %s, next agent after %s, %s", backend,
				fallback.since(stopped), ms(ended.Sub(stopped)), again.since(next.started), l.merge(reports).Between(l.began, end))
		})
	}
}

// TestNotReady starts an agent that does not know the cluster yet.
func TestNotReady(t *testing.T) {
	t.Parallel()
	b := newHarness(t, options{})
	a := b.start(t)
	a.end(t)
	// No server answers at the API server's address.
	b.writeConfig(t, b.configText()+"cluster: {resolver: local, kubeconfig: kubeconfig}\n")
	writeKubeconfig(t, b.config)
	l := b.load(t)
	next := b.launch(t)
	time.Sleep(3 * time.Second)
	if next.Ended() {
		t.Fatalf("the agent has ended: %v", next.Err())
	}
	reports := l.stop(t)
	l.expectNoneLost(t, reports, l.began, time.Now().Add(-1200*time.Millisecond), "not ready")
	if by := l.merge(reports).By(); by[byAgent] > 0 {
		t.Errorf("an agent that is not ready has answered %d queries", by[byAgent])
	}
	proctest.Figure(t, "not ready yet, %s: %s", b.backend, l.merge(reports))
}

// TestCrashLoop kills the agent repeatedly, soon after it came back.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	b := newHarness(t, options{})
	a := b.start(t)
	l := b.load(t)
	l.awaitServer(t, byAgent, l.began, 5*time.Second)
	const times = 5
	for range times {
		time.Sleep(200 * time.Millisecond)
		killed := time.Now()
		a.Kill()
		l.awaitServer(t, byCentral, killed, fallbackLimit)
		time.Sleep(200 * time.Millisecond)
		a = b.launch(t)
		l.awaitServer(t, byAgent, a.started, 5*time.Second)
	}
	time.Sleep(300 * time.Millisecond)
	limit := b.scaled(t, 500*time.Millisecond)
	reports := l.stop(t)
	sum, gap := l.merge(reports), l.longestGap(reports)
	if gap > limit {
		t.Errorf("killed %d times: a client had no answer for %s, want %s", times, ms(gap), ms(limit))
	}
	proctest.Figure(t, "killed %d times in a row, %s: %s, longest gap %s", times, b.backend, sum, ms(gap))
}

// TestSuccessor starts the next agent as soon as the last one has given up its sockets, while that removes what is the
// next one's by then.
func TestSuccessor(t *testing.T) {
	t.Parallel()
	for _, backend := range loadedBackends() {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t, options{backend: backend, onExit: "remove"})
			last := b.start(t)
			times := proctest.OrdinaryOrSoak(3, 50)
			for range times {
				last.Signal(syscall.SIGTERM)
				next := b.launch(t)
				for !strings.Contains(next.Stderr.String(), `"serving"`) {
					if next.Ended() { // the port was taken
						next = b.launch(t)
					}
					time.Sleep(time.Millisecond)
				}
				if err := last.Wait(t, time.Minute); err != nil {
					t.Fatalf("the agent ended with %v", err)
				}
				// Without rules the agent answers too: that it does is no sign that all is done.
				proctest.Eventually(t, time.Minute, "the next agent has rules and leases", func() bool {
					log := next.Stderr.String()
					return strings.Contains(log, "rules written") && strings.Count(log, "lease acquired") >= len(b.dnsAddrs)
				})
				time.Sleep(600 * time.Millisecond) // until the next renewal, if what was taken went with the last agent's rules
				proctest.Eventually(t, time.Minute, "the rules are as they should be, and the leases are held", func() bool { return b.ready(t) })
				b.askAll(t, byAgent)
				last = next
			}
			proctest.Figure(t, "next agent started while the last one stopped with onExit remove, %s: %d times, it has the queries afterwards", backend, times)
		})
	}
}
