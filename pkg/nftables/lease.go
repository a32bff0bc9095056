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

// Prepare makes this agent's own table with what holds leases, and no rules in it.
func (b *Backend) Prepare(ctx context.Context, r rules.Rules) error {
	if err := errors.Join(ctx.Err(), r.Check()); err != nil {
		return fmt.Errorf("preparing leases: %w", err)
	}
	b.applying.Lock()
	defer b.applying.Unlock()
	t := renderLeases(&r)
	if err := b.own(t.name); err != nil {
		return fmt.Errorf("preparing leases: %w", err)
	}
	var tx batch
	for _, s := range t.sets {
		tx.set(t.name, s)
	}
	if err := b.writer.do(&tx); err != nil {
		return fmt.Errorf("preparing leases: %w", err)
	}
	b.table.Store(&t.name)
	return nil
}

// Renew has the leases on keys end d from now, in one transaction.
func (b *Backend) Renew(ctx context.Context, keys []netip.Addr, d time.Duration) error {
	return b.change(ctx, "renewing leases", func(tx *batch, table string, f family, key []byte) {
		tx.put(table, leaseSet+f.suffix(), element{key: key, timeout: d})
	}, keys)
}

// Release ends the leases on keys, in one transaction. For the time drain packets to
// them that begin no TCP session are still the agent's.
func (b *Backend) Release(ctx context.Context, keys []netip.Addr, drain time.Duration) error {
	if b.table.Load() == nil {
		return ctx.Err() // nothing was applied or prepared yet, so none is held
	}
	return b.change(ctx, "releasing leases", func(tx *batch, table string, f family, key []byte) {
		// The set keeps what is put there for a moment: the transaction ends before.
		tx.take(table, leaseSet+f.suffix(), element{key: key, timeout: time.Hour})
		if drain > 0 {
			tx.put(table, drainSet+f.suffix(), element{key: key, timeout: drain})
		}
	}, keys)
}

func (b *Backend) change(ctx context.Context, doing string, add func(tx *batch, table string, f family, key []byte), keys []netip.Addr) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	table := b.table.Load()
	if table == nil {
		return fmt.Errorf("%s: %w", doing, errors.New("nothing was applied or prepared yet"))
	}
	var tx batch
	for _, key := range keys {
		add(&tx, *table, family{v6: key.Is6()}, key.AsSlice())
	}
	if err := b.writer.do(&tx); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// leases adds what is left of those that a table has.
func (b *Backend) leases(table string, into map[netip.Addr]time.Duration) error {
	sets, err := b.sets(table)
	if err != nil {
		return err
	}
	for _, set := range sets {
		if set != leaseSet+"4" && set != leaseSet+"6" {
			continue
		}
		elements, err := b.elements(table, set)
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
