// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestKilledAndPaused kills the agent and does not start it again until it does, or stops the process, which the kernel goes on to
// take packets for.
func TestKilledAndPaused(t *testing.T) {
	t.Parallel()
	for _, backend := range loadedBackends() {
		for _, tt := range []struct {
			name        string
			transparent bool // the agent has the queries to the service's address
			excluded    bool // where no server answers without it
			away        func(daemon)
			back        func(*testing.T, *harness, daemon) time.Time
		}{
			{"kill -9", false, false, daemon.kill, relaunch},
			{"transparent, kill -9", true, false, daemon.kill, relaunch},
			{"excluded service, kill -9", true, true, daemon.kill, relaunch},
			{"kill -STOP", false, false, func(a daemon) { a.Signal(syscall.SIGSTOP) }, func(_ *testing.T, _ *harness, a daemon) time.Time {
				now := time.Now() // it may answer before the signal is said to be sent
				a.Signal(syscall.SIGCONT)
				return now
			}},
		} {
			if tt.transparent && backend == iptablesLegacy {
				continue // the same rules as of iptables-nft
			}
			if tt.name == "kill -STOP" && backend != nftables {
				continue // leases lapse as after a kill; package iptables tests that sessions end with them
			}
			t.Run(backend+", "+tt.name, func(t *testing.T) {
				t.Parallel()
				b := newHarness(t, options{backend: backend, transparent: tt.transparent, excluded: tt.excluded})
				a := b.start(t)
				b.outage(t, tt.name, func() { tt.away(a) }, func() time.Time { return tt.back(t, b, a) })
			})
		}
	}
}

func (a daemon) kill() { a.Kill() }

func relaunch(t *testing.T, b *harness, _ daemon) time.Time {
	t.Helper()
	return b.launch(t).started
}

// TestStalled has one of several readers of a living process do nothing. The agent sees that by the time that the reader takes for a
// batch, not by its own queries: the other readers answer these.
func TestStalled(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	assert.NoError(t, err)
	b := newHarness(t, options{})
	a := b.launchProgram(t, self, stallingAgent, b.config)
	b.awaitAgent(t, a)
	b.outage(t, "stalled", func() { a.Signal(syscall.SIGUSR1) }, func() time.Time {
		now := time.Now()
		a.Signal(syscall.SIGUSR2)
		return now
	})
}

// outage takes the agent away under load, looks at who answers meanwhile, and brings it back. The fallback is to answer
// in time.
func (b *harness) outage(t *testing.T, what string, away func(), back func() time.Time) {
	t.Helper()
	l := b.load(t)
	l.awaitServer(t, byAgent, l.began, 5*time.Second)
	time.Sleep(500 * time.Millisecond)
	before := time.Now()
	open := b.scaled(t, 100*time.Millisecond) // the longest that a session is: later ones may still be open at a change
	before = before.Add(-open)
	gone := time.Now()
	away()
	fallback := l.awaitServer(t, byCentral, gone, 2*fallbackLimit)
	// A client that waits for a session without an answer waits for a second, also if another server answers by then. What it asks after
	// the time that is granted is looked at below.
	if at, _ := l.firstAnswerOf([]int{0, 1, overNewSessions}, byCentral, gone); at.Sub(gone) > fallbackLimit {
		t.Errorf("the last client was answered by the fallback after %s, want %s", ms(at.Sub(gone)), fallbackLimit)
	}
	// From here on everything is answered, also after the time that the issue grants.
	time.Sleep(time.Until(gone.Add(fallbackLimit + 500*time.Millisecond + open)))
	b.askAll(t, byCentral)
	// With a tracked way to the agent, what is tracked already goes on as it is.
	l.sessionsStay = b.transparent && b.backend != nftables
	returned := back()
	again := l.awaitServer(t, byAgent, returned, 10*time.Second)
	if took, limit := again.last().Sub(returned), b.scaled(t, time.Second); took > limit {
		t.Errorf("the last client was answered by the agent %s after its return, want %s", ms(took), ms(limit))
	}
	time.Sleep(500 * time.Millisecond)
	ended := time.Now().Add(-200 * time.Millisecond)
	reports := l.stop(t)
	l.expectNoneLost(t, reports, l.began, before, "before")
	l.expectNoneLost(t, reports, gone.Add(fallbackLimit), returned.Add(-open), "while the agent is away")
	l.expectNoneLost(t, reports, again.last().Add(200*time.Millisecond), ended, "after the return")
	proctest.Figure(t, "%s, %s: fallback after %s, %s; back after %s, %s", what, b.backend, fallback.since(gone),
		l.merge(reports).Between(gone.Add(-100*time.Millisecond), returned), again.since(returned),
		l.merge(reports).Between(returned, again.last().Add(200*time.Millisecond)))
}

// rules are what is on the node, for a person who looks for a mistake.
func (b *harness) rules(t *testing.T) string {
	t.Helper()
	if b.backend == nftables {
		return b.run(t, "nft", "list", "ruleset")
	}
	text := ""
	for _, program := range b.programs() {
		text += b.run(t, program+"-save")
	}
	return text + b.run(t, "ipset", "list")
}
