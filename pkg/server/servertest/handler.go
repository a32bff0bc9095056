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
	Answer       Action = iota // answered by AnswerFromMemory
	Delay                      // missed, answered after Rule.After on another goroutine
	Hold                       // missed, answered by Release
	Inline                     // missed, answered within Resolve
	NoReply                    // missed, ended within Resolve without a reply
	Stream                     // missed, answered by Rule.Count messages on another goroutine
	Drop                       // dropped by AnswerFromMemory
	Panic                      // AnswerFromMemory panics
	PanicResolve               // missed, then Resolve panics
)

// A Rule is how the queries for one name are handled.
type Rule struct {
	Action Action
	After  time.Duration // how long Delay takes
	Count  int           // number of messages of Stream
	Size   int           // the reply is filled up to so many bytes; 0: as long as the query
}

// A Handler is a server.Handler that follows rules. It is safe for use by many
// goroutines.
type Handler struct {
	mu         sync.Mutex // guards the fields below
	changed    *sync.Cond // a query was held
	rules      map[string]Rule
	held       map[string][]heldQuery
	seen       map[string]int
	sent       map[string]int
	peers      map[wire.Peer]int
	workers    int
	flushes    int
	violations []string
	running    sync.WaitGroup // delayed answers and streams
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
	var batch wire.SendBatch
	defer batch.Flush()
	for _, q := range queries {
		q.to.Reply(q.reply, &batch)
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

// Workers returns how many workers were made.
func (h *Handler) Workers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.workers
}

// Flushes returns how often a worker was flushed.
func (h *Handler) Flushes() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.flushes
}

// Violations returns how the server broke the contract of a worker, in words. It waits
// for the delayed answers and for the streams.
func (h *Handler) Violations() []string {
	h.running.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.violations)
}

func (h *Handler) violation(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.violations = append(h.violations, fmt.Sprintf(format, args...))
}

// NewWorker implements server.Handler.
func (h *Handler) NewWorker() server.Worker {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.workers++
	return &worker{handler: h}
}

// record records a query and returns its rule.
func (h *Handler) record(name string, from wire.Peer) Rule {
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

// stream sends reply count times, unless SendMessage refuses one, and ends the query with
// the last. The fourth byte counts them.
func (h *Handler) stream(name string, reply []byte, count int, to wire.Replier) {
	var batch wire.SendBatch
	defer batch.Flush()
	s, ok := to.(wire.Stream)
	if !ok {
		h.violation("Resolve %s: the replier is no stream", name)
		to.Reply(nil, &batch)
		return
	}
	for i := range count - 1 {
		reply[3] = byte(i)
		if !s.SendMessage(reply) {
			s.Reply(nil, &batch)
			return
		}
		h.mu.Lock()
		h.sent[name]++
		h.mu.Unlock()
	}
	reply[3] = byte(count - 1)
	s.Reply(reply, &batch)
}

// A worker answers queries, and checks that the server keeps to the contract of a Worker.
type worker struct {
	handler *Handler
	busy    sync.Mutex // held during a call, so that two at once are seen
	missed  []byte     // the query Resolve is owed for, as the server holds it
	copied  []byte     // the same query as it was in AnswerFromMemory
	rule    Rule
	batch   wire.SendBatch // holds the answers given within Resolve
}

func (w *worker) enter(call string) {
	if !w.busy.TryLock() {
		w.handler.violation("%s: the worker is in use by another goroutine", call)
		w.busy.Lock()
	}
}

// AnswerFromMemory implements server.Worker.
func (w *worker) AnswerFromMemory(pkt []byte, from *wire.Peer, _ time.Time, dst []byte) ([]byte, wire.Verdict) {
	w.enter("AnswerFromMemory")
	defer w.busy.Unlock()
	name := Name(pkt)
	if w.missed != nil {
		w.handler.violation("AnswerFromMemory %s: Resolve is owed for %s", name, Name(w.copied))
	}
	w.rule = w.handler.record(name, *from)
	switch w.rule.Action {
	case Answer:
		return AppendReply(dst, pkt, w.rule.Size), wire.Answered
	case Drop:
		return dst, wire.Dropped
	case Panic:
		panic("servertest: asked to in AnswerFromMemory")
	default:
		w.missed, w.copied = pkt, bytes.Clone(pkt)
		return dst, wire.Missed
	}
}

// Resolve implements server.Worker.
func (w *worker) Resolve(_ *wire.Peer, _ time.Time, to wire.Replier) {
	w.enter("Resolve")
	defer w.busy.Unlock()
	if w.missed == nil {
		w.handler.violation("Resolve: no query was missed")
		to.Reply(nil, &w.batch)
		return
	}
	if !bytes.Equal(w.missed, w.copied) {
		w.handler.violation("Resolve: the query for %s changed since AnswerFromMemory", Name(w.copied))
	}
	query := w.copied
	w.missed, w.copied = nil, nil
	reply := AppendReply(nil, query, w.rule.Size)
	switch w.rule.Action {
	case Delay:
		w.handler.running.Add(1)
		time.AfterFunc(w.rule.After, func() {
			defer w.handler.running.Done()
			var batch wire.SendBatch
			to.Reply(reply, &batch)
			batch.Flush()
		})
	case Hold:
		w.handler.hold(Name(query), heldQuery{reply: reply, to: to})
	case Inline:
		to.Reply(reply, &w.batch)
	case Stream:
		count := w.rule.Count // the worker is another query's soon
		w.handler.running.Go(func() { w.handler.stream(Name(query), reply, count, to) })
	case PanicResolve:
		panic("servertest: asked to in Resolve")
	default:
		to.Reply(nil, &w.batch)
	}
}

// Flush implements server.Worker.
func (w *worker) Flush(time.Time) {
	w.enter("Flush")
	defer w.busy.Unlock()
	if w.missed != nil {
		w.handler.violation("Flush: Resolve is owed for %s", Name(w.copied))
	}
	w.batch.Flush()
	w.handler.mu.Lock()
	defer w.handler.mu.Unlock()
	w.handler.flushes++
}
