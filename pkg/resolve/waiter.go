// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A waiter is a client that waits for a flight.
type waiter struct {
	ask    wire.Question
	detour *detour // to the flight's question; nil if that is the client's own
	opts   wire.ReplyOptions
	from   *wire.Peer // for the query log; nil if there is none
	since  time.Time
	to     wire.Replier // nil once it was called
	client *client      // as which it is counted; nil once it is not, see leaveLocked
}

// A hand gives the outcome of a flight to those who wait for it.
type hand struct {
	r      *Resolver
	plan   *Plan
	result *outcome
	now    time.Time
	batch  *wire.SendBatch
}

// rooms are for one reply each, while it is made.
var rooms = sync.Pool{New: func() any { b := make([]byte, 0, 1232); return &b }} //nolint:gochecknoglobals // a pool is shared by design and holds no state

// give replies to one waiter. What goes wrong with one reply, that one client's
// bytes may have caused, costs the others nothing.
func (h *hand) give(w *waiter) {
	defer func() {
		if defect := recover(); defect != nil {
			h.r.panicked("reply", defect)
			if w.to != nil {
				w.end(nil, h.batch)
			}
		}
	}()
	room := rooms.Get().(*[]byte)
	defer rooms.Put(room)
	source := h.result.source
	msg, came := h.whole((*room)[:0], w)
	if came == again && h.comeBack(w) {
		return
	}
	if came == arrived {
		if source == SourceZone || source == SourceStale {
			w.opts.EDE = h.result.ede
		}
		msg = w.ask.Reply(msg, 0, &w.opts)
	} else {
		source = SourceFailure
		w.opts.EDE = h.result.ede
		msg = w.ask.AppendEmpty(msg[:0], wire.RcodeServFail, &w.opts)
	}
	*room = msg
	h.r.reply(h.plan, w, source, msg, h.now, h.batch)
}

// whole appends the answer for the waiter, if there is one.
func (h *hand) whole(dst []byte, w *waiter) ([]byte, step) {
	failed := h.result.msg == nil
	dst = append(dst, h.result.msg...)
	switch {
	case w.detour != nil:
		back := ways.Get().(*way)
		defer ways.Put(back)
		dst, came := back.lead(w.detour, &w.ask, w.opts.Limit, failed, dst, 0)
		if came == arrived && w.detour.made {
			h.r.counts.made.Add(1)
		}
		return dst, came
	case failed:
		return dst, lost
	}
	return dst, arrived
}

// panicked counts and logs a recovered panic.
func (r *Resolver) panicked(where string, defect any) {
	r.counts.panics.Add(1)
	r.log.Error("recovered from a panic", "where", where, "panic", fmt.Sprint(defect), "stack", string(debug.Stack()))
}

// shed answers a client for whom there is no room.
func (r *Resolver) shed(reason Shed, w *waiter, plan *Plan, batch *wire.SendBatch) {
	w.opts.EDE = wire.EDEOther
	msg := w.ask.AppendEmpty(nil, wire.RcodeServFail, &w.opts)
	if w.ask.Explain {
		msg = w.explainShed(reason, msg)
		w.ask.Explain = false // it is done
	}
	r.reply(plan, w, SourceShed, msg, w.since, batch)
}

// reply sends, counts and logs a reply of the slow path.
func (r *Resolver) reply(plan *Plan, w *waiter, source Source, msg []byte, now time.Time, batch *wire.SendBatch) {
	rcode := int(msg[3] & 0x0f)
	took := now.Sub(w.since)
	r.counts.response(source, rcode, took)
	if plan.QueryLog != nil && w.from != nil { // nil: there was no log yet, or no more, when it came
		plan.QueryLog.record(context.Background(), &w.ask, w.from, source, rcode, took)
	}
	if w.ask.Explain {
		msg = w.explain(plan, source, msg, now)
	}
	w.end(msg, batch)
}

// end gives the waiter its one reply.
func (w *waiter) end(msg []byte, batch *wire.SendBatch) {
	to := w.to
	w.to = nil
	to.Reply(msg, batch)
}
