// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"github.com/nodecache/node-cache/pkg/wire"
)

// comeBack has the second question of a waiter answered, whose first one was: from
// memory, or by a flight that it joins or begins as any query does, and as the same
// client's. It runs on whatever goroutine brought the first answer. It is false, and
// nothing done, if the client's time is over.
func (h *hand) comeBack(w *waiter) bool {
	if h.now.Sub(w.since) >= h.plan.Deadline {
		return false
	}
	d := w.detour
	l := h.r.worker()
	l.plan, l.opts, l.detour, l.proven = h.plan, w.opts, *d, d.proven
	l.ago = h.now.Sub(w.since)
	l.batch, *h.batch = *h.batch, l.batch
	whole := false
	defer func() {
		l.batch, *h.batch = *h.batch, l.batch
		if whole { // a worker that a panic left is not used again
			h.r.spare.Put(l)
		}
	}()
	l.q.SetQuestion(&w.ask)
	l.q.Subnet = d.subnet
	if d.rule != nil || d.led() {
		var room [wire.MaxName]byte
		l.q.SetName(d.sought(room[:0], l.q.Name()))
	}
	l.q.SetType(wire.TypeA)
	l.tally.began(w.since)
	room := rooms.Get().(*[]byte)
	defer rooms.Put(room)
	msg, verdict := l.second(&d.from, h.now, (*room)[:0])
	if verdict == wire.Missed {
		to := w.to
		w.to = nil
		l.join(&d.from, h.now, to)
	} else {
		*room = msg
		w.end(msg, &l.batch)
	}
	l.tally.flush(&h.r.counts, h.now)
	whole = true
	return true
}

// worker is one to use for a moment.
func (r *Resolver) worker() *Worker {
	if l, ok := r.spare.Get().(*Worker); ok {
		return l
	}
	return r.NewWorker()
}
