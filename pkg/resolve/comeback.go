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
	l := h.r.lane()
	l.plan, l.seal, l.detour, l.proven = h.plan, w.seal, *d, d.proven
	l.ago = h.now.Sub(w.since)
	l.later, *h.later = *h.later, l.later
	whole := false
	defer func() {
		l.later, *h.later = *h.later, l.later
		if whole { // a lane that a panic left is not used again
			h.r.spare.Put(l)
		}
	}()
	l.q.Resume(&w.ask)
	l.q.Subnet = d.subnet
	if d.rule != nil || d.led() {
		var room [wire.MaxName]byte
		l.q.Follow(d.sought(room[:0], l.q.Name()))
	}
	l.q.Seek(wire.TypeA)
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
		w.end(msg, &l.later)
	}
	l.tally.flush(&h.r.counts, h.now)
	whole = true
	return true
}

// lane is one to use for a moment.
func (r *Resolver) lane() *Lane {
	if l, ok := r.spare.Get().(*Lane); ok {
		return l
	}
	return r.NewLane()
}
