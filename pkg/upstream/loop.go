// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"crypto/rand"
	"io"
	mathrand "math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// How long a query of ours may be on its way back.
const (
	loopProbeTTL  = 30 * time.Second // from sending one; what comes back later is taken for anybody's
	maxLoopProbes = 4096             // remembered at once; the oldest are forgotten beyond
)

// LoopDetector finds upstreams that lead back to this process, however many resolvers are on the way: it has each asked now
// and then for a name that nobody else can know, and is told when a query for one comes in. One Loops serves all pools
// of a process, so that it does not matter at which route the query arrives. Its methods may be called from any
// goroutine.
type LoopDetector struct {
	rand io.Reader
	now  func() time.Time

	mu    sync.Mutex // guards the fields below
	sent  map[string]loopProbe
	order []string // the names of sent, the oldest first
}

// A loopProbe is one query that may come back.
type loopProbe struct {
	sentAt   time.Time // when it was sent
	onReturn func()    // told that it came back
}

// NewLoopDetector makes a LoopDetector without a probe. random gives names; nil: crypto/rand. now is the clock; nil: time.Now.
func NewLoopDetector(random io.Reader, now func() time.Time) *LoopDetector {
	if random == nil {
		random = rand.Reader
	}
	if now == nil {
		now = time.Now //nolint:forbidigo // the default of an injected clock
	}
	return &LoopDetector{rand: random, now: now, sent: make(map[string]loopProbe)}
}

// Detected reports whether a name, canonical and in wire form, is that of a query sent from here within half a minute. The
// upstream that it was sent to then counts as one that leads back.
func (d *LoopDetector) Detected(name []byte) bool {
	now := d.now()
	d.mu.Lock()
	p, ok := d.sent[string(name)]
	d.mu.Unlock()
	if !ok || now.Sub(p.sentAt) > loopProbeTTL {
		return false
	}
	p.onReturn()
	return true
}

// probe gives a query for a name of its own in the zone. When it comes back, back is called, from any goroutine and
// as often as it does. Nil: the zone's name is too long, or there is no randomness.
func (d *LoopDetector) probe(zone []byte, back func()) []byte {
	var nonce [wire.LoopNonce]byte
	if _, err := io.ReadFull(d.rand, nonce[:]); err != nil {
		return nil
	}
	query := append(make([]byte, 0, 12+255+4), 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0) // RD, one question
	query = wire.AppendLoopName(query, nonce, zone)
	if len(query) == 12 {
		return nil
	}
	name := string(query[12:])
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.evictLocked(now)
	d.sent[name] = loopProbe{now, back}
	d.order = append(d.order, name)
	return append(query, 0, byte(wire.TypeA), 0, byte(wire.ClassIN))
}

// forgetLocked makes room for one more probe.
func (d *LoopDetector) evictLocked(now time.Time) {
	old := 0
	for old < len(d.order) && (len(d.order)-old >= maxLoopProbes || now.Sub(d.sent[d.order[old]].sentAt) > loopProbeTTL) {
		delete(d.sent, d.order[old])
		old++
	}
	d.order = append(d.order[:0], d.order[old:]...)
}

// When an upstream is probed for a loop: at its first use, when the list has changed, and now and then. While it leads
// back it is not used, so a timer has it probed.
const (
	loopProbeInterval   = 5 * time.Minute  // while it is used, give or take a fifth
	loopRecheckInterval = 45 * time.Second // while it leads back, give or take a third
	loopProbeTimeout    = 5 * time.Second  // a probe that did not come back so soon will not
)

// A loopGuard finds out whether one upstream leads back to this process. It makes nobody wait: what goes round before
// the first probe is back is bounded by the deadline of its query. The zero value is not of use, and nil is a guard
// that never looks. Its methods may be called from any goroutine.
type loopMonitor struct {
	*common
	detector *LoopDetector
	zone     []byte // the names that the upstream is asked for, canonical
	network  string // of the upstream, for the log
	addr     netip.AddrPort
	send     func(query []byte) // sends a probe to the upstream, whatever is thought of it, and cares for no answer

	nextProbe atomic.Int64 // when use is to have a probe sent, in Unix ns
	looping   atomic.Bool  // it leads back

	mu       sync.Mutex // guards the fields below, and setting back
	latest   uint64     // number of the latest probe
	returned uint64     // of the latest that came back; 0: none
	timer    *time.Timer
	stopped  bool
}

// use notes that the upstream is about to be asked, and has it probed if that is due. It is as cheap as reading a
// variable when it is not.
func (m *loopMonitor) onQuery(now time.Time) {
	if m == nil || now.UnixNano() < m.nextProbe.Load() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.UnixNano() < m.nextProbe.Load() || m.looping.Load() || m.stopped {
		return
	}
	m.nextProbe.Store(now.Add(jitter(loopProbeInterval, 5)).UnixNano())
	m.scheduleLocked(0, m.probe)
}

// again has the next use probe: what is behind the upstream may have changed.
func (m *loopMonitor) recheck() {
	if m != nil {
		m.nextProbe.Store(0)
	}
}

// looped tells whether the upstream leads back, as far as is known.
func (m *loopMonitor) looped() bool { return m != nil && m.looping.Load() }

// stop ends all probing. What is on its way has no effect any more.
func (m *loopMonitor) stop() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = true
	if m.timer != nil {
		m.timer.Stop()
	}
}

// afterLocked has do called later, in place of what was to be called.
func (m *loopMonitor) scheduleLocked(wait time.Duration, do func()) {
	if m.timer != nil {
		m.timer.Stop()
	}
	m.timer = time.AfterFunc(wait, func() {
		defer m.recoverPanic(context.Background(), func() {})
		do()
	})
}

// probe sends one probe. While the upstream leads back, one that stays away clears it.
func (m *loopMonitor) probe() {
	m.mu.Lock()
	if m.stopped {
		m.mu.Unlock()
		return
	}
	m.latest++
	number := m.latest
	if m.looping.Load() {
		m.scheduleLocked(loopProbeTimeout, func() { m.probeExpired(number) })
	}
	m.mu.Unlock()
	if query := m.detector.probe(m.zone, func() { m.probeReturned(number) }); query != nil {
		m.send(query)
	}
}

// cameBack takes note of a probe that came back.
func (m *loopMonitor) probeReturned(number uint64) {
	m.mu.Lock()
	if m.stopped || number <= m.returned {
		m.mu.Unlock()
		return
	}
	m.returned = number
	found := !m.looping.Swap(true)
	m.scheduleLocked(jitter(loopRecheckInterval, 3), m.probe)
	m.mu.Unlock()
	if found {
		m.log.Warn("upstream left out: a query to it came back here", "upstream", m.network+"://"+m.addr.String())
	}
}

// stayedAway takes note of a probe that did not come back in time.
func (m *loopMonitor) probeExpired(number uint64) {
	m.mu.Lock()
	cleared := !m.stopped && number > m.returned
	if cleared {
		m.looping.Store(false)
		m.nextProbe.Store(0) // it may stay away because another resolver in the loop has left us out, and now takes us back too
	}
	m.mu.Unlock()
	if cleared {
		m.log.Info("upstream taken back: queries to it no longer come back here", "upstream", m.network+"://"+m.addr.String())
	}
}

// around is a duration within a part of d, so that many processes do not act at the same time.
func jitter(d, part time.Duration) time.Duration {
	return d - d/part + mathrand.N(2*d/part)
}
