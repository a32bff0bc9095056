// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/pkg/config"
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

// setLocked marks an endpoint as far if it is known to be in another zone.
func (n *centralEndpoints) setLocked() {
	ready := make([]upstream.Server, 0, len(n.ready))
	for _, s := range n.ready {
		ready = append(ready, upstream.Server{Addr: s.Addr, Far: n.zone != "" && s.Zone != "" && s.Zone != n.zone})
	}
	own := make([]upstream.Server, 0, len(n.own))
	for _, addr := range n.own {
		own = append(own, upstream.Server{Addr: addr})
	}
	n.endpoints.Set(ready, own)
}

// confirmed returns the endpoints and the service's own addresses as the watch reported them, none before.
func (n *centralEndpoints) confirmed() (ready, own []netip.AddrPort) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.restoredAt.IsZero() {
		return nil, nil
	}
	return addresses(n.ready), slices.Clone(n.own)
}

// addresses returns the addresses of servers, in their order.
func addresses(servers []watch.Server) []netip.AddrPort {
	list := make([]netip.AddrPort, 0, len(servers))
	for _, s := range servers {
		list = append(list, s.Addr)
	}
	return list
}

// centralVersion is the version of the records of dump. The records are text: the scope, the age of the data
// in ns, and then addresses. An endpoint's address is followed by a space and its topology zone; a service
// address stands alone.
const centralVersion = 1

var errCentral = errors.New("invalid record")

// dump emits the latest endpoints, nothing if there are none. The scope names the service and its cluster.
// Endpoints that the watch has confirmed have the age zero.
func (n *centralEndpoints) dump(scope string, now time.Time, emit func([]byte) error) error {
	n.mu.Lock()
	known, age := n.known, time.Duration(0)
	if !n.restoredAt.IsZero() {
		age = max(0, now.Sub(n.restoredAt))
	}
	records := append(make([]string, 0, 2+len(n.ready)+len(n.own)), scope, strconv.FormatInt(int64(age), 10))
	for _, s := range n.ready {
		records = append(records, s.Addr.String()+" "+s.Zone)
	}
	for _, addr := range n.own {
		records = append(records, addr.String())
	}
	n.mu.Unlock()
	if !known {
		return nil
	}
	for _, record := range records {
		if err := emit([]byte(record)); err != nil {
			return err
		}
	}
	return nil
}

// read reads the records of dump. The returned function makes the central resolver's pool use them until the
// watch reports endpoints. It does nothing if the records are of another scope or older than most.
func (n *centralEndpoints) read(scope string, records iter.Seq[[]byte], passed, most time.Duration, now time.Time) (use func(), err error) {
	use = func() {}
	lines := make([]string, 0, 8)
	for record := range records {
		lines = append(lines, string(record))
	}
	if len(lines) == 0 || lines[0] != scope {
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
	return func() { n.restore(ready, own, now.Add(-time.Duration(age)-passed)) }, nil
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

// newFallback returns the pool of intercept.fallback, nil if no server is known. The endpoints are those of the
// central resolver's service; nil: not watched.
func (b *builder) newFallback(cfg *config.Config, endpoints *upstream.Endpoints) (*fallbackPool, error) {
	c := b.poolConfig(cfg, []byte{0}, status.FallbackZone)
	f := &fallbackPool{retries: rate.NewLimiter(fallbackRetries, 1)}
	switch {
	case !cfg.Intercept.Fallback.Central:
		c.Targets = tcpTargets(cfg.Intercept.Fallback.Addresses)
	case endpoints != nil:
		c.Endpoints, f.service = endpoints, cfg.Cluster.Central.Service.String()
	default:
		c.Targets = tcpTargets(cfg.Cluster.Central.Addresses)
	}
	if c.Endpoints == nil && len(c.Targets) == 0 {
		return nil, nil //nolint:nilnil // no fallback is no mistake
	}
	var err error
	f.Pool, err = upstream.New(c)
	if errors.Is(err, upstream.ErrNoUpstream) {
		return nil, nil //nolint:nilnil // likewise
	}
	return f, err
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
