// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

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
	return d - d/part + rand.N(2*d/part)
}
