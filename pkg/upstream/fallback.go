// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Bounds of a fallback. Every node asks the same few fallback servers, which may have failed together with the upstreams.
const (
	fallbackInflight = 32              // queries in flight, over all routes
	fallbackTime     = 2 * time.Second // timeout of one query
	fallbackFailures = 8               // failures in a row before retries are limited
	fallbackRetries  = 5               // queries per second after fallbackFailures
)

// A Fallback is a pool that is asked while all upstreams of other pools are down.
type Fallback struct {
	*Pool
	inflight atomic.Int32  // queries in flight
	failures atomic.Uint32 // consecutive failed queries
	retries  *rate.Limiter // limits queries after fallbackFailures
}

// NewFallback returns a Fallback of cfg.
func NewFallback(cfg Config) (*Fallback, error) {
	p, err := New(cfg)
	if err != nil {
		return nil, err
	}
	return &Fallback{Pool: p, retries: rate.NewLimiter(fallbackRetries, 1)}, nil
}

// A BackedPool is a pool with a fallback.
type BackedPool struct {
	*Pool
	Fallback *Fallback
}

// Ask asks the pool. While all its upstreams are expected to fail, they get half of the time, and if they do fail the
// fallback is asked. Upstreams known to be down fail at once.
func (p *BackedPool) Ask(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	if p.AllDown() {
		to = &fallbackQuery{pool: p, query: q, until: until, to: to}
		now := p.Now()
		until = now.Add(until.Sub(now) / 2)
	}
	p.Pool.Ask(q, until, to, batch)
}

// A fallbackQuery is a query whose upstreams are probably down.
type fallbackQuery struct {
	pool  *BackedPool
	query []byte
	until time.Time
	to    wire.AnswerReceiver
	cause error // why the upstreams of the pool failed; nil: the fallback was not asked yet
}

// Answered implements [wire.AnswerReceiver], first for the upstreams and then for the fallback.
func (q *fallbackQuery) Answered(answer *wire.Message, err error, batch *wire.SendBatch) {
	f := q.pool.Fallback
	switch {
	case q.cause != nil:
		if err != nil {
			f.failures.Add(1)
			err = q.cause
		} else {
			f.failures.Store(0)
		}
		f.inflight.Add(-1)
	case err != nil && q.pool.AllDown() && f.admit():
		q.cause = err
		until := f.Now().Add(fallbackTime)
		if until.After(q.until) {
			until = q.until
		}
		f.Ask(q.query, until, q, batch)
		return
	}
	q.to.Answered(answer, err, batch)
}

// admit reports whether one more query may be sent. Each admitted query decrements inflight when it ends.
func (f *Fallback) admit() bool {
	if f.failures.Load() >= fallbackFailures && !f.retries.Allow() {
		return false
	}
	if f.inflight.Add(1) > fallbackInflight {
		f.inflight.Add(-1)
		return false
	}
	return true
}
