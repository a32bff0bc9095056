// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/rules"
)

// attempts is how often Apply reads and writes anew when others write meanwhile.
const attempts = 5

// written is what the last Apply left in the kernel.
type written struct {
	rules    rules.Rules
	leases   string // the content of the table of leases
	fallback string // and that of the other
	count    int    // the rules in both
	stale    int    // tables of other agents that are no longer alive, or were not then
}

// Apply makes the kernel hold r in one transaction, and says whether it did not hold
// that before. Tables of other agents that have ended are taken away; that of one
// which still runs is its own. What sends queries elsewhere is always that of the
// last Apply, whoever's.
func (b *Backend) Apply(ctx context.Context, r rules.Rules) (changed bool, err error) {
	if err := r.Check(); err != nil {
		return false, fmt.Errorf("checking rules: %w", err)
	}
	b.applying.Lock()
	defer b.applying.Unlock()
	for range attempts {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		var intact bool
		if intact, err = b.intact(&r); err != nil || intact {
			return false, err
		}
		if err = b.write(ctx, &r); err == nil {
			return true, nil
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EBUSY) {
			break // not for what others did since the tables were read
		}
	}
	return false, err
}

// intact reports whether the kernel holds what an Apply of r wrote.
func (b *Backend) intact(r *rules.Rules) (bool, error) {
	if b.written == nil || !reflect.DeepEqual(*r, b.written.rules) {
		return false, nil
	}
	now, err := b.look(r)
	if err != nil {
		return false, err
	}
	return reflect.DeepEqual(now, b.written), nil
}

// look reads what is there of r's tables.
func (b *Backend) look(r *rules.Rules) (*written, error) {
	w := &written{rules: clone(r)}
	var err error
	var more int
	if w.leases, w.count, err = b.content(leaseTable(r.Owner)); err != nil {
		return nil, err
	}
	if w.fallback, more, err = b.content(fallbackTable); err != nil {
		return nil, err
	}
	w.count += more
	all, err := b.tables()
	if err != nil {
		return nil, err
	}
	stale, err := b.stale(all, leaseTable(r.Owner))
	w.stale = len(stale)
	return w, err
}

// clone copies r, whose owner may change what it holds.
func clone(r *rules.Rules) rules.Rules {
	c := *r
	c.Addresses, c.Services, c.Fallback = slices.Clone(r.Addresses), slices.Clone(r.Services), slices.Clone(r.Fallback)
	return c
}

// stale returns the tables of leases that are none's: not of an agent that runs, and
// without a lease or a drain that an agent may still want. Where the kernel does not
// know tables that are owned the latter alone tells.
func (b *Backend) stale(all []seen, own string) ([]string, error) {
	var names []string
	for _, t := range all {
		mine := t.socket == b.writer.conn.PID() // of a former name of ours
		if t.name == own || t.name == fallbackTable || t.name == traceTable || t.socket != 0 && !mine {
			continue
		}
		used, err := b.used(t.name)
		if err != nil {
			return nil, err
		}
		if mine || !used {
			names = append(names, t.name)
		}
	}
	return names, nil
}

// used reports whether a table of leases has any.
func (b *Backend) used(table string) (bool, error) {
	sets, err := b.sets(table)
	if err != nil {
		return false, err
	}
	for _, set := range sets {
		if !strings.HasPrefix(set, leaseSet) && !strings.HasPrefix(set, drainSet) {
			continue
		}
		elements, err := b.elements(table, set)
		if err != nil {
			return false, err
		}
		if len(elements) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// write replaces what is there by what r says.
func (b *Backend) write(ctx context.Context, r *rules.Rules) error {
	leases, fallback := render(r)
	if err := b.own(leases.name); err != nil {
		return err
	}
	all, err := b.tables()
	if err != nil {
		return err
	}
	stale, err := b.stale(all, leases.name)
	if err != nil {
		return err
	}
	chains, _, err := b.chains(leases.name)
	if err != nil {
		return err
	}

	before, err := b.fallback()
	if err != nil {
		return err
	}
	var tx batch
	for _, name := range stale {
		tx.dropTable(name)
	}
	// The table of leases stays, with the leases that are held.
	tx.dropRules(leases.name)
	for _, name := range chains {
		tx.dropChain(leases.name, name)
	}
	leases.fill(&tx)
	if slices.ContainsFunc(all, func(t seen) bool { return t.name == fallbackTable }) {
		tx.dropTable(fallbackTable)
	}
	want := len(leases.rules)
	if fallback != nil {
		tx.table(fallback.name, 0)
		fallback.fill(&tx)
		want += len(fallback.rules)
	}
	b.written = nil
	if err := b.writer.do(&tx); err != nil {
		return err
	}
	b.table.Store(&leases.name)
	now, err := b.look(r)
	if err == nil && now.count == want { // else others took something away already: the next Apply sees to it
		b.written = now
	}
	if !slices.Equal(before, r.Fallback) {
		if err := b.forget(ctx, r); err != nil { // clients that keep their port suffer, no others
			b.log.WarnContext(ctx, "connections to a former fallback stay", "err", err)
		}
	}
	return err
}

// own has the table of leases there, to end with this process where the kernel can
// do that.
func (b *Backend) own(name string) error {
	all, err := b.tables()
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(all, func(t seen) bool { return t.name == name }); i >= 0 {
		if s := all[i].socket; s != 0 && s != b.writer.conn.PID() {
			return fmt.Errorf("adding table %s: it belongs to another process, at netlink port %d", name, s)
		}
		return nil
	}
	if !b.plain {
		var tx batch
		tx.table(name, tableOwned)
		err := b.writer.do(&tx)
		if !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		b.plain = true
		b.log.Warn("tables cannot be owned, leases end by their time alone", "kernel_needed", "5.12")
	}
	var tx batch
	tx.table(name, 0)
	return b.writer.do(&tx)
}

// fill adds what is in the table.
func (t *table) fill(tx *batch) {
	for _, s := range t.sets {
		tx.set(t.name, s)
	}
	for _, c := range t.chains {
		tx.chain(t.name, c)
	}
	for _, r := range t.rules {
		tx.rule(t.name, r)
	}
}
