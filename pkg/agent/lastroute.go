// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Every node asks the same few servers, and what took the upstreams down may have
// taken down theirs.
const (
	fallbackInflight = 32              // queries at a time, of all routes
	fallbackTime     = 2 * time.Second // for an answer, at most
	fallbackFailures = 8               // in a row; after them
	fallbackRetries  = 5               // queries a second
)

// A fallbackPool asks the servers of intercept.fallback about names whose own
// upstreams are all down.
type fallbackPool struct {
	*upstream.Pool
	service  string        // "namespace/name", whose endpoints are asked; empty: configured addresses
	inflight atomic.Int32  // queries under way
	failures atomic.Uint32 // in a row
	retries  *rate.Limiter // after fallbackFailures
}

// fallbackFor is the pool of intercept.fallback, old's if its servers are the same;
// nil if no route asks it or no server is known.
func (a *Agent) fallbackFor(r, old *running) (*fallbackPool, error) {
	cfg := &r.config
	var c upstream.Config
	f := &fallbackPool{retries: rate.NewLimiter(fallbackRetries, 1)}
	switch {
	case slices.IndexFunc(cfg.Forward, func(r config.Route) bool { return !r.NoFallback }) < 0:
		return nil, nil //nolint:nilnil // no fallback is no mistake
	case !cfg.Intercept.Fallback.Central:
		for _, addr := range cfg.Intercept.Fallback.Addresses {
			c.Targets = append(c.Targets, upstream.Target{Network: "tcp", Addr: addr})
		}
	case r.cluster != nil && r.cluster.endpoints != nil:
		c.Endpoints, f.service = r.cluster.endpoints, cfg.Cluster.Central.Service.String()
	default:
		for _, addr := range cfg.Cluster.Central.Addresses {
			c.Targets = append(c.Targets, upstream.Target{Network: "tcp", Addr: addr})
		}
	}
	if c.Endpoints == nil && len(c.Targets) == 0 {
		return nil, nil //nolint:nilnil // likewise
	}
	if old != nil && old.fallback != nil && sameFallback(r, old) {
		return old.fallback, nil
	}
	c.LoopDetector, c.Zone, c.Dial, c.Mark, c.Log = a.loops, []byte{0}, a.options.Dial, mark(cfg), a.log.With("zone", fallbackZone)
	listen := cfg.Listen
	c.Self = func(addr netip.AddrPort) bool { return leadsBack(addr, listen) }
	var err error
	f.Pool, err = upstream.New(c)
	if errors.Is(err, upstream.ErrNoUpstream) {
		return nil, nil //nolint:nilnil // likewise
	}
	return f, err
}

// fallbackZone stands for the fallback where a route has its zone: no zone is
// spelled so.
const fallbackZone = "fallback"

// sameFallback reports whether old's fallback asks the same servers as r's.
func sameFallback(r, old *running) bool {
	endpoints := func(r *running) *upstream.Endpoints {
		if r.cluster == nil {
			return nil
		}
		return r.cluster.endpoints
	}
	return reflect.DeepEqual(r.config.Intercept.Fallback, old.config.Intercept.Fallback) &&
		reflect.DeepEqual(r.config.Cluster.Central, old.config.Cluster.Central) && endpoints(r) == endpoints(old)
}

// behind is what a route asks: its pool, and f while all upstreams of that are down.
// Who can cut connections over TLS must not get the queries in plain text by that.
func (f *fallbackPool) behind(route route) resolve.Asker {
	encrypted := func(to config.Target) bool { return to.Kind == config.TLS || to.Kind == config.HTTPS }
	if f == nil || route.NoFallback || slices.ContainsFunc(route.To, encrypted) {
		return route.pool
	}
	return &backedPool{Pool: route.pool, fallback: f}
}

// A backedPool is a route's pool with the fallback behind it.
type backedPool struct {
	*upstream.Pool
	fallback *fallbackPool
}

// Ask implements [resolve.Asker]. While no upstream is expected to answer, they have
// half the time, so that some is left for the fallback. Upstreams that are down fail
// at once.
func (p *backedPool) Ask(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	if p.AllDown() {
		to = &fallbackQuery{pool: p, query: q, until: until, to: to}
		now := time.Now()
		until = now.Add(until.Sub(now) / 2)
	}
	p.Pool.Ask(q, until, to, batch)
}

// A fallbackQuery is a query whose upstreams are most likely down.
type fallbackQuery struct {
	pool  *backedPool
	query []byte
	until time.Time
	to    wire.AnswerReceiver
	cause error // why its upstreams failed; nil: they are being asked
}

// Answered implements [wire.AnswerReceiver], for the upstreams first and then for the fallback.
func (q *fallbackQuery) Answered(answer []byte, err error, batch *wire.SendBatch) {
	f := q.pool.fallback
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
		until := time.Now().Add(fallbackTime)
		if until.After(q.until) {
			until = q.until
		}
		f.Ask(q.query, until, q, batch)
		return
	}
	q.to.Answered(answer, err, batch)
}

// admit reports whether one more query may be sent. Each that was admitted ends with
// inflight being lowered.
func (f *fallbackPool) admit() bool {
	if f.failures.Load() >= fallbackFailures && !f.retries.Allow() {
		return false
	}
	if f.inflight.Add(1) > fallbackInflight {
		f.inflight.Add(-1)
		return false
	}
	return true
}
