// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/rules"
)

// Prepare creates this agent's lease table with its sets and without rules.
func (b *Backend) Prepare(ctx context.Context, r rules.Rules) error {
	if err := errors.Join(ctx.Err(), r.Check()); err != nil {
		return fmt.Errorf("preparing leases: %w", err)
	}
	b.applyMu.Lock()
	defer b.applyMu.Unlock()
	t := renderLeases(&r)
	if err := b.ensureLeaseTable(t.name); err != nil {
		return fmt.Errorf("preparing leases: %w", err)
	}
	var tx batch
	for _, s := range t.sets {
		tx.set(t.name, s)
	}
	if err := b.writer.commit(&tx); err != nil {
		return fmt.Errorf("preparing leases: %w", err)
	}
	b.table.Store(&t.name)
	return nil
}

// Renew sets the leases on keys to end d from now, in one transaction.
func (b *Backend) Renew(ctx context.Context, keys []netip.Addr, d time.Duration) error {
	return b.updateSets(ctx, "renewing leases", func(tx *batch, table string, f family, key []byte) {
		tx.replaceElements(table, leaseSet+f.suffix(), element{key: key, timeout: d})
	}, keys)
}

// Release ends the leases on keys, in one transaction. For the time drain, packets to
// them that belong to an open TCP session still reach the agent.
func (b *Backend) Release(ctx context.Context, keys []netip.Addr, drain time.Duration) error {
	if b.table.Load() == nil {
		return ctx.Err() // no Apply or Prepare yet, so no lease is held
	}
	return b.updateSets(ctx, "releasing leases", func(tx *batch, table string, f family, key []byte) {
		// The timeout does not matter: the same transaction deletes the element.
		tx.deleteElements(table, leaseSet+f.suffix(), element{key: key, timeout: time.Hour})
		if drain > 0 {
			tx.replaceElements(table, drainSet+f.suffix(), element{key: key, timeout: drain})
		}
	}, keys)
}

func (b *Backend) updateSets(ctx context.Context, doing string, add func(tx *batch, table string, f family, key []byte), keys []netip.Addr) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	table := b.table.Load()
	if table == nil {
		return fmt.Errorf("%s: %w", doing, errors.New("no Apply or Prepare yet"))
	}
	var tx batch
	for _, key := range keys {
		add(&tx, *table, family{v6: key.Is6()}, key.AsSlice())
	}
	if err := b.writer.commit(&tx); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// addLeases adds the remaining time of each lease in a table.
func (b *Backend) addLeases(table string, into map[netip.Addr]time.Duration) error {
	sets, err := b.listSets(table)
	if err != nil {
		return err
	}
	for _, set := range sets {
		if set != leaseSet+"4" && set != leaseSet+"6" {
			continue
		}
		elements, err := b.listElements(table, set)
		if err != nil {
			return err
		}
		for _, e := range elements {
			if a, ok := netip.AddrFromSlice(e.key); ok {
				into[a] = max(into[a], e.timeout)
			}
		}
	}
	return nil
}
