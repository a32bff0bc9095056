// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
	"github.com/nodecache/node-cache/pkg/zone"
)

// fromZone answers from the cluster zone if the name is one of its own and it
// knows. If not, the query goes on: as it came, or for the target of an alias
// that the zone gave.
func (l *Lane) fromZone(from *wire.Peer, now time.Time, dst []byte) ([]byte, bool) {
	start := len(dst)
	l.turn++
	dst, result := l.plan.Zone.Answer(&l.q, l.turn, now, dst)
	switch result.Verdict {
	case zone.Answered:
		l.seal.EDE = result.EDE
		dst = l.q.Reply(dst, start, &l.seal)
		return l.answered(SourceZone, dst, start, from, now), true
	case zone.Unready:
		l.seal.EDE = result.EDE
		dst, _ = l.empty(SourceZone, wire.RcodeServFail, from, now, dst)
		return dst, true
	case zone.Alias:
		l.seal.EDE = result.EDE
		l.alias.head = append(l.alias.head, dst[start:]...)
		l.alias.target = len(l.alias.head) - len(result.Target)
		l.q.Follow(result.Target)
		return dst[:start], false
	case zone.Elsewhere:
		if l.plan.Unreachable != nil && l.plan.Unreachable() {
			return l.lastWord(from, now, dst)
		}
	case zone.Foreign:
	}
	return dst, false
}

// lastWord answers from the zone what nobody else can answer, if the zone has
// anything to say.
func (l *Lane) lastWord(from *wire.Peer, now time.Time, dst []byte) ([]byte, bool) {
	start := len(dst)
	dst, result := l.plan.Zone.LastWord(&l.q, l.turn, now, dst)
	if result.Verdict != zone.Answered {
		return dst[:start], false
	}
	l.seal.EDE = result.EDE
	dst = l.q.Reply(dst, start, &l.seal)
	return l.answered(SourceZone, dst, start, from, now), true
}

// lastWord makes what the zone has to say to q the outcome, where there is no answer
// to it, and tells whether that is anything.
func (d *desk) lastWord(z *zone.Zone, q *wire.Query, now time.Time) bool {
	if z == nil {
		return false
	}
	msg, said := z.LastWord(q, 0, now, d.buf[:0])
	if said.Verdict != zone.Answered {
		return false
	}
	d.buf, d.result = msg, outcome{msg: msg, source: SourceZone, ede: said.EDE}
	return true
}

// An alias is the first part of an answer: a message that ends with the CNAME
// record of a name outside the zone, whose answer is to follow.
type alias struct {
	head   []byte // empty: none
	target int    // offset of the name outside in head, where it stands uncompressed

	tail wire.Message // reused
	held []byte       // reused
}

// completeHeld puts the head before the answer to its target, dst[start:]. It
// says whether they fit into one message.
func (a *alias) completeHeld(dst []byte, start int) ([]byte, bool) {
	a.held = append(a.held[:0], dst[start:]...)
	return a.appendWhole(dst[:start], a.held)
}

// appendWhole appends the head and after it msg, the answer to its target. It says
// whether they fit into one message. Without a head it appends msg.
func (a *alias) appendWhole(dst, msg []byte) ([]byte, bool) {
	if len(a.head) == 0 {
		return append(dst, msg...), true
	}
	start := len(dst)
	if a.tail.Parse(msg) != nil {
		return dst, false
	}
	return a.tail.Graft(append(dst, a.head...), start, a.target)
}

// clone is an alias that owns its head, or nil if there is none.
func (a *alias) clone() *alias {
	if len(a.head) == 0 {
		return nil
	}
	return &alias{head: slices.Clone(a.head), target: a.target}
}
