// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// applyAttempts bounds the repetitions of Apply when other programs change rules meanwhile.
const applyAttempts = 5

// Apply makes the kernel hold r in one transaction. It reports whether it had to change
// anything. It deletes the tables of other agents that have ended, but not that of a
// running agent. The fallback table always holds the rules of the last Apply of any
// agent.
func (b *Backend) Apply(ctx context.Context, r rules.Rules) (changed bool, err error) {
	b.applyMu.Lock()
	defer b.applyMu.Unlock()
	r.Track = r.Track && !b.trackless.Load()
	changed, err = b.apply(ctx, &r)
	if err == nil || !r.Track || ctx.Err() != nil {
		return changed, err
	}
	// The kernel may lack an option that only these rules need, NFT_FIB_INET or NF_CONNTRACK_ZONES. The others must not go with them.
	r.Track = false
	changed, without := b.apply(ctx, &r)
	if without != nil {
		return changed, err
	}
	b.trackless.Store(true)
	b.log.WarnContext(ctx, "rules against exemption from conntrack not supported: with them the fallback may not answer", "err", err)
	return changed, nil
}

// Trackless reports whether the kernel does not support rules.Rules.Track, as far as an Apply has found out.
func (b *Backend) Trackless() bool {
	return b.trackless.Load()
}

func (b *Backend) apply(ctx context.Context, r *rules.Rules) (changed bool, err error) {
	for range applyAttempts {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		var intact bool
		if intact, err = b.upToDate(r); err != nil || intact {
			return false, err
		}
		if err = b.write(ctx, r); err == nil {
			return true, nil
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EBUSY) {
			break // not caused by a change of another program since the tables were read
		}
	}
	return false, err
}

// upToDate reports whether the last Apply wrote r, and the kernel still holds those rules.
func (b *Backend) upToDate(r *rules.Rules) (bool, error) {
	if b.content == "" || !reflect.DeepEqual(*r, b.applied) {
		return false, nil
	}
	now, _, err := b.readContent(r.Owner)
	return now == b.content, err
}

// readContent returns a fingerprint of what Apply writes: the chains and rules of owner's lease table and of the fallback table,
// and the names of the stale tables. Lease renewals and traffic do not change it. It leaves out the maps: they are anonymous and
// constant, so a map changes only with its rule. count is the number of rules.
func (b *Backend) readContent(owner string) (content string, count int, err error) {
	for _, table := range []string{leaseTable(owner), fallbackTable} {
		chains, err := b.reader.list(unix.NFT_MSG_GETCHAIN, table)
		if err != nil {
			return "", 0, err
		}
		list, err := b.reader.list(unix.NFT_MSG_GETRULE, table)
		if err != nil {
			return "", 0, err
		}
		content += fmt.Sprintf("%x %x ", chains, list)
		count += len(list)
	}
	all, err := b.reader.listTables()
	if err != nil {
		return "", 0, err
	}
	stale, err := b.staleTables(all, leaseTable(owner))
	return content + fmt.Sprint(stale), count, err
}

// clone returns a deep copy of r.
func clone(r *rules.Rules) rules.Rules {
	c := *r
	c.Addresses, c.Services, c.Servers, c.Fallback = slices.Clone(r.Addresses), slices.Clone(r.Services), slices.Clone(r.Servers), slices.Clone(r.Fallback)
	return c
}

// staleTables returns the lease tables to delete: those that no running agent owns and that have no lease or drain left, and
// those of this process under an earlier owner name. If the kernel does not support owned tables, only the leases decide.
func (b *Backend) staleTables(all map[string]uint32, own string) ([]string, error) {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		mine := all[name] == b.writer.conn.PID() // this agent created the table under an earlier owner name
		if name == own || name == fallbackTable || name == TraceTable || all[name] != 0 && !mine {
			continue
		}
		held, err := b.reader.listElements(name, leaseSet, drainSet)
		if err != nil {
			return nil, err
		}
		if mine || len(held) == 0 {
			names = append(names, name)
		}
	}
	return names, nil
}

// write replaces the tables with those of r.
func (b *Backend) write(ctx context.Context, r *rules.Rules) error {
	tx := batch{table: leaseTable(r.Owner)}
	if err := b.ensureLeaseTable(tx.table); err != nil {
		return err
	}
	all, err := b.reader.listTables()
	if err != nil {
		return err
	}
	stale, err := b.staleTables(all, tx.table)
	if err != nil {
		return err
	}
	chains, err := b.reader.listNames(unix.NFT_MSG_GETCHAIN, tx.table, unix.NFTA_CHAIN_NAME)
	if err != nil {
		return err
	}
	before, err := b.reader.fallbackTargets()
	if err != nil {
		return err
	}
	if _, ok := all[fallbackTable]; ok {
		stale = append(stale, fallbackTable)
	}
	for _, name := range stale {
		tx.deleteTable(name)
	}
	tx.clear(chains) // the lease table stays, with the held leases
	addLeases(&tx, r)
	addFallback(&tx, r)
	b.content = ""
	if b.refuseTrack != nil && r.Track {
		return b.refuseTrack
	}
	if err := b.writer.commit(&tx); err != nil {
		return err
	}
	own := leaseTable(r.Owner)
	b.table.Store(&own)
	now, count, err := b.readContent(r.Owner)
	if err == nil && count == tx.rules { // else another program removed rules already: the next Apply repairs them
		b.applied, b.content = clone(r), now
	}
	if !slices.Equal(before, r.Fallback) {
		if err := b.deleteStaleFlows(ctx, r); err != nil { // the error affects only clients that reuse their port
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
	if port, ok := all[name]; ok {
		if port != 0 && port != b.writer.conn.PID() {
			return fmt.Errorf("adding table %s: another process owns it, at netlink port %d", name, port)
		}
		return nil
	}
	if b.ownerless {
		return b.writer.addTable(name, 0)
	}
	owned, err := b.writer.addOwned(name)
	if b.ownerless = err == nil && !owned; b.ownerless {
		b.log.Warn("owned tables not supported, leases end by timeout only", "kernel_needed", "5.12")
	}
	return err
}

// addOwned adds a table, owned by the socket if the kernel supports that: the kernel then deletes it when the socket closes.
func (s *socket) addOwned(name string) (owned bool, err error) {
	err = s.addTable(name, tableOwned)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return true, err
	}
	return false, s.addTable(name, 0)
}

func (s *socket) addTable(name string, flags uint32) error {
	var tx batch
	tx.addTable(name, flags)
	return s.commit(&tx)
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
	var tx batch
	var owned error
	// The kernel removes hooks one by one. In the order of names those of the fallback table go first.
	for _, name := range slices.Sorted(maps.Keys(all)) {
		port := all[name]
		switch {
		case owner != "" && name == fallbackTable && last != owner:
			owned = fmt.Errorf("removing table %s: %w: %s", name, rules.ErrOwned, last)
		case owner != "" && name != fallbackTable && name != leaseTable(owner):
		case name == TraceTable && port != 0: // a running doctor uses it
		case port != 0 && port != b.writer.conn.PID():
			return fmt.Errorf("removing table %s: %w: its agent is running, at netlink port %d", name, unix.EPERM, port)
		default:
			tx.deleteTable(name)
		}
	}
	if len(tx.messages) == 0 {
		return owned
	}
	if err := b.writer.commit(&tx); err != nil {
		return err
	}
	b.content = ""
	return owned
}
