// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"encoding/binary"
	"slices"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/names/blocklist"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A name on a block list is answered instead of being looked up upstream. A hit needs no check, because the cache holds no blocked names:
// none is asked for, PurgeBlocked removes those that a new list blocks, and an answer to a query from before is removed after it was
// stored. As in a response policy zone, the target of an alias is checked like the name asked for. An answer with such an alias is cached
// and marked, so that only marked answers are checked when they are used. What the lists say of an answer can change. PurgeBlocked
// then removes the answer too, because its mark is wrong.

// aliasMark marks a cached answer with an alias to a blocked name. It is the reserved bit of the header's fourth byte, which is no part of
// a reply.
const aliasMark = 0x40

// blockRule returns the rule of the block lists for a canonical name, for lookups and alias targets.
func (p *Plan) blockRule(name []byte) (rule blocklist.Rule) {
	if p.Block == nil || wire.IsLoopName(name) || slices.ContainsFunc(p.NotBlocked, func(zone []byte) bool { return isIn(name, zone) }) {
		return rule
	}
	return p.Block.Find(name)
}

// aliasRule returns the first rule for a target of the aliases in msg, a valid answer whose aliases are sorted. A query for aliases gets
// them.
func (p *Plan) aliasRule(msg []byte) (rule blocklist.Rule) {
	off := wire.HeaderLen + nameEnd(msg[wire.HeaderLen:]) + 4
	rrtype := binary.BigEndian.Uint16(msg[off-4:])
	if rrtype == wire.TypeCNAME {
		return rule
	}
	var room [wire.MaxName]byte
	m := wire.Message{Raw: msg}
	for range binary.BigEndian.Uint16(msg[6:]) {
		off += nameEnd(msg[off:])
		switch binary.BigEndian.Uint16(msg[off:]) {
		case rrtype:
			return rule
		case wire.TypeCNAME:
			if rule = p.blockRule(m.AppendName(room[:0], off+10)); rule.List != nil {
				return rule
			}
		}
		off += 10 + int(binary.BigEndian.Uint16(msg[off+8:]))
	}
	return rule
}

// nameEnd returns the length of the valid name that b begins with, up to its root label or behind its pointer.
func nameEnd(b []byte) int {
	end := 0
	for b[end] != 0 && b[end] < 0xc0 {
		end += 1 + int(b[end])
	}
	if b[end] != 0 {
		end++
	}
	return end + 1
}

// askBlock answers for the rule that blocks the current name, or a target of its aliases.
func (l *lookup) askBlock(dst []byte, rule blocklist.Rule) ([]byte, Source) {
	l.worker.rule, l.opts.EDE, l.opts.EDEText = rule, wire.EDEBlocked, &rule.List.Reason
	if d := l.redirect; d != nil && d.dns64 != nil { // no address is synthesized
		d.dns64, d.retryA = nil, false
		l.SetType(l.OriginalType())
	}
	return l.plan.Block.AppendAnswer(dst, l.Name(), l.Type), SourceBlock
}

// blockAlias replaces dst[start:], a marked answer of the cache, if a list blocks the target of an alias in it.
func (l *lookup) blockAlias(dst []byte, start int, source Source) ([]byte, Source) {
	if rule := l.plan.answerRule(l.Name(), dst[start:]); rule.Blocks() {
		return l.askBlock(dst[:start], rule)
	}
	return dst, source
}

// answerRule returns the rule for the canonical name that was asked for, or else for a target of the aliases in its answer msg.
func (p *Plan) answerRule(name, msg []byte) blocklist.Rule {
	if rule := p.blockRule(name); rule.List != nil {
		return rule
	}
	return p.aliasRule(msg)
}

// block sets the outcome to that of the plan's block lists, if one blocks the canonical name, because the lists have changed meanwhile, or
// the target of an alias in the answer.
func (d *responseBuilder) block(plan *Plan, name, answer []byte) {
	if rule := plan.answerRule(name, answer); rule.Blocks() {
		d.source, d.detail, d.lists, d.blocked, d.ede = SourceBlock, detail{block: rule}, plan.Block, name, wire.EDEBlocked
	}
}

// appendBlocked appends the answer of the block list for the waiter.
func (d *responseBuilder) appendBlocked(dst []byte, w *waiter) []byte {
	if w.redirect != nil { // no address is synthesized
		w.redirect.dns64, w.redirect.retryA = nil, false
	}
	w.opts.EDEText = &d.detail.block.List.Reason
	return d.lists.AppendAnswer(dst, d.blocked, w.ask.Type)
}

// markAlias sets the mark of an answer that is about to be cached.
func (p *Plan) markAlias(name, msg []byte) {
	msg[3] &^= aliasMark
	if rule := p.answerRule(name, msg); rule.Blocks() {
		msg[3] |= aliasMark
	}
}

// isOutdated reports whether the cached answer msg for name must be removed: the name is blocked, or the mark is wrong.
func (p *Plan) isOutdated(name, msg []byte) bool {
	if rule := p.blockRule(name); rule.Blocks() {
		return true
	}
	rule := p.answerRule(name, msg)
	return rule.Blocks() != (msg[3]&aliasMark != 0)
}

// forgetBlocked removes the answer msg under key from the cache if the lists have changed since the query for it began.
func (p *Plan) forgetBlocked(c *cache.Cache, key, msg []byte) {
	if p.isOutdated(keyName(key), msg) {
		c.Remove(key)
	}
}

// PurgeBlocked removes the answers that the lists block from the cache, and those with an alias of which the lists say something else
// now. It must be called after Plan.Block has changed, or its lists, or Plan.NotBlocked.
func (r *Resolver) PurgeBlocked() {
	if plan := r.plan.Load(); plan.Block != nil {
		plan.Cache.Purge(plan.isOutdated)
	}
}
