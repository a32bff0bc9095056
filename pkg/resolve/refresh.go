// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"encoding/binary"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Refresh asks upstream for the records of a type that name has, in canonical wire form, as if a stored answer were due for
// prefetch, so that the cache has a new answer soon. It does not wait for that. It does nothing while the same question is in flight, or while clients
// use half of the in-flight limit. Where upstream is not asked, it returns what answers the name instead: the zone, the
// configuration, etcd, or a block list; else "".
func (r *Resolver) Refresh(name []byte, rrtype uint16) (instead string) {
	packet := append([]byte{0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, name...) // RD
	packet = binary.BigEndian.AppendUint16(packet, rrtype)
	packet = binary.BigEndian.AppendUint16(packet, wire.ClassIN)
	var batch wire.SendBatch
	defer batch.Flush()
	r.withWorker(r.plan.Load(), new(wire.Peer), r.now(), 0, &batch, func(q *query) {
		if q.Parse(packet) != wire.RcodeSuccess {
			return
		}
		q.initReplyOptions()
		if source := q.sourceBeforeCache(); source != undecided {
			instead = Sources()[source]
			return
		}
		q.refresh()
	})
	return instead
}

// sourceBeforeCache returns what answers the question before the cache is asked, undecided if nothing does. An alias that the zone
// or hosts have counts as theirs: the cache has its target.
func (l *lookup) sourceBeforeCache() Source {
	p, source := l.plan, undecided
	if p.LocalData != nil {
		_, source = l.askStatic(nil)
		if l.redirect.hasAlias() {
			source = SourceStatic
		}
	}
	if source == undecided && p.SkyDNS != nil {
		_, source = l.askSkyDNS(nil)
	}
	if source == undecided && len(p.Zones) > 0 {
		_, source = l.askZone(nil)
		if l.redirect.hasAlias() {
			source = SourceZone
		}
	}
	if source != undecided {
		return source
	}
	if rule := p.blockRule(l.Name()); rule.Blocks() {
		return SourceBlock
	}
	return undecided
}
