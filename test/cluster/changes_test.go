// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/kubetest"
)

// The longest times from the API server's word that a service exists to the right answer, on a machine that runs all of
// this at once.
const (
	inTime   = time.Second     // of 99 changes in 100
	atLatest = 5 * time.Second // of any: a machine may stand still for a moment, for which nobody here is to blame
)

// expectInTime judges how long changes took to count.
func (s *times) expectInTime(t *testing.T) {
	t.Helper()
	if got := s.percentile(99); got > inTime {
		t.Errorf("99 of 100 changes count within %s, want within %s", got, inTime)
	}
	if got := s.percentile(100); got > atLatest {
		t.Errorf("a change counts after %s, want within %s", got, atLatest)
	}
}

// A stateHistory is what is true of a name, one state after the other.
type stateHistory struct {
	mu     sync.Mutex // guards states
	states []string   // answers in words
}

func (l *stateHistory) begin(state string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.states = append(l.states, state)
}

// next gives the first state from the given one on with that answer, and -1 if there is none.
func (l *stateHistory) next(from int, said string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.states[from:], said); i >= 0 {
		return from + i
	}
	return -1
}

// A nameWatcher asks for a name repeatedly, one query after the other, and sees that no answer is older than the one before.
type nameWatcher struct {
	quit  chan struct{}
	tasks sync.WaitGroup
	seen  chan int // the state after each answer; holds the newest
	wrong []string // may be read once tasks are done
	asked int      // as above
}

// watchName asks for the name's IPv4 addresses until end.
func watchName(addr netip.AddrPort, name string, l *stateHistory) *nameWatcher {
	return watchAnswers(name, l, func() string { return answerText(addr, name, dns.TypeA) })
}

// watchAnswers asks for a name until end.
func watchAnswers(name string, l *stateHistory, ask func() string) *nameWatcher {
	w := &nameWatcher{quit: make(chan struct{}), seen: make(chan int, 1)}
	w.tasks.Go(func() {
		ticker := time.NewTicker(time.Second / perSecond)
		defer ticker.Stop()
		for state := 0; ; {
			said := ask()
			w.asked++
			if next := l.next(state, said); next >= 0 {
				state = next
			} else {
				w.wrong = append(w.wrong, fmt.Sprintf("%s: %q after state %d of %q", name, said, state, l.states))
			}
			select { // only the newest counts
			case <-w.seen:
			default:
			}
			w.seen <- state
			select {
			case <-w.quit:
				return
			case <-ticker.C:
			}
		}
	})
	return w
}

// awaitState waits until the witness has seen the state, and returns how long that took.
func (w *nameWatcher) awaitState(t *testing.T, state int) time.Duration {
	t.Helper()
	took, ok := w.until(state)
	if !ok {
		t.Fatalf("state %d was not seen", state)
	}
	return took
}

// until waits until the witness has seen the state, and returns how long that took; false if it did not in time.
func (w *nameWatcher) until(state int) (time.Duration, bool) {
	began := time.Now()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for {
		select {
		case got := <-w.seen:
			if got >= state {
				return time.Since(began), true
			}
		case <-limit.C:
			return 0, false
		}
	}
}

// end stops asking and reports what was wrong.
func (w *nameWatcher) end(t *testing.T) {
	t.Helper()
	close(w.quit)
	w.tasks.Wait()
	for _, text := range w.wrong {
		t.Error(text)
	}
}

// testChanges makes 200 services one after the other, each deleted and made again with another address, while their names
// are asked for 100 times a second, and others beside.
func testChanges(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	const services = 200
	n := startReady(t, settings{cluster: local(kubeconfig(c.Kubeconfig(kubetest.Admin)))})
	kubetest.Apply(t, c, kubetest.Namespace("busy"))
	n.awaitAnswer(t, "busy.svc.cluster.local.", "NOERROR")
	others := startLoad(t, n.settings.addr, inTurn(steady()...))
	var took times
	asked := 0
	for i := range services {
		first, second := fmt.Sprintf("10.97.%d.1", i), fmt.Sprintf("10.97.%d.2", i)
		name := fmt.Sprintf("s-%d", i)
		truth := &stateHistory{states: []string{"NXDOMAIN"}}
		w := watchName(n.settings.addr, name+".busy.svc.cluster.local.", truth)
		for state, change := range []struct {
			said string
			do   func() error
		}{
			{"NOERROR " + first, func() error { return c.Load(t.Context(), newService("busy", name, at(first), ports("http:80"))) }},
			{"NXDOMAIN", func() error {
				return c.Client().CoreV1().Services("busy").Delete(t.Context(), name, metav1.DeleteOptions{})
			}},
			{"NOERROR " + second, func() error { return c.Load(t.Context(), newService("busy", name, at(second), ports("http:80"))) }},
		} {
			truth.begin(change.said)
			if err := change.do(); err != nil {
				t.Fatal(err)
			}
			took.add(w.awaitState(t, state+1))
		}
		w.end(t)
		asked += w.asked
	}
	others.end(t)
	t.Logf("%d changes, %d queries for their names, right after %s (median), %s (99 %%), %s (longest)", len(took.list), asked,
		took.percentile(50), took.percentile(99), took.percentile(100))
	took.expectInTime(t)
}
