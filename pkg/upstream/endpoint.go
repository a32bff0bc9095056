// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// How latency becomes order and patience.
const (
	halving       = 5 * time.Second        // not asked for so long: counts as twice as fast
	minPenalty    = 100 * time.Millisecond // what a failure costs at least
	maxPenalty    = time.Second            // and at most
	unknownSRTT   = 100 * time.Millisecond // asked, but has not answered yet
	minPatience   = 150 * time.Millisecond
	maxPatience   = 800 * time.Millisecond
	patienceSRTTs = 4
)

// An endpoint is one upstream: an address, what is known about it, and its
// connections.
type endpoint struct {
	*common
	network string
	addr    netip.AddrPort
	count   counters
	streams streams
	failing atomic.Bool // the latest tries failed

	mu     sync.Mutex    // guards the fields below
	srtt   time.Duration // 0: not known yet
	asked  time.Time     // when last
	slowed time.Time     // when a failure last counted
	good   time.Time     // when an answer last came
}

func newEndpoint(c *common, network string, addr netip.AddrPort) *endpoint {
	e := &endpoint{common: c, network: network, addr: addr}
	e.streams.common, e.streams.addr, e.streams.count = c, addr, &e.count
	return e
}

// An answer is a checked message: it answers the query and is well formed.
type answer struct {
	msg   []byte // owned by the receiver
	rcode uint16
	edns  bool // has an OPT record
}

// An outcome is what became of a try. Exactly one of answer and err is not nil.
type outcome struct {
	answer []byte
	cause  Cause // with err
	rcode  uint16
	edns   bool
	err    error
}

func (o *outcome) reason() Reason {
	switch {
	case errors.Is(o.err, errRcode):
		return Rcode
	case errors.Is(o.err, errMalformed):
		return Malformed
	case o.cause == CauseTimeout:
		return Timeout
	}
	return Network
}

// A standing is what an upstream's past makes of it.
type standing struct {
	score    time.Duration // its place in the order, lower is better
	patience time.Duration // how long a try may be silent before the next one starts
	due      bool          // not asked for so long that the score may be wrong
}

// standing says how good the upstream is. One that nobody has asked yet comes
// first, so that each is measured; from then on the one query that finds it due
// again also makes it wait for its next turn.
func (e *endpoint) standing(now time.Time) standing {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.asked.IsZero() {
		return standing{patience: unknownSRTT * patienceSRTTs}
	}
	srtt := e.srtt
	if srtt == 0 {
		srtt = unknownSRTT
	}
	halvings := e.halvingsLocked(now)
	return standing{
		score:    srtt >> halvings,
		patience: min(max(patienceSRTTs*srtt, minPatience), maxPatience),
		due:      halvings > 0,
	}
}

// hopeful tells whether a query may be expected to be answered.
func (e *endpoint) hopeful() bool { return !e.failing.Load() }

func (e *endpoint) halvingsLocked(now time.Time) int {
	return int(min(max(now.Sub(e.asked), 0)/halving, 40)) // 40: hardly any duration is left
}

// try asks once and books how it went.
func (e *endpoint) try(ctx context.Context, q []byte, patience time.Duration, conns *atomic.Int32) outcome {
	e.count.requests.Add(1)
	start := e.now()
	stale := e.begin(start)
	a, rtt, err := e.ask(ctx, q, conns)
	switch {
	case err == nil && (a.rcode == wire.RcodeSuccess || a.rcode == wire.RcodeNXDomain):
		e.measured(start.Add(rtt), rtt, stale)
		return outcome{answer: a.msg}
	case err == nil: // no measure of speed: a server that refuses all is quick at it
		e.failing.Store(false)
		cause := rcodeCause(a.rcode)
		e.count.failures[cause].Add(1)
		return outcome{cause: cause, rcode: a.rcode, edns: a.edns, err: errRcode}
	case ctx.Err() != nil:
		if e.now().Sub(start) >= patience {
			e.count.failures[CauseTimeout].Add(1)
			e.failed(start)
		}
		return outcome{cause: CauseTimeout, err: err}
	}
	cause := errorCause(err)
	if cause != CauseMalformed { // that one is counted where it is seen
		e.count.failures[cause].Add(1)
	}
	if cause != CauseLimit {
		e.failed(start)
	}
	return outcome{cause: cause, err: err}
}

// ask gets one checked answer and says how long it took. What comes truncated
// over UDP is asked for again over TCP; the time is then that of UDP.
func (e *endpoint) ask(ctx context.Context, q []byte, conns *atomic.Int32) (answer, time.Duration, error) {
	start := e.now()
	if e.network == "tcp" {
		a, err := e.streams.ask(ctx, q, conns)
		return a, e.now().Sub(start), err
	}
	a, truncated, err := e.askUDP(ctx, q)
	rtt := e.now().Sub(start)
	if truncated {
		e.count.truncated.Add(1)
		a, err = e.streams.ask(ctx, q, conns)
	}
	return a, rtt, err
}

// begin notes that the upstream is asked now. stale tells that it was not for
// long, so that the next measurement replaces what was known before.
func (e *endpoint) begin(now time.Time) (stale bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	stale = e.halvingsLocked(now) > 0
	if now.After(e.asked) {
		e.asked = now
	}
	return stale
}

// measured takes a round trip, ended now, into the smoothed one (RFC 6298
// section 2.3).
func (e *endpoint) measured(now time.Time, rtt time.Duration, stale bool) {
	rtt = max(rtt, 1) // 0 means unknown
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failing.Store(false)
	e.good = now
	if e.srtt == 0 || stale {
		e.srtt = rtt
		return
	}
	e.srtt = max(e.srtt+(rtt-e.srtt)/8, 1)
}

// failed makes the upstream slower after a try, begun at start, that ended in
// silence or a network error. Tries that ran side by side tell of the same
// fault and count once.
func (e *endpoint) failed(start time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if start.Before(e.slowed) {
		return
	}
	if !start.Before(e.good) { // else it was only this query that failed
		e.failing.Store(true)
	}
	e.srtt = max(e.srtt, min(max(2*e.srtt, minPenalty), maxPenalty))
	e.slowed = e.now()
}
