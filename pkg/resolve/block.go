// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"slices"

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

// aliasRule returns the rule for the first name with one: the name asked for, then the targets of the aliases in its answer. A query for
// aliases gets them.
func (p *Plan) aliasRule(name []byte, m *wire.Message) (rule blocklist.Rule) {
	if rule = p.blockRule(name); rule.List != nil || m.QuestionType() == wire.TypeCNAME {
		return rule
	}
	var room [wire.MaxName]byte
	for _, r := range m.Records {
		if r.Type == wire.TypeCNAME && r.Section == wire.Answer {
			if rule = p.blockRule(m.AppendName(room[:0], m.Target(r))); rule.List != nil {
				return rule
			}
		}
	}
	return rule
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
	if l.plan.Block == nil || dst[start+6]|dst[start+7] == 0 || dst[first] >= 0xc0 && uint16(dst[first+2])<<8|uint16(dst[first+3]) == l.Type {
		return dst, source // no records, or the first is no alias
	}
	m := &l.worker.restorer.tail
	if m.Parse(dst[start:]) == nil {
		if rule := l.plan.aliasRule(l.Name(), m); rule.Blocks() {
			return l.askBlock(dst[:start], rule)
		}
	}
	return dst, source
}

// block sets the outcome to that of a block list, if one blocks the canonical name, because the lists have changed meanwhile, or the target
// of an alias in the answer.
func (d *responseBuilder) block(name []byte, answer *wire.Message) {
	plan := d.r.plan.Load()
	if plan.Block == nil {
		return
	}
	if rule := plan.aliasRule(name, answer); rule.Blocks() {
		d.source, d.detail, d.lists, d.blocked, d.ede = SourceBlock, detail{block: rule}, plan.Block, name, wire.EDEBlocked
	}
}

// blockStale is block for the stale answer for key.
func (d *responseBuilder) blockStale(key []byte) {
	back := restorerPool.Get().(*restorer)
	defer restorerPool.Put(back)
	if back.tail.Parse(d.msg) == nil {
		d.block(keyName(key), &back.tail)
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

// isBlockedNow reports whether a list blocks a name by now: a query for it began before, and its answer must not stay in the cache.
func (r *Resolver) isBlockedNow(name []byte) bool {
	rule := r.plan.Load().blockRule(name)
	return rule.Blocks()
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
