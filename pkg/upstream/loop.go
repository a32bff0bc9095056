// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"context"
	"crypto/rand"
	"io"
	"math"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Bounds of loop probes.
const (
	loopProbeTTL  = 30 * time.Second // a probe that returns later is treated as a client's query
	maxLoopProbes = 4096             // probes remembered at once; beyond it none is sent
)

// LoopDetector finds upstreams that send queries back to this process, through any number of resolvers. It sends each
// upstream a query with a random name from time to time, and recognizes the name if it comes in. All pools of a
// process share one, as the query may return on any route. Its methods are safe for concurrent use.
type LoopDetector struct {
	rand io.Reader

	mu   sync.Mutex        // guards sent
	sent map[string]func() // by the name of a probe: the function to call if it returns
}

// NewLoopDetector makes a LoopDetector without probes. random is the source of names; nil: crypto/rand.
func NewLoopDetector(random io.Reader) *LoopDetector {
	return &LoopDetector{rand: cmp.Or(random, rand.Reader), sent: map[string]func(){}}
}

// Detected reports whether name, canonical and in wire form, is that of a probe of the last 30 s. If so, the upstream
// that the probe was sent to counts as a loop.
func (d *LoopDetector) Detected(name []byte) bool {
	d.mu.Lock()
	onReturn := d.sent[string(name)]
	d.mu.Unlock()
	if onReturn == nil {
		return false
	}
	onReturn()
	return true
}

// probe returns a query for a random name below zone. When it returns, onReturn is called, from any goroutine and
// possibly more than once. The result is nil if the zone's name is too long, too many probes may still return, or there
// is no randomness.
func (d *LoopDetector) probe(zone []byte, onReturn func()) []byte {
	var nonce [wire.LoopNonce]byte
	if _, err := io.ReadFull(d.rand, nonce[:]); err != nil {
		return nil
	}
	query := append(make([]byte, 0, 12+255+4), 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0) // RD, one question
	query = wire.AppendLoopName(query, nonce, zone)
	name := string(query[12:])
	d.mu.Lock()
	defer d.mu.Unlock()
	if name == "" || len(d.sent) == maxLoopProbes {
		return nil
	}
	d.sent[name] = onReturn
	time.AfterFunc(loopProbeTTL, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.sent, name)
	})
	return append(query, 0, byte(wire.TypeA), 0, byte(wire.ClassIN))
}

// An upstream is probed for a loop at its first use, after the list has changed, and from time to time. A looping
// upstream gets no queries, so a timer probes it.
const (
	loopProbeInterval   = 5 * time.Minute  // while in use, ±20%
	loopRecheckInterval = 45 * time.Second // while looping, ±33%
	loopProbeTimeout    = 5 * time.Second  // a looping upstream is cleared if its probe has not returned by then
)

// A loopMonitor finds out whether one upstream leads back to this process. No query waits for it: until the first
// probe has returned, the query's deadline bounds the loop. Its methods are safe for concurrent use.
type loopMonitor struct {
	*common
	upstream string             // for the log
	send     func(query []byte) // sends a probe to the upstream, whatever its state, and ignores the answer

	nextProbe atomic.Int64 // time from which a query starts a probe, in Unix ns
	looping   atomic.Bool  // the upstream leads back here

	mu       sync.Mutex // guards the fields below, and changes of looping
	latest   uint64     // number of the latest probe
	returned uint64     // number of the latest probe that returned; 0: none
	timer    *time.Timer
	stopped  bool
}

// newLoopMonitor makes a monitor, which never probes without a LoopDetector.
func newLoopMonitor(c *common, upstream string, send func(query []byte)) *loopMonitor {
	m := &loopMonitor{common: c, upstream: upstream, send: send}
	m.recheck()
	return m
}

// probeDue starts a probe if nextProbe has passed and the upstream is not looping. Queries call it.
func (m *loopMonitor) probeDue(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.UnixNano() < m.nextProbe.Load() || m.looping.Load() || m.stopped {
		return
	}
	m.nextProbe.Store(now.Add(jitter(loopProbeInterval, 5)).UnixNano())
	m.scheduleLocked(0, m.probe)
}

// recheck makes the next query start a probe: the server behind the address may have changed. Without a LoopDetector none starts.
func (m *loopMonitor) recheck() {
	if m.LoopDetector == nil {
		m.nextProbe.Store(math.MaxInt64)
		return
	}
	m.nextProbe.Store(0)
}

// stop ends all probing. Probes under way have no effect any more.
func (m *loopMonitor) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = true
	if m.timer != nil {
		m.timer.Stop()
	}
}

// scheduleLocked calls do after wait, instead of what was scheduled before.
func (m *loopMonitor) scheduleLocked(wait time.Duration, do func()) {
	if m.timer != nil {
		m.timer.Stop()
	}
	m.timer = time.AfterFunc(wait, func() {
		defer m.recoverPanic(context.Background(), func() {})
		do()
	})
}

// probe sends one probe. A looping upstream is cleared if the probe does not return within loopProbeTimeout.
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
	if query := m.LoopDetector.probe(m.Zone, func() { m.probeReturned(number) }); query != nil {
		m.send(query)
	}
}

// probeReturned handles a probe that has returned.
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
		m.Log.Debug("upstream loop detected", "upstream", m.upstream)
	}
}

// probeExpired handles a probe that has not returned in time.
func (m *loopMonitor) probeExpired(number uint64) {
	m.mu.Lock()
	cleared := !m.stopped && number > m.returned
	if cleared {
		m.looping.Store(false)
		m.nextProbe.Store(0) // the next query starts a probe: another resolver in the loop may have excluded this process for now
	}
	m.mu.Unlock()
	if cleared {
		m.Log.Debug("upstream loop cleared", "upstream", m.upstream)
	}
}

// jitter returns a random duration in d ± d/part, so that many processes do not act at the same time.
func jitter(d, part time.Duration) time.Duration {
	return d - d/part + mathrand.N(2*d/part)
}
