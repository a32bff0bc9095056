// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// A load is pods and the node asking 1,000 queries a second, or 5,000 with SOAK: over UDP and TCP, IPv4 and IPv6, from ports
// that stay and from new ones.
type load struct {
	began        time.Time
	harness      *harness
	meters       []*nodetest.Meter
	patience     time.Duration // at the end; a query that took no longer is not late
	staleRoute   bool          // one client may have gone astray, see isAstray
	sessionsStay bool          // a TCP session stays with the server that it was opened to
}

func (b *harness) load(t *testing.T) *load {
	t.Helper()
	l := &load{began: time.Now(), harness: b}
	udp := func(rate int) nodetest.Load {
		return nodetest.Load{Network: "udp", Rate: proctest.OrdinaryOrSoak(rate/5, rate)}
	}
	freshUDP := func(rate int) nodetest.Load {
		return nodetest.Load{Network: "udp", Rate: proctest.OrdinaryOrSoak(rate/5, rate), Fresh: true}
	}
	tcp, freshTCP := nodetest.Load{Network: "tcp", Rate: 25}, nodetest.Load{Network: "tcp", Rate: 25, Fresh: true}
	for _, c := range []nodetest.MeterConfig{
		{Host: b.Pods[0], Target: b.dnsAddrs[0], Loads: []nodetest.Load{udp(1500), freshUDP(300), tcp, freshTCP}},
		{Host: b.Pods[1], Target: b.dnsAddrs[1], Loads: []nodetest.Load{udp(1500), freshUDP(300), tcp, freshTCP}},
		{Host: b.Node, Target: b.dnsAddrs[0], Loads: []nodetest.Load{udp(500), freshUDP(100), tcp, freshTCP}},
		{Host: b.Node, Target: b.dnsAddrs[1], Loads: []nodetest.Load{udp(500), freshUDP(100), tcp, freshTCP}},
	} {
		c.Linger = 4 * time.Second // with the timeout it is the most that the patience of a busy machine comes to
		m, err := nodetest.StartMeter(c)
		assert.NoError(t, err)
		t.Cleanup(func() { m.Stop() })
		l.meters = append(l.meters, m)
	}
	return l
}

// usesStaleRoute reports whether it is the node's client that keeps its port, over IPv6. When the agent's address goes and
// comes back, the kernel may go on to use the way for that socket which it had taken in between, the default route: the
// socket caches it, and no change in the table of local addresses tells it otherwise.
func (l *load) usesStaleRoute(client, kind int) bool {
	return l.staleRoute && clients()[client] == "node IPv6" && kind == 0
}

// clients are the names of the meters.
func clients() []string { return []string{"pod IPv4", "pod IPv6", "node IPv4", "node IPv6"} }

// kinds are the names of the loads of each.
func kinds() []string { return []string{"UDP", "UDP from new ports", "TCP", "TCP by new sessions"} }

// The kinds over TCP: one whose session stays open, and one that opens a session for each query.
const (
	overOneSession  = 2
	overNewSessions = 3
)

// The kinds by protocol.
var (
	overUDP = []int{0, 1}
	overTCP = []int{overOneSession, overNewSessions}
)

// stop ends the load.
func (l *load) stop(t *testing.T) []nodetest.Report {
	t.Helper()
	l.patience = l.harness.scaled(t, time.Second)
	reports := make([]nodetest.Report, len(l.meters))
	var stopped sync.WaitGroup
	for i, m := range l.meters {
		stopped.Go(func() { reports[i] = m.Stop() }) // each waits for its last answers
	}
	stopped.Wait()
	return reports
}

// A firstAnswers is when the last of all clients had its first answer.
type firstAnswers struct{ udp, tcp time.Time }

// since tells how long after a time that was.
func (f firstAnswers) since(at time.Time) string {
	return fmt.Sprintf("%s (TCP %s)", ms(f.udp.Sub(at)), ms(f.tcp.Sub(at)))
}

func (f firstAnswers) last() time.Time {
	if f.tcp.After(f.udp) {
		return f.tcp
	}
	return f.udp
}

// awaitServer waits until each client was answered by who over UDP and over TCP, of what it asked since a time.
func (l *load) awaitServer(t *testing.T, who string, since time.Time, limit time.Duration) (f firstAnswers) {
	t.Helper()
	defer func() {
		if t.Failed() {
			l.explain(t, who, since)
		}
	}()
	proctest.Eventually(t, limit, who+" answers every client", func() bool {
		udp, ok := l.firstAnswerOf(overUDP, who, since)
		if !ok {
			return false
		}
		tcp, ok := l.firstAnswerOf(overTCP, who, since)
		f = firstAnswers{udp, tcp}
		return ok
	})
	return f
}

// explain tells which clients were not answered, and what their last queries came to.
func (l *load) explain(t *testing.T, who string, since time.Time) {
	t.Helper()
	for i, m := range l.meters {
		for kind := range kinds() {
			if _, ok := m.FirstBy(kind, who, since); ok {
				continue
			}
			part := m.Report().Of(kind).Between(since, time.Now())
			t.Logf("%s, %s: %s", clients()[i], kinds()[kind], part)
			for _, o := range part.Outcomes[max(0, len(part.Outcomes)-3):] {
				t.Logf("%s after it, %s: %s %s", ms(o.Sent.Sub(since)), ms(o.Took), o.Result, o.Who)
			}
		}
	}
}

// awaitAnyServer waits until each client was answered by any server, of what it asked since a time, and says when the last was.
// A session that stays open is not asked over while it waits for an answer, and left out.
func (l *load) awaitAnyServer(t *testing.T, since time.Time, limit time.Duration) (last time.Time) {
	t.Helper()
	proctest.Eventually(t, limit, "every client is answered", func() bool {
		last = time.Time{}
		for _, m := range l.meters {
			for _, kind := range []int{0, 1, overNewSessions} {
				at, ok := m.FirstBy(kind, byAgent, since)
				if other, byOther := m.FirstBy(kind, byCentral, since); byOther && (!ok || other.Before(at)) {
					at, ok = other, true
				}
				if !ok {
					return false
				}
				if at.After(last) {
					last = at
				}
			}
		}
		return true
	})
	return last
}

func (l *load) firstAnswerOf(kinds []int, who string, since time.Time) (last time.Time, ok bool) {
	for i, m := range l.meters {
		for _, kind := range kinds {
			if l.usesStaleRoute(i, kind) || l.sessionsStay && kind == overOneSession {
				continue
			}
			at, ok := m.FirstBy(kind, who, since)
			if !ok {
				return last, false
			}
			if at.After(last) {
				last = at
			}
		}
	}
	return last, true
}

// merge is one report of all clients, not in order.
func (l *load) merge(reports []nodetest.Report) nodetest.Report {
	var sum nodetest.Report
	for i, r := range reports {
		for kind := range kinds() {
			if !l.usesStaleRoute(i, kind) {
				sum.Outcomes = append(sum.Outcomes, r.Of(kind).Outcomes...)
			}
		}
	}
	return sum
}

// expectNoneLost fails the test if a client lost a query that it sent between two times.
func (l *load) expectNoneLost(t *testing.T, reports []nodetest.Report, from, to time.Time, what string) {
	t.Helper()
	l.expectNoneLostExcept(t, reports, from, to, what, 0)
}

// expectNoneLostExcept is noneLost for when others take over: a TCP session that stays open, and is then another server's who
// does not know it, is reset each time. So is one that was just opened when an agent took the lease after one of the times.
func (l *load) expectNoneLostExcept(t *testing.T, reports []nodetest.Report, from, to time.Time, what string, takeovers int, leased ...time.Time) {
	t.Helper()
	for i, r := range reports {
		for kind := range kinds() {
			part := r.Of(kind).Between(from, to).Within(l.patience)
			if part.Lost() == 0 || l.usesStaleRoute(i, kind) || kind == overOneSession && part.Lost() <= takeovers && part.Lost() == part.Count(nodetest.Reset) {
				continue
			}
			if kind == overNewSessions && part.Lost() == sessionsResetByLease(r, part, leased) {
				continue
			}
			// An agent that ends closes a session whose client, on a busy machine, has not sent its query yet.
			if resets := part.Count(nodetest.Reset); kind == overNewSessions && l.patience > time.Second && part.Lost() == resets && resets <= takeovers {
				continue
			}
			first, _ := part.FirstLost()
			last, _ := part.LastLost()
			t.Errorf("%s, %s, %s: %s; from %s to %s of %s", what, clients()[i], kinds()[kind], part,
				ms(first.Sub(from)), ms(last.Sub(from)), ms(to.Sub(from)))
		}
	}
}

// sessionsResetByLease counts the sessions of part that were open when an agent took the lease of the client's address, after one of
// the times: opened to the fallback, they are the agent's from then on, who does not know them.
func sessionsResetByLease(all, part nodetest.Report, since []time.Time) (n int) {
	for _, o := range part.Outcomes {
		if o.Result == nodetest.Reset && slices.ContainsFunc(since, func(at time.Time) bool {
			earliest, latest := leaseTaken(all, at)
			return !o.Sent.After(latest) && !o.Sent.Add(o.Took).Before(earliest)
		}) {
			n++
		}
	}
	return n
}

// leaseTaken is when an agent took the lease of a client's address, as the client knows it: not before it sent the last
// query that the fallback answered, and not after it had the first answer from the agent.
func leaseTaken(r nodetest.Report, since time.Time) (earliest, latest time.Time) {
	earliest = since
	latest, _ = r.FirstBy(byAgent, since)
	for _, o := range r.Outcomes {
		if o.Result == nodetest.Answered && o.Who == byCentral && o.Sent.After(earliest) && o.Sent.Before(latest) {
			earliest = o.Sent
		}
	}
	return earliest, latest
}

// longestGap is the longest time for which any client had no answer.
func (l *load) longestGap(reports []nodetest.Report) time.Duration {
	var longest time.Duration
	for i, r := range reports {
		for kind := range kinds() {
			if l.usesStaleRoute(i, kind) {
				continue
			}
			longest = max(longest, r.Of(kind).LongestGap())
		}
	}
	return longest
}

// ms rounds for reading.
func ms(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}
