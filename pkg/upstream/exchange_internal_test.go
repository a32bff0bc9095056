// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

type receiverFunc func(err error)

func (f receiverFunc) Answered(_ *wire.Message, err error, _ *wire.SendBatch) { f(err) }

// A timer that fires just when it is set again, or stopped, does not affect the newer attempt.
func TestExchangeEarlyTimer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
			a := answerOrRefuse(q)
			a.Delay = 100 * time.Millisecond
			return a
		})
		p, err := New(Config{Targets: []Target{{Network: "udp", Addr: peer}}, Dial: upstreamtest.Network{peer: s}.Dial})
		assert.NoError(t, err)
		answered := make(chan error, 1)
		var batch wire.SendBatch
		p.Ask(upstreamtest.Question(t, "www.example."), time.Now().Add(4*time.Second), receiverFunc(func(err error) { answered <- err }), &batch)
		batch.Flush()
		x := p.timers.entries[0]
		x.onTimer(&batch)
		err = <-answered
		x.onTimer(&batch)
		batch.Flush()
		if err != nil || len(s.Queries()) != 1 {
			t.Errorf("error %v after %d queries, want an answer to the first", err, len(s.Queries()))
		}
		if got := p.Stats().Servers[0]; got.Failing || got.Failures[CauseTimeout] > 0 || got.Hedged > 0 {
			t.Errorf("failing %v, %d timeouts, %d hedges, want none: it had its time", got.Failing, got.Failures[CauseTimeout], got.Hedged)
		}
		p.snapshot.Load().all[0].closeIdle(false)
	})
}

// After a later attempt has won, each late attempt stays pending until its own timeout, so that all silent upstreams
// are counted.
func TestExchangeLateReplies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Config{Targets: []Target{{Network: "udp", Addr: peer}}, Dial: upstreamtest.Network{peer: nil}.Dial})
		assert.NoError(t, err)
		ep := p.snapshot.Load().all[0]
		defer ep.closeIdle(false)
		now := time.Now()
		x := &exchange{pool: p, query: upstreamtest.Question(t, "www.example."), deadline: now.Add(4 * time.Second), snapshot: p.snapshot.Load()}
		var batch wire.SendBatch
		for i, timeout := range []time.Duration{400e6, 200e6} {
			tr := &attempt{receiver: x, query: x.query, index: i, sentAt: now, timeout: timeout, hedgeDelay: time.Millisecond}
			assert.NoError(t, ep.send(tr, &batch))
			x.attempts[i], x.endpoints[i] = tr, ep
			x.numStarted, x.numRunning = i+1, i+1
		}
		batch.Flush()
		time.Sleep(10 * time.Millisecond)
		x.mu.Lock()
		x.finish(time.Now())
		x.mu.Unlock()
		time.Sleep(time.Second)
		synctest.Wait()
		if got := ep.count.failures[CauseTimeout].Load(); got != 2 {
			t.Errorf("%d timeouts, want one per attempt", got)
		}
		assert.Equal(t, "attempts are pending", 0, ep.outstanding.Load())
		ep.stopProbes()
	})
}
