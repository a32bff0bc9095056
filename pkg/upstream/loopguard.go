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
	loopEvery    = 5 * time.Minute  // while it is used, give or take a fifth
	loopAgain    = 45 * time.Second // while it leads back, give or take a third
	loopPatience = 5 * time.Second  // a probe that did not come back so soon will not
)

// A loopGuard finds out whether one upstream leads back to this process. It makes nobody wait: what goes round before
// the first probe is back is bounded by the deadline of its query. The zero value is not of use, and nil is a guard
// that never looks. Its methods may be called from any goroutine.
type loopGuard struct {
	*common
	loops   *Loops
	zone    []byte // the names that the upstream is asked for, canonical
	network string // of the upstream, for the log
	addr    netip.AddrPort
	send    func(query []byte) // sends a probe to the upstream, whatever is thought of it, and cares for no answer

	next atomic.Int64 // when use is to have a probe sent, in Unix ns
	back atomic.Bool  // it leads back

	mu      sync.Mutex // guards the fields below, and setting back
	latest  uint64     // number of the latest probe
	came    uint64     // of the latest that came back; 0: none
	pending *time.Timer
	ended   bool
}

// use notes that the upstream is about to be asked, and has it probed if that is due. It is as cheap as reading a
// variable when it is not.
func (g *loopGuard) use(now time.Time) {
	if g == nil || now.UnixNano() < g.next.Load() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.UnixNano() < g.next.Load() || g.back.Load() || g.ended {
		return
	}
	g.next.Store(now.Add(around(loopEvery, 5)).UnixNano())
	g.afterLocked(0, g.probe)
}

// again has the next use probe: what is behind the upstream may have changed.
func (g *loopGuard) again() {
	if g != nil {
		g.next.Store(0)
	}
}

// looped tells whether the upstream leads back, as far as is known.
func (g *loopGuard) looped() bool { return g != nil && g.back.Load() }

// stop ends all probing. What is on its way has no effect any more.
func (g *loopGuard) stop() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	if g.pending != nil {
		g.pending.Stop()
	}
}

// afterLocked has do called later, in place of what was to be called.
func (g *loopGuard) afterLocked(wait time.Duration, do func()) {
	if g.pending != nil {
		g.pending.Stop()
	}
	g.pending = time.AfterFunc(wait, func() {
		defer g.recovered(context.Background(), func() {})
		do()
	})
}

// probe sends one probe. While the upstream leads back, one that stays away clears it.
func (g *loopGuard) probe() {
	g.mu.Lock()
	if g.ended {
		g.mu.Unlock()
		return
	}
	g.latest++
	number := g.latest
	if g.back.Load() {
		g.afterLocked(loopPatience, func() { g.stayedAway(number) })
	}
	g.mu.Unlock()
	if query := g.loops.probe(g.zone, func() { g.cameBack(number) }); query != nil {
		g.send(query)
	}
}

// cameBack takes note of a probe that came back.
func (g *loopGuard) cameBack(number uint64) {
	g.mu.Lock()
	if g.ended || number <= g.came {
		g.mu.Unlock()
		return
	}
	g.came = number
	found := !g.back.Swap(true)
	g.afterLocked(around(loopAgain, 3), g.probe)
	g.mu.Unlock()
	if found {
		g.log.Warn("upstream left out: a query to it came back here", "upstream", g.network+"://"+g.addr.String())
	}
}

// stayedAway takes note of a probe that did not come back in time.
func (g *loopGuard) stayedAway(number uint64) {
	g.mu.Lock()
	cleared := !g.ended && number > g.came
	if cleared {
		g.back.Store(false)
		g.next.Store(0) // it may stay away because another resolver in the loop has left us out, and now takes us back too
	}
	g.mu.Unlock()
	if cleared {
		g.log.Info("upstream taken back: queries to it no longer come back here", "upstream", g.network+"://"+g.addr.String())
	}
}

// around is a duration within a part of d, so that many processes do not act at the same time.
func around(d, part time.Duration) time.Duration {
	return d - d/part + rand.N(2*d/part)
}
