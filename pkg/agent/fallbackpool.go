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

// Every node asks the same few servers, which may have failed together with the upstreams.
const (
	fallbackInflight = 32              // queries in flight, over all routes
	fallbackTime     = 2 * time.Second // timeout
	fallbackFailures = 8               // failures in a row before retries are limited
	fallbackRetries  = 5               // queries per second after fallbackFailures
)

// A fallbackPool asks the servers of intercept.fallback while all upstreams of a route are down.
type fallbackPool struct {
	*upstream.Pool
	service  string        // "namespace/name" of the endpoints; empty: configured addresses
	inflight atomic.Int32  // queries in flight
	failures atomic.Uint32 // in a row
	retries  *rate.Limiter // applies after fallbackFailures
}

// fallbackFor returns the pool of intercept.fallback: old's if its servers are the same, nil if no route uses
// it or no server is known.
func (a *Agent) fallbackFor(r, old *generation) (*fallbackPool, error) {
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
	c.Self = func(addr netip.AddrPort) bool { return isOwnListener(addr, listen) }
	var err error
	f.Pool, err = upstream.New(c)
	if errors.Is(err, upstream.ErrNoUpstream) {
		return nil, nil //nolint:nilnil // likewise
	}
	return f, err
}

// fallbackZone is the zone label of the fallback in status and metrics. No route's zone has this form.
const fallbackZone = "fallback"

// sameFallback reports whether old's fallback asks the same servers as r's.
func sameFallback(r, old *generation) bool {
	endpoints := func(r *generation) *upstream.Endpoints {
		if r.cluster == nil {
			return nil
		}
		return r.cluster.endpoints
	}
	return reflect.DeepEqual(r.config.Intercept.Fallback, old.config.Intercept.Fallback) &&
		reflect.DeepEqual(r.config.Cluster.Central, old.config.Cluster.Central) && endpoints(r) == endpoints(old)
}

// behind returns the upstream of a route: its pool, and f while all of the pool's upstreams are down. A route
// over TLS has no fallback: an attacker who cuts connections must not get the queries in plain text.
func (f *fallbackPool) behind(route route) resolve.Asker {
	encrypted := func(to config.Target) bool { return to.Kind == config.TLS || to.Kind == config.HTTPS }
	if f == nil || route.NoFallback || slices.ContainsFunc(route.To, encrypted) {
		return route.pool
	}
	return &backedPool{Pool: route.pool, fallback: f}
}

// A backedPool is a route's pool with a fallback.
type backedPool struct {
	*upstream.Pool
	fallback *fallbackPool
}

// Ask implements [resolve.Asker]. While all upstreams are expected to fail, they get half the time, so that
// some is left for the fallback. Upstreams known to be down fail at once.
func (p *backedPool) Ask(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	if p.AllDown() {
		to = &fallbackQuery{pool: p, query: q, until: until, to: to}
		now := time.Now()
		until = now.Add(until.Sub(now) / 2)
	}
	p.Pool.Ask(q, until, to, batch)
}

// A fallbackQuery is a query whose upstreams are probably down.
type fallbackQuery struct {
	pool  *backedPool
	query []byte
	until time.Time
	to    wire.AnswerReceiver
	cause error // why its upstreams failed; nil: they have not answered yet
}

// Answered implements [wire.AnswerReceiver], first for the upstreams and then for the fallback.
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

// admit reports whether one more query may be sent. Each admitted query decrements inflight when it ends.
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
