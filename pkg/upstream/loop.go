// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"crypto/rand"
	"io"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// How long a query of ours may be on its way back.
const (
	loopProbeTTL  = 30 * time.Second // from sending one; what comes back later is taken for anybody's
	maxLoopProbes = 4096             // remembered at once; the oldest are forgotten beyond
)

// Loops finds upstreams that lead back to this process, however many resolvers are on the way: it has each asked now
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

// NewLoops makes a Loops without a probe. random gives names; nil: crypto/rand. now is the clock; nil: time.Now.
func NewLoopDetector(random io.Reader, now func() time.Time) *LoopDetector {
	if random == nil {
		random = rand.Reader
	}
	if now == nil {
		now = time.Now //nolint:forbidigo // the default of an injected clock
	}
	return &LoopDetector{rand: random, now: now, sent: make(map[string]loopProbe)}
}

// Came tells whether a name, canonical and in wire form, is that of a query sent from here within half a minute. The
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
