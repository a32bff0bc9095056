// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/rules"
)

// Remove takes away, in one transaction, the tables of the agent called owner, or all.
// The table of an agent that still runs cannot be taken from it: then nothing is, and
// the error says so.
func (b *Backend) Remove(ctx context.Context, owner string) error {
	b.applying.Lock()
	defer b.applying.Unlock()
	var err error
	for range attempts {
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
	all, err := b.tables()
	if err != nil {
		return err
	}
	last, err := b.lastOwner()
	if err != nil {
		return err
	}
	// The kernel takes the hooks away one after the other: those that lead elsewhere first.
	slices.SortStableFunc(all, func(a, b seen) int {
		switch {
		case a.name == b.name:
			return 0
		case a.name == fallbackTable:
			return -1
		case b.name == fallbackTable:
			return 1
		}
		return 0
	})
	var tx batch
	var owned error
	for _, t := range all {
		switch {
		case owner != "" && t.name == fallbackTable && last != owner:
			owned = fmt.Errorf("removing table %s: %w: %s", t.name, rules.ErrOwned, last)
			continue
		case owner != "" && t.name != fallbackTable && t.name != leaseTable(owner):
			continue
		case t.name == traceTable && t.socket != 0: // somebody is at it
			continue
		case t.socket != 0 && t.socket != b.writer.conn.PID():
			return fmt.Errorf("removing table %s: %w: its agent still runs, at netlink port %d", t.name, unix.EPERM, t.socket)
		}
		tx.dropTable(t.name)
	}
	if len(tx.messages) == 0 {
		return owned
	}
	if err := b.writer.do(&tx); err != nil {
		return err
	}
	b.written = nil
	return owned
}
