// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// A Backend writes rules to the nftables of one network namespace. It implements
// intercept.Backend.
type Backend struct {
	log    *slog.Logger
	writer *socket // owns the lease table
	reader *socket
	events *socket

	// table is the name of the lease table, nil before the first Apply or Prepare. Renew and
	// Release read it without a lock, so they do not wait for an Apply.
	table atomic.Pointer[string]

	flowGrace   time.Duration // the constant of that name, except in tests
	refuseTrack error         // tests: what the kernel says to rules.Rules.Track

	applyMu sync.Mutex // serializes Apply, Prepare and Remove
	// applyMu guards the next three fields.
	applied   rules.Rules // rules that the last Apply wrote
	content   string      // result of readContent right after that Apply; empty: unknown
	ownerless bool        // the kernel does not support owned tables

	trackless atomic.Bool // the kernel does not support rules.Rules.Track

	watchMu sync.Mutex // serializes calls of Watch, which read from events
}

// New opens the netlink sockets of a Backend in the current network namespace. It
// changes nothing there. The error names a missing capability or kernel option.
func New(log *slog.Logger) (*Backend, error) {
	b := &Backend{log: log, flowGrace: flowGrace}
	for _, s := range []**socket{&b.writer, &b.reader, &b.events} {
		opened, err := dial()
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
		*s = opened
	}
	// An empty transaction fails without the capability or without nf_tables.
	if err := b.writer.commit(&batch{}); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// String returns the name of the backend.
func (b *Backend) String() string { return "nftables" }

// Close closes the sockets. The kernel then deletes the lease table if the socket owns it, so
// that no rule directs packets to the agent any more. The fallback table stays.
func (b *Backend) Close() error {
	var errs []error
	for _, s := range []*socket{b.writer, b.reader, b.events} {
		if s == nil {
			continue
		}
		if err := s.conn.Close(); err != nil {
			errs = append(errs, fmt.Errorf("closing a netlink socket: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Watch calls changed at the start, when another process changes a table that an Apply of
// this backend writes, and when the kernel lost events. It returns nil when ctx ends.
func (b *Backend) Watch(ctx context.Context, changed func()) error {
	b.watchMu.Lock()
	defer b.watchMu.Unlock()
	conn := b.events.conn
	if err := conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return withHint("watching rules", err)
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // in the past: ends a waiting read
	})
	defer func() {
		if !stop() {
			<-interrupted
		}
		_ = conn.LeaveGroup(unix.NFNLGRP_NFTABLES)
		_ = conn.SetReadDeadline(time.Time{})
	}()

	changed()
	for ctx.Err() == nil {
		messages, err := conn.Receive()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case errors.Is(err, unix.ENOBUFS):
			changed() // events were lost
			continue
		case err != nil:
			return fmt.Errorf("watching rules: %w", err)
		}
		if b.changedByOthers(messages) {
			changed()
		}
	}
	return nil
}

// changedByOthers reports whether another process changed what Apply wrote.
func (b *Backend) changedByOthers(messages []netlink.Message) bool {
	return slices.ContainsFunc(messages, func(m netlink.Message) bool {
		if m.Header.PID == b.writer.conn.PID() || len(m.Data) < headerSize {
			return false
		}
		name := tableOf(m.Data[headerSize:])
		return name == fallbackTable || name != "" && name == b.ownTable()
	})
}

// ownTable returns the name of the lease table, or "".
func (b *Backend) ownTable() string {
	if t := b.table.Load(); t != nil {
		return *t
	}
	return ""
}

// Prepare creates this agent's lease table with its sets and without rules.
func (b *Backend) Prepare(ctx context.Context, r rules.Rules) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.applyMu.Lock()
	defer b.applyMu.Unlock()
	tx := batch{table: leaseTable(r.Owner)}
	err := b.ensureLeaseTable(tx.table)
	if err == nil {
		addSets(&tx)
		err = b.writer.commit(&tx)
	}
	if err != nil {
		return fmt.Errorf("preparing leases: %w", err)
	}
	b.table.Store(&tx.table)
	return nil
}

// Renew sets the leases on keys to end d from now, in one transaction.
func (b *Backend) Renew(ctx context.Context, keys []netip.Addr, d time.Duration) error {
	if b.table.Load() == nil {
		return errors.New("renewing leases: no Apply or Prepare yet")
	}
	return b.updateSets(ctx, "renewing leases", keys, func(tx *batch, suffix string, key []byte) {
		tx.replaceElement(leaseSet+suffix, key, d)
	})
}

// Release ends the leases on keys, in one transaction. For the time drain, packets to
// them that belong to an open TCP session still reach the agent.
func (b *Backend) Release(ctx context.Context, keys []netip.Addr, drain time.Duration) error {
	if b.table.Load() == nil {
		return ctx.Err() // no Apply or Prepare yet, so no lease is held
	}
	return b.updateSets(ctx, "releasing leases", keys, func(tx *batch, suffix string, key []byte) {
		tx.deleteElement(leaseSet+suffix, key)
		if drain > 0 {
			tx.replaceElement(drainSet+suffix, key, drain)
		}
	})
}

// updateSets calls update for each key, with the suffix of its family's set names, and commits the batch.
func (b *Backend) updateSets(ctx context.Context, doing string, keys []netip.Addr, update func(tx *batch, suffix string, key []byte)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	tx := batch{table: b.ownTable()}
	for _, key := range keys {
		update(&tx, familyOf(key.Is6()).suffix, key.AsSlice())
	}
	if err := b.writer.commit(&tx); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}
