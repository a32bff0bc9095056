// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/status"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/wire"
)

// centralEndpoints passes the central resolver's endpoints to the pool that asks them, marked by whether they
// are in this node's topology zone. Endpoints and zone are learned separately, and both may change.
type centralEndpoints struct {
	endpoints *upstream.Endpoints

	mu         sync.Mutex // guards the fields below, and orders the calls of Set
	known      bool       // the endpoints are known
	ready      []watch.Server
	own        []netip.AddrPort // the service's addresses
	restoredAt time.Time        // when a snapshot's endpoints were current; zero: confirmed by the watch
	zone       string           // of this node; empty: none, or unknown
}

// set stores endpoints that the watch reported.
func (n *centralEndpoints) set(ready []watch.Server, own []netip.AddrPort) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known, n.ready, n.own, n.restoredAt = true, ready, own, time.Time{}
	n.setLocked()
}

// setZone stores the zone of this node.
func (n *centralEndpoints) setZone(zone string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.zone == zone {
		return
	}
	n.zone = zone
	if n.known {
		n.setLocked()
	}
}

func (n *centralEndpoints) setLocked() {
	ready := make([]upstream.Server, 0, len(n.ready))
	for _, s := range n.ready {
		ready = append(ready, upstream.Server{Addr: s.Addr, Far: far(s, n.zone)})
	}
	own := make([]upstream.Server, 0, len(n.own))
	for _, addr := range n.own {
		own = append(own, upstream.Server{Addr: addr})
	}
	n.endpoints.Set(ready, own)
}

// far reports whether an endpoint is known to be in another zone.
func far(s watch.Server, zone string) bool { return zone != "" && s.Zone != "" && s.Zone != zone }

// addresses returns the addresses of servers, in their order.
func addresses(servers []watch.Server) []netip.AddrPort {
	list := make([]netip.AddrPort, 0, len(servers))
	for _, s := range servers {
		list = append(list, s.Addr)
	}
	return list
}

// centralVersion is the version of the records of dumpCentral. The records are text: the service's name, the
// age of the data in ns, and then addresses. An endpoint's address is followed by a space and its topology
// zone; a service address stands alone.
const centralVersion = 1

var errCentral = errors.New("invalid record")

// dumpCentral emits the last known addresses of the central resolver's service, nothing if there are none.
func dumpCentral(r *generation, now time.Time, emit func([]byte) error) error {
	if r.cluster.centralEndpoints == nil {
		return nil
	}
	ready, own, age, known := r.cluster.centralEndpoints.lastKnown(now)
	if !known {
		return nil
	}
	records := []string{centralScope(r), strconv.FormatInt(int64(age), 10)}
	for _, s := range ready {
		records = append(records, s.Addr.String()+" "+s.Zone)
	}
	for _, addr := range own {
		records = append(records, addr.String())
	}
	for _, record := range records {
		if err := emit([]byte(record)); err != nil {
			return err
		}
	}
	return nil
}

// centralScope names the service and its cluster.
func centralScope(r *generation) string {
	c := &r.config.Cluster
	return c.Central.Service.String() + " of " + r.cluster.sourceName(c)
}

// readCentral reads the records of dumpCentral. The returned function makes the central resolver's pool use
// them until the watch reports endpoints. It does nothing if the records are of another service or older than
// most.
func readCentral(r *generation, records iter.Seq[[]byte], passed, most time.Duration, now time.Time) (use func(), err error) {
	use = func() {}
	lines := make([]string, 0, 8)
	for record := range records {
		lines = append(lines, string(record))
	}
	if len(lines) == 0 || r.cluster.centralEndpoints == nil || lines[0] != centralScope(r) {
		return use, nil
	}
	if len(lines) == 1 {
		return nil, errCentral
	}
	age, err := strconv.ParseUint(lines[1], 10, 62)
	if err != nil {
		return nil, errCentral
	}
	var ready []watch.Server
	var own []netip.AddrPort
	for _, line := range lines[2:] {
		text, zone, endpoint := strings.Cut(line, " ")
		addr, err := netip.ParseAddrPort(text)
		switch {
		case err != nil:
			return nil, errCentral
		case endpoint:
			ready = append(ready, watch.Server{Addr: addr, Zone: zone})
		default:
			own = append(own, addr)
		}
	}
	if time.Duration(age) > most-passed {
		return use, nil
	}
	return func() { r.cluster.centralEndpoints.restore(ready, own, now.Add(-time.Duration(age)-passed)) }, nil
}

// lastKnown returns the latest endpoints and their age. The age is zero once the watch has confirmed them.
func (n *centralEndpoints) lastKnown(now time.Time) (ready []watch.Server, own []netip.AddrPort, age time.Duration, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.restoredAt.IsZero() {
		age = max(0, now.Sub(n.restoredAt))
	}
	return slices.Clone(n.ready), slices.Clone(n.own), age, n.known
}

// restore stores the endpoints of a snapshot, unless the watch has reported some.
func (n *centralEndpoints) restore(ready []watch.Server, own []netip.AddrPort, since time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known {
		return
	}
	n.known, n.ready, n.own, n.restoredAt = true, ready, own, since
	n.setLocked()
}

// topologyZone returns the zone of this node, "" if it is unknown.
func (c *cluster) topologyZone(setting string) string {
	if setting != "auto" {
		return setting
	}
	if learned := c.nodeZone.Load(); learned != nil {
		return *learned
	}
	return os.Getenv("NODE_ZONE")
}

// The API server is asked for this node's topology zone at these intervals. The wait doubles because a
// missing permission is rarely granted soon, and clusters have many nodes.
const (
	zoneRetry      = 30 * time.Second
	zoneRetryLimit = 16 * time.Minute // after doubling
)

// watchNodeZone asks the API server for this node's topology zone until it is known. Then the zone and the
// choice of central endpoints use it.
func (a *Agent) watchNodeZone(ctx context.Context) {
	for wait := zoneRetry; ; {
		r := a.running.Load()
		if w, ok := r.zoneWatch(); ok {
			name, err := w.NodeZone(ctx)
			if err == nil {
				r.cluster.nodeZone.Store(&name)
				a.log.InfoContext(ctx, "topology zone found", "zone", cmp.Or(name, "none"))
				_, _ = a.request(ctx, &request{replan: true}) // an error is logged
				wait = zoneRetry
			} else {
				a.log.DebugContext(ctx, "reading topology zone failed", "err", err)
				wait = min(2*wait, zoneRetryLimit)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// zoneWatch returns the watch that can read this node's topology zone, if the zone is needed.
func (r *generation) zoneWatch() (*watch.Watch, bool) {
	c := r.cluster
	if r.config.Cluster.NodeZone != "auto" || os.Getenv("NODE_ZONE") != "" || os.Getenv("NODE_NAME") == "" {
		return nil, false
	}
	w, ok := c.source.(*watch.Watch)
	return w, ok && c.nodeZone.Load() == nil && (c.store != nil || c.central != nil && c.centralEndpoints != nil)
}

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
	case r.cluster.endpoints != nil:
		c.Endpoints, f.service = r.cluster.endpoints, cfg.Cluster.Central.Service.String()
	default:
		for _, addr := range cfg.Cluster.Central.Addresses {
			c.Targets = append(c.Targets, upstream.Target{Network: "tcp", Addr: addr})
		}
	}
	if c.Endpoints == nil && len(c.Targets) == 0 {
		return nil, nil //nolint:nilnil // likewise
	}
	if old.fallback != nil && sameFallback(r, old) {
		return old.fallback, nil
	}
	c.LoopDetector, c.Zone, c.Dial, c.Mark, c.Log = a.loops, []byte{0}, a.options.Dial, mark(cfg), a.log.With("zone", status.FallbackZone)
	listen := cfg.Listen
	c.Self = func(addr netip.AddrPort) bool { return isOwnListener(addr, listen) }
	var err error
	f.Pool, err = upstream.New(c)
	if errors.Is(err, upstream.ErrNoUpstream) {
		return nil, nil //nolint:nilnil // likewise
	}
	return f, err
}

// sameFallback reports whether old's fallback asks the same servers as r's.
func sameFallback(r, old *generation) bool {
	return reflect.DeepEqual(r.config.Intercept.Fallback, old.config.Intercept.Fallback) &&
		reflect.DeepEqual(r.config.Cluster.Central, old.config.Cluster.Central) && r.cluster.endpoints == old.cluster.endpoints
}

// upstreamOf returns the upstream of a route: its pool, and the fallback while all of the pool's upstreams are
// down. A route over TLS has no fallback: an attacker who cuts connections must not get the queries in plain
// text.
func (r *generation) upstreamOf(route route) resolve.Asker {
	encrypted := func(to config.Target) bool { return to.Kind == config.TLS || to.Kind == config.HTTPS }
	if r.fallback == nil || route.NoFallback || slices.ContainsFunc(route.To, encrypted) {
		return route.pool
	}
	return &backedPool{Pool: route.pool, fallback: r.fallback}
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
func (q *fallbackQuery) Answered(answer *wire.Message, err error, batch *wire.SendBatch) {
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
