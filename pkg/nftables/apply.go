// SPDX-License-Identifier: Apache-2.0

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

// applyAttempts bounds the repetitions of Apply when other programs change rules meanwhile.
const applyAttempts = 5

// contents is what the last Apply left in the kernel.
type contents struct {
	rules       rules.Rules
	leases      string // the contents of the lease table
	fallback    string // the contents of the fallback table
	count       int    // rules in both
	staleTables int    // tables of other agents that have ended
}

// Apply makes the kernel hold r in one transaction. It reports whether it had to change
// anything. It deletes the tables of other agents that have ended, but not that of a
// running agent. The fallback table always holds the rules of the last Apply of any
// agent.
func (b *Backend) Apply(ctx context.Context, r rules.Rules) (changed bool, err error) {
	if err := r.Check(); err != nil {
		return false, fmt.Errorf("checking rules: %w", err)
	}
	b.applyMu.Lock()
	defer b.applyMu.Unlock()
	for range applyAttempts {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		var intact bool
		if intact, err = b.upToDate(&r); err != nil || intact {
			return false, err
		}
		if err = b.write(ctx, &r); err == nil {
			return true, nil
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EBUSY) {
			break // not caused by a change of another program since the tables were read
		}
	}
	return false, err
}

// upToDate reports whether the kernel holds what an Apply of r wrote.
func (b *Backend) upToDate(r *rules.Rules) (bool, error) {
	if b.applied == nil || !reflect.DeepEqual(*r, b.applied.rules) {
		return false, nil
	}
	now, err := b.readContents(r)
	if err != nil {
		return false, err
	}
	return reflect.DeepEqual(now, b.applied), nil
}

// readContents reads the contents of r's tables.
func (b *Backend) readContents(r *rules.Rules) (*contents, error) {
	w := &contents{rules: clone(r)}
	var err error
	var more int
	if w.leases, w.count, err = b.reader.tableContents(leaseTable(r.Owner)); err != nil {
		return nil, err
	}
	if w.fallback, more, err = b.reader.tableContents(fallbackTable); err != nil {
		return nil, err
	}
	w.count += more
	all, err := b.reader.listTables()
	if err != nil {
		return nil, err
	}
	stale, err := b.staleTables(all, leaseTable(r.Owner))
	w.staleTables = len(stale)
	return w, err
}

// clone returns a deep copy of r.
func clone(r *rules.Rules) rules.Rules {
	c := *r
	c.Addresses, c.Services, c.Fallback = slices.Clone(r.Addresses), slices.Clone(r.Services), slices.Clone(r.Fallback)
	return c
}

// staleTables returns the lease tables that no running agent owns and that have no lease
// or drain left. If the kernel does not support owned tables, only the leases decide.
func (b *Backend) staleTables(all []kernelTable, own string) ([]string, error) {
	var names []string
	for _, t := range all {
		mine := t.ownerPort == b.writer.conn.PID() // of an earlier owner name of this agent
		if t.name == own || t.name == fallbackTable || t.name == TraceTable || t.ownerPort != 0 && !mine {
			continue
		}
		used, err := b.reader.hasLeases(t.name)
		if err != nil {
			return nil, err
		}
		if mine || !used {
			names = append(names, t.name)
		}
	}
	return names, nil
}

// write replaces the tables with those of r.
func (b *Backend) write(ctx context.Context, r *rules.Rules) error {
	leases, fallback := render(r)
	if err := b.ensureLeaseTable(leases.name); err != nil {
		return err
	}
	all, err := b.reader.listTables()
	if err != nil {
		return err
	}
	stale, err := b.staleTables(all, leases.name)
	if err != nil {
		return err
	}
	chains, _, err := b.reader.listChains(leases.name)
	if err != nil {
		return err
	}

	before, err := b.reader.fallbackTargets()
	if err != nil {
		return err
	}
	var tx batch
	for _, name := range stale {
		tx.deleteTable(name)
	}
	// The lease table stays, with the held leases.
	tx.deleteRules(leases.name)
	for _, name := range chains {
		tx.deleteChain(leases.name, name)
	}
	leases.addTo(&tx)
	if slices.ContainsFunc(all, func(t kernelTable) bool { return t.name == fallbackTable }) {
		tx.deleteTable(fallbackTable)
	}
	want := len(leases.rules)
	if fallback != nil {
		tx.table(fallback.name, 0)
		fallback.addTo(&tx)
		want += len(fallback.rules)
	}
	b.applied = nil
	if err := b.writer.commit(&tx); err != nil {
		return err
	}
	b.table.Store(&leases.name)
	now, err := b.readContents(r)
	if err == nil && now.count == want { // else another program removed rules already: the next Apply repairs them
		b.applied = now
	}
	if !slices.Equal(before, r.Fallback) {
		if err := b.deleteStaleFlows(ctx, r); err != nil { // affects only clients that reuse their port
			b.log.WarnContext(ctx, "connections to a removed fallback stay", "err", err)
		}
	}
	return err
}

// ensureLeaseTable creates the lease table, owned by this process if the kernel supports
// that.
func (b *Backend) ensureLeaseTable(name string) error {
	all, err := b.reader.listTables()
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(all, func(t kernelTable) bool { return t.name == name }); i >= 0 {
		if s := all[i].ownerPort; s != 0 && s != b.writer.conn.PID() {
			return fmt.Errorf("adding table %s: another process owns it, at netlink port %d", name, s)
		}
		return nil
	}
	if !b.ownerless {
		var tx batch
		tx.table(name, tableOwned)
		err := b.writer.commit(&tx)
		if !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		b.ownerless = true
		b.log.Warn("owned tables not supported, leases end by timeout only", "kernel_needed", "5.12")
	}
	var tx batch
	tx.table(name, 0)
	return b.writer.commit(&tx)
}

// addTo adds the contents of the table to tx.
func (t *table) addTo(tx *batch) {
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

// Remove deletes, in one transaction, the tables of the agent called owner, or of all
// agents. The kernel does not allow deleting the table of a running agent: then Remove
// deletes nothing and returns an error.
func (b *Backend) Remove(ctx context.Context, owner string) error {
	b.applyMu.Lock()
	defer b.applyMu.Unlock()
	var err error
	for range applyAttempts {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err = b.remove(owner); !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	return err
}

func (b *Backend) remove(owner string) error {
	all, err := b.reader.listTables()
	if err != nil {
		return err
	}
	last, err := b.reader.fallbackOwner()
	if err != nil {
		return err
	}
	// The kernel removes the hooks one by one: those of the fallback go first, by name.
	slices.SortFunc(all, func(a, b kernelTable) int { return strings.Compare(a.name, b.name) })
	var tx batch
	var owned error
	for _, t := range all {
		switch {
		case owner != "" && t.name == fallbackTable && last != owner:
			owned = fmt.Errorf("removing table %s: %w: %s", t.name, rules.ErrOwned, last)
			continue
		case owner != "" && t.name != fallbackTable && t.name != leaseTable(owner):
			continue
		case t.name == TraceTable && t.ownerPort != 0: // a running doctor uses it
			continue
		case t.ownerPort != 0 && t.ownerPort != b.writer.conn.PID():
			return fmt.Errorf("removing table %s: %w: its agent is running, at netlink port %d", t.name, unix.EPERM, t.ownerPort)
		}
		tx.deleteTable(t.name)
	}
	if len(tx.messages) == 0 {
		return owned
	}
	if err := b.writer.commit(&tx); err != nil {
		return err
	}
	b.applied = nil
	return owned
}
