// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/wire"
)

// An Action is what becomes of a query.
type Action uint8

// The actions.
const (
	Answer    Action = iota // answered by Fast
	Later                   // missed, answered after Rule.After on another goroutine
	Hold                    // missed, answered by Release
	Inline                  // missed, answered within Slow
	Silence                 // missed, ended within Slow without a reply
	Stream                  // missed, answered by Rule.Count messages on another goroutine
	Drop                    // dropped by Fast
	Panic                   // Fast panics
	PanicSlow               // missed, then Slow panics
)

// A Rule says what becomes of the queries for one name.
type Rule struct {
	Action Action
	After  time.Duration // of Later
	Count  int           // of Stream
	Size   int           // the reply is filled up to so many octets; 0: as long as the query
}

// A Handler is a server.Handler that follows rules. It is safe for use by many
// goroutines.
type Handler struct {
	mu       sync.Mutex // guards the fields below
	changed  *sync.Cond // a query was held
	rules    map[string]Rule
	held     map[string][]heldQuery
	seen     map[string]int
	sent     map[string]int
	peers    map[wire.Peer]int
	lanes    int
	flushes  int
	breaches []string
	running  sync.WaitGroup // answers due Later and streams
}

type heldQuery struct {
	reply []byte
	to    wire.Replier
}

// New returns a handler with rules by lower-case name. A name without a rule is
// answered at once.
func New(rules map[string]Rule) *Handler {
	h := &Handler{
		rules: maps.Clone(rules),
		held:  make(map[string][]heldQuery),
		seen:  make(map[string]int),
		sent:  make(map[string]int),
		peers: make(map[wire.Peer]int),
	}
	h.changed = sync.NewCond(&h.mu)
	return h
}

// Release answers the queries held for name, oldest first, on the caller's
// goroutine. It returns how many there were.
func (h *Handler) Release(name string) int {
	h.mu.Lock()
	queries := h.held[name]
	delete(h.held, name)
	h.mu.Unlock()
	var later wire.Later
	defer later.Flush()
	for _, q := range queries {
		q.to.Reply(q.reply, &later)
	}
	return len(queries)
}

// AwaitHeld waits until n queries for name are held.
func (h *Handler) AwaitHeld(name string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.held[name]) < n {
		h.changed.Wait()
	}
}

// Held returns how many queries for name are held.
func (h *Handler) Held(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.held[name])
}

// Seen returns how many queries for name came.
func (h *Handler) Seen(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen[name]
}

// Sent returns how many messages of streams for name were taken.
func (h *Handler) Sent(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sent[name]
}

// Peers returns how many queries came from each peer.
func (h *Handler) Peers() map[wire.Peer]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.peers)
}

// Lanes returns how many lanes were made.
func (h *Handler) Lanes() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lanes
}

// Flushes returns how often a lane was flushed.
func (h *Handler) Flushes() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.flushes
}

// Breaches returns how the server broke the contract of a lane, in words. It waits
// for the answers due Later and for the streams.
func (h *Handler) Breaches() []string {
	h.running.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.breaches)
}

func (h *Handler) breach(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.breaches = append(h.breaches, fmt.Sprintf(format, args...))
}

// NewLane implements server.Handler.
func (h *Handler) NewLane() server.Lane {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lanes++
	return &lane{handler: h}
}

// note records a query and returns its rule.
func (h *Handler) note(name string, from wire.Peer) Rule {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[name]++
	h.peers[from]++
	return h.rules[name]
}

// hold keeps a query for Release.
func (h *Handler) hold(name string, q heldQuery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held[name] = append(h.held[name], q)
	h.changed.Broadcast()
}

// stream sends reply count times, as far as it is taken, the last time to end the
// query. The fourth octet counts them.
func (h *Handler) stream(name string, reply []byte, count int, to wire.Replier) {
	var later wire.Later
	defer later.Flush()
	s, ok := to.(wire.Stream)
	if !ok {
		h.breach("Slow %s: the replier is no stream", name)
		to.Reply(nil, &later)
		return
	}
	for i := range count - 1 {
		reply[3] = byte(i)
		if !s.More(reply) {
			s.Reply(nil, &later)
			return
		}
		h.mu.Lock()
		h.sent[name]++
		h.mu.Unlock()
	}
	reply[3] = byte(count - 1)
	s.Reply(reply, &later)
}

// A lane checks, beside answering, that it is used as it may be.
type lane struct {
	handler *Handler
	busy    sync.Mutex // held during a call, so that two at once are seen
	missed  []byte     // the query Slow is owed for, as the server holds it
	copied  []byte     // the same query as it was in Fast
	rule    Rule
	later   wire.Later // of what Slow answered
}

func (l *lane) enter(call string) {
	if !l.busy.TryLock() {
		l.handler.breach("%s: the lane is in use by another goroutine", call)
		l.busy.Lock()
	}
}

// Fast implements server.Lane.
func (l *lane) Fast(pkt []byte, from *wire.Peer, _ time.Time, dst []byte) ([]byte, wire.Verdict) {
	l.enter("Fast")
	defer l.busy.Unlock()
	name := Name(pkt)
	if l.missed != nil {
		l.handler.breach("Fast %s: Slow is owed for %s", name, Name(l.copied))
	}
	l.rule = l.handler.note(name, *from)
	switch l.rule.Action {
	case Answer:
		return AppendReply(dst, pkt, l.rule.Size), wire.Answered
	case Drop:
		return dst, wire.Dropped
	case Panic:
		panic("servertest: asked to in Fast")
	default:
		l.missed, l.copied = pkt, bytes.Clone(pkt)
		return dst, wire.Missed
	}
}

// Slow implements server.Lane.
func (l *lane) Slow(_ *wire.Peer, _ time.Time, to wire.Replier) {
	l.enter("Slow")
	defer l.busy.Unlock()
	if l.missed == nil {
		l.handler.breach("Slow: no query was missed")
		to.Reply(nil, &l.later)
		return
	}
	if !bytes.Equal(l.missed, l.copied) {
		l.handler.breach("Slow: the query for %s changed since Fast", Name(l.copied))
	}
	query := l.copied
	l.missed, l.copied = nil, nil
	reply := AppendReply(nil, query, l.rule.Size)
	switch l.rule.Action {
	case Later:
		l.handler.running.Add(1)
		time.AfterFunc(l.rule.After, func() {
			defer l.handler.running.Done()
			var later wire.Later
			to.Reply(reply, &later)
			later.Flush()
		})
	case Hold:
		l.handler.hold(Name(query), heldQuery{reply: reply, to: to})
	case Inline:
		to.Reply(reply, &l.later)
	case Stream:
		count := l.rule.Count // the lane is another query's soon
		l.handler.running.Go(func() { l.handler.stream(Name(query), reply, count, to) })
	case PanicSlow:
		panic("servertest: asked to in Slow")
	default:
		to.Reply(nil, &l.later)
	}
}

// Flush implements server.Lane.
func (l *lane) Flush(time.Time) {
	l.enter("Flush")
	defer l.busy.Unlock()
	if l.missed != nil {
		l.handler.breach("Flush: Slow is owed for %s", Name(l.copied))
	}
	l.later.Flush()
	l.handler.mu.Lock()
	defer l.handler.mu.Unlock()
	l.handler.flushes++
}
