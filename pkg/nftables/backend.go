// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// A Backend writes rules into the nftables of one network namespace. It is an
// intercept.Backend.
type Backend struct {
	log    *slog.Logger
	writer *socket // owns the table of leases
	reader *socket
	events *socket

	// table is the name of the table of leases, nil before the first Apply or Prepare. Renew and
	// Release read it without a lock, and so do not wait for an Apply.
	table atomic.Pointer[string]

	inFlight time.Duration // see the constant

	applying sync.Mutex // one Apply, Prepare or Remove at a time
	written  *written   // guarded by applying; nil: unknown
	plain    bool       // guarded by applying; the kernel does not know tables that are owned

	watching sync.Mutex // one Watch at a time
}

// New opens the netlink sockets of a Backend in the current network namespace. It
// changes nothing there. The error names the right, or the part of the kernel, that
// is missing.
func New(c Config) (*Backend, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	b := &Backend{log: c.Log, inFlight: inFlight}
	for _, s := range []**socket{&b.writer, &b.reader, &b.events} {
		opened, err := dial()
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
		*s = opened
	}
	// An empty transaction asks for the right, and for nf_tables.
	if err := b.writer.do(&batch{}); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// String names the backend.
func (b *Backend) String() string { return "nftables" }

// Close gives up the sockets, and with them the table of leases: from then on no
// packet is the agent's. The rules of the fallback stay.
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
