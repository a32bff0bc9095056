// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/rules"
)

// A Config configures a Backend.
type Config struct {
	Log *slog.Logger // nil: no logs
}

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

	flowGrace time.Duration // see the constant

	applyMu   sync.Mutex // held by Apply, Prepare and Remove
	applied   *contents  // by the last Apply; guarded by applyMu; nil: unknown
	ownerless bool       // guarded by applyMu; the kernel does not support owned tables

	watchMu sync.Mutex // held by Watch
}

// New opens the netlink sockets of a Backend in the current network namespace. It
// changes nothing there. The error names a missing capability or kernel option.
func New(c Config) (*Backend, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	b := &Backend{log: c.Log, flowGrace: flowGrace}
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

// Close closes the sockets. The kernel then deletes the lease table, so no packet is the
// agent's any more. The fallback table stays.
func (b *Backend) Close() error {
	var errs []error
	for _, s := range []*socket{b.writer, b.reader, b.events} {
		if s == nil {
			continue
		}
		if err := s.close(); err != nil {
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
	own := ""
	if t := b.table.Load(); t != nil {
		own = *t
	}
	for _, m := range messages {
		if m.Header.PID == b.writer.conn.PID() {
			continue
		}
		if name := tableOf(m.Data); name == fallbackTable || name != "" && name == own {
			return true
		}
	}
	return false
}

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
