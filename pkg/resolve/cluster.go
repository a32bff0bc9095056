// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
	"github.com/nodecache/node-cache/pkg/zone"
)

// fromZone answers from the cluster zone if the name is one of its own and it
// knows. If not, the query goes on: as it came, or for the target of an alias
// that the zone gave.
func (l *Worker) fromZone(from *wire.Peer, now time.Time, dst []byte) ([]byte, bool) {
	start := len(dst)
	l.turn++
	dst, result := l.plan.Zone.Answer(&l.q, l.zoneClient(), now, dst)
	switch result.Verdict {
	case zone.Answered:
		l.opts.EDE = result.EDE
		if result.Limited {
			l.tally.zoneShort++
		}
		if l.detour.taken {
			var done bool
			if dst, done = l.deliver(SourceZone, from, now, dst, start); !done {
				return l.fromZone(from, now, dst)
			}
			return dst, true
		}
		dst = l.q.Reply(dst, start, &l.opts)
		return l.answered(SourceZone, dst, start, from, now), true
	case zone.NotReady:
		l.opts.EDE = result.EDE
		dst, _ = l.empty(SourceZone, wire.RcodeServFail, from, now, dst)
		return dst, true
	case zone.Alias:
		l.opts.EDE = result.EDE
		if !l.follow(dst, start, len(result.Target)) {
			dst, _ = l.empty(SourceFailure, wire.RcodeServFail, from, now, dst[:start])
			return dst, true
		}
		return dst[:start], false
	case zone.UseFallback:
		if l.plan.Unreachable != nil && l.plan.Unreachable() {
			return l.lastWord(from, now, dst)
		}
	case zone.NotInZone:
	}
	return dst, false
}

// zoneClient is what the zone's answer depends on besides the question.
func (l *Worker) zoneClient() zone.Client {
	return zone.Client{MaxSize: l.q.AnswerLimit(&l.opts), Rotation: l.turn}
}

// lastWord answers from the zone what nobody else can answer, if the zone has
// anything to say.
func (l *Worker) lastWord(from *wire.Peer, now time.Time, dst []byte) ([]byte, bool) {
	start := len(dst)
	dst, result := l.plan.Zone.AnswerStale(&l.q, l.zoneClient(), now, dst)
	if result.Verdict != zone.Answered {
		return dst[:start], false
	}
	l.opts.EDE = result.EDE
	if dst, done := l.deliver(SourceZone, from, now, dst, start); done {
		return dst, true
	}
	return l.lastWord(from, now, dst[:start])
}

// lastWord makes what the zone has to say to q the outcome, where there is no answer
// to it, and tells whether that is anything.
func (d *desk) lastWord(z *zone.Zone, q *wire.Query, now time.Time) bool {
	if z == nil {
		return false
	}
	msg, said := z.AnswerStale(q, zone.Client{MaxSize: wire.MaxMessage}, now, d.buf[:0])
	if said.Verdict != zone.Answered {
		return false
	}
	d.buf, d.result = msg, outcome{msg: msg, source: SourceZone, ede: said.EDE}
	return true
}
