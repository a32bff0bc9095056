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
// as it came, and checked each time it is used.

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

// blockAlias replaces dst[start:], an answer of the cache, if a list blocks the target of an alias in it.
func (l *lookup) blockAlias(dst []byte, start int, source Source) ([]byte, Source) {
	first := start + wire.HeaderLen + len(l.Name()) + 4 // the question is not compressed
	if dst[start+6]|dst[start+7] == 0 || dst[first] >= 0xc0 && uint16(dst[first+2])<<8|uint16(dst[first+3]) == l.Type {
		return dst, source // no records, or the first is no alias
	}
	if rule := l.plan.aliasRule(dst[start:]); rule.Blocks() {
		if asked := l.plan.blockRule(l.Name()); !asked.Exception {
			return l.askBlock(dst[:start], rule)
		}
	}
	return dst, source
}

// block sets the outcome to that of the plan's block lists, if one blocks the canonical name, because the lists have changed meanwhile, or
// the target of an alias in the answer.
func (d *responseBuilder) block(plan *Plan, name, answer []byte) {
	rule := plan.blockRule(name)
	if rule.List == nil {
		rule = plan.aliasRule(answer)
	}
	if rule.Blocks() {
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

// forgetBlocked removes the answer under key from the cache if a list blocks its name by now: it did not when the query for it began.
func (p *Plan) forgetBlocked(c *cache.Cache, key []byte) {
	if rule := p.blockRule(keyName(key)); rule.Blocks() {
		c.Remove(key)
	}
}

// PurgeBlocked removes the names that the lists block from the cache. It must be called after Plan.Block has changed, or its lists.
func (r *Resolver) PurgeBlocked() {
	if plan := r.plan.Load(); plan.Block != nil {
		plan.Cache.Purge(func(name []byte) bool {
			rule := plan.blockRule(name)
			return rule.Blocks()
		})
	}
}
