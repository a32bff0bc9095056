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
)

// perSecond is the rate of every load. It leaves a small machine to the programs under test.
const perSecond = 100

// An expectedQuery is a question of a load, and the answers of which each is right, in words.
type expectedQuery struct {
	name  string
	qtype uint16
	right []string
}

// A load asks at a steady rate and keeps account of what was lost or wrong.
type load struct {
	addr  netip.AddrPort
	began time.Time
	quit  chan struct{} // closed by stop
	stop  func()        // ends the load and waits for it; may be called twice
	tasks sync.WaitGroup

	mu    sync.Mutex // guards what follows
	asked int
	wrong []string
}

// startLoad asks the inquiries that next gives for 0, 1, 2 … until [load.end]. Each query has a socket of its own.
func startLoad(t *testing.T, addr netip.AddrPort, next func(i int) expectedQuery) *load {
	t.Helper()
	l := &load{addr: addr, began: time.Now(), quit: make(chan struct{})}
	l.stop = sync.OnceFunc(func() {
		close(l.quit)
		l.tasks.Wait()
	})
	t.Cleanup(l.stop)
	l.tasks.Go(func() {
		ticker := time.NewTicker(time.Second / perSecond)
		defer ticker.Stop()
		for i := 0; ; i++ {
			select {
			case <-l.quit:
				return
			case <-ticker.C:
			}
			q := next(i)
			l.tasks.Go(func() { l.ask(&q) })
		}
	})
	return l
}

// inTurn asks the same questions over and over.
func inTurn(list ...expectedQuery) func(int) expectedQuery {
	return func(i int) expectedQuery { return list[i%len(list)] }
}

func (l *load) ask(q *expectedQuery) {
	at := time.Since(l.began)
	got := answerText(l.addr, q.name, q.qtype)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	if !slices.Contains(q.right, got) {
		l.wrong = append(l.wrong, fmt.Sprintf("%.2fs %s %s: %q, want %q", at.Seconds(), q.name, dns.TypeToString[q.qtype], got, q.right))
	}
}

// end stops asking, waits for the answers, and fails the test for each that was lost or wrong.
func (l *load) end(t *testing.T) {
	t.Helper()
	const shown = 10
	l.stop()
	length := time.Since(l.began)
	t.Logf("%d queries in %.1f s", l.asked, length.Seconds())
	if l.asked < int(length.Seconds()*perSecond/10) { // on a busy machine each query takes long
		t.Errorf("only %d queries in %s", l.asked, length)
	}
	for i, w := range l.wrong {
		if i == shown {
			t.Errorf("and %d more", len(l.wrong)-shown)
			break
		}
		t.Error(w)
	}
}
