// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A timer that has run out just when it was set anew, or stopped, says nothing of the try that it is now for.
func TestRaceTickThatIsNotDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
			a := known(q)
			a.Delay = 100 * time.Millisecond
			return a
		})
		p, err := New(Config{Targets: []Target{{Network: "udp", Addr: peer}}, Dial: upstreamtest.Network{peer: s}.Dial})
		if err != nil {
			t.Fatal(err)
		}
		e := exchange{done: make(chan struct{})}
		var batch wire.SendBatch
		r, failure := p.begin(askFor(t, "www.example."), time.Now().Add(4*time.Second), &e, &batch)
		if failure != nil {
			t.Fatal(failure)
		}
		batch.Flush()
		r.tick(&batch)
		<-e.done
		r.tick(&batch)
		batch.Flush()
		if e.err != nil || len(s.Queries()) != 1 {
			t.Errorf("error %v after %d queries, want an answer to the first", e.err, len(s.Queries()))
		}
		if got := p.Stats().Servers[0]; got.Failing || got.Failures[CauseTimeout] > 0 || got.Hedged > 0 {
			t.Errorf("failing %v, %d timeouts, %d hedges, want none: it had its time", got.Failing, got.Failures[CauseTimeout], got.Hedged)
		}
		p.list.Load().all[0].retire()
	})
}

// A race that was won by a later try leaves those that were late their patience, each its own: the longest is waited
// out, so that all who stay silent are blamed.
func TestRaceOrphans(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Config{Targets: []Target{{Network: "udp", Addr: peer}}, Dial: upstreamtest.Network{peer: nil}.Dial})
		if err != nil {
			t.Fatal(err)
		}
		ep := p.list.Load().all[0]
		defer ep.retire()
		now := time.Now()
		r := &race{pool: p, query: askFor(t, "www.example."), until: now.Add(4 * time.Second), list: p.list.Load()}
		var batch wire.SendBatch
		for i, patience := range []time.Duration{400e6, 200e6} {
			tr := &try{race: r, ep: ep, query: r.query, number: i, began: now, patience: patience, hedge: time.Millisecond}
			if err := ep.begin(tr, &batch); err != nil {
				t.Fatal(err)
			}
			r.tries[i] = tr
			r.started, r.running = i+1, i+1
		}
		batch.Flush()
		time.Sleep(10 * time.Millisecond)
		r.mu.Lock()
		r.finish(time.Now())
		r.mu.Unlock()
		time.Sleep(time.Second)
		synctest.Wait()
		if got := ep.count.failures[CauseTimeout].Load(); got != 2 {
			t.Errorf("%d timeouts, want one for each try", got)
		}
		if got := ep.outstanding.Load(); got != 0 {
			t.Errorf("%d tries are outstanding, want none", got)
		}
		ep.endProbes()
	})
}
