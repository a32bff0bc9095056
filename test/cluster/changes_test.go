// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
)

// The longest times from the API server's word that a service exists to the right answer, on a machine that runs all of
// this at once.
const (
	inTime   = time.Second     // of 99 changes in 100
	atLatest = 5 * time.Second // of any: a machine may stand still for a moment, for which no program here is the cause
)

// times are how long things took.
type times struct {
	mu   sync.Mutex // guards list
	list []time.Duration
}

func (s *times) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, d)
}

// percentile gives the time within which so many of a hundred were done.
func (s *times) percentile(percent int) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.list)
	return s.list[(len(s.list)-1)*percent/100].Round(time.Millisecond)
}

// spread is the distribution in words.
func (s *times) spread() string {
	return fmt.Sprintf("%s (median), %s (90 %%), %s (longest)", s.percentile(50), s.percentile(90), s.percentile(100))
}

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

// A nameWatcher asks for a name 100 times a second until end, and checks that no answer is older than the one before.
type nameWatcher struct {
	name  string
	ask   func() string
	quit  chan struct{}
	tasks sync.WaitGroup
	seen  chan int // the state of each answer; holds the newest
	asked int      // read it after end

	mu     sync.Mutex // guards the following fields
	states []string   // the right answers, one after the other
	wrong  []string
}

// watch asks for the name, which does not exist yet, whether or not an answer is stale: the machine is slow at times.
func (n *node) watch(name string, qtype uint16) *nameWatcher {
	w := &nameWatcher{name: name, quit: make(chan struct{}), seen: make(chan int, 1), states: []string{"NXDOMAIN"}}
	w.ask = func() string {
		said, _, _ := strings.Cut(n.answerText(name, qtype), " ede=")
		return said
	}
	w.tasks.Go(w.run)
	return w
}

func (w *nameWatcher) run() {
	ticker := time.NewTicker(time.Second / perSecond)
	defer ticker.Stop()
	for state := 0; ; w.asked++ {
		said := w.ask()
		if strings.HasPrefix(said, "lost: ") { // as a resolver does: other tests count losses
			said = w.ask()
		}
		state = w.judge(state, said)
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
}

// judge returns the first state from the given one on with that answer.
func (w *nameWatcher) judge(from int, said string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.states[from:], said)
	if i < 0 {
		w.wrong = append(w.wrong, fmt.Sprintf("%s: %q after state %d of %q", w.name, said, from, w.states))
		return from
	}
	return from + i
}

// begin adds the answer that is right from now on.
func (w *nameWatcher) begin(state string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.states = append(w.states, state)
}

// await waits until the newest state is seen, and adds to took how long after the change that was.
func (w *nameWatcher) await(t *testing.T, took *times, changed time.Time) {
	t.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for {
		select {
		case state := <-w.seen:
			if state == len(w.states)-1 {
				took.add(time.Since(changed))
				return
			}
		case <-limit.C:
			t.Errorf("%s: the last state of %q was not seen", w.name, w.states)
			return
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

// TestCluster makes 200 services one after the other, each deleted and made again with another address, while their names
// are asked for 100 times a second, and others beside.
func TestCluster(t *testing.T) {
	t.Parallel()
	const services = 200
	c := kubetest.Start(t, kubetest.Options{})
	openShop(t, c)
	n := startReady(t, settings{cluster: local(kubeconfig(c.Kubeconfig(kubetest.Admin)))})
	kubetest.Apply(t, c, kubetest.Namespace("busy"))
	n.awaitAnswer(t, "busy.svc.cluster.local.", "NOERROR")
	others := startLoad(t, n.settings.addr, inTurn(steady()...))
	var took times
	asked := 0
	for i := range services {
		name := fmt.Sprintf("s-%d", i)
		w := n.watch(name+".busy.svc.cluster.local.", dns.TypeA)
		for state := range 3 {
			var err error
			if state == 1 {
				w.begin("NXDOMAIN")
				err = c.Client().CoreV1().Services("busy").Delete(t.Context(), name, metav1.DeleteOptions{})
			} else {
				address := fmt.Sprintf("10.97.%d.%d", i, 1+state)
				w.begin("NOERROR " + address)
				err = c.Load(t.Context(), newService("busy", name, at(address), ports("http:80")))
			}
			assert.NoError(t, err)
			w.await(t, &took, time.Now())
		}
		w.end(t)
		asked += w.asked
		if t.Failed() {
			return
		}
	}
	others.end(t)
	t.Logf("%d changes, %d queries for their names, right after %s (median), %s (99 %%), %s (longest)", len(took.list), asked,
		took.percentile(50), took.percentile(99), took.percentile(100))
	took.expectInTime(t)
}
