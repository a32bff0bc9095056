// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// priorityTrace is before all chains that decide, and after the reassembly of fragments.
const priorityTrace = -399

// A Tracer makes the kernel trace the packets of a client: it reports each rule that they pass to the group NFNLGRP_NFTRACE.
type Tracer struct{ socket *socket }

// NewTracer traces the packets from and to src in the current network namespace. The table [TraceTable] exists until Close,
// or until this process ends for any reason; before Linux 5.12 until Close or [Backend.Remove] only. There is one Tracer at a
// time. It needs the capability NET_ADMIN.
func NewTracer(src netip.Addr) (*Tracer, error) {
	s, err := dial()
	if err != nil {
		return nil, err
	}
	t := &Tracer{s}
	if err := t.start(src); err != nil {
		return nil, errors.Join(err, s.conn.Close())
	}
	return t, nil
}

// start adds the table.
func (t *Tracer) start(src netip.Addr) error {
	all, err := t.socket.listTables()
	if err != nil {
		return err
	}
	tx := batch{table: TraceTable}
	switch port, isThere := all[TraceTable]; {
	case port != 0:
		return fmt.Errorf("adding table %s: another process owns it, at netlink port %d", TraceTable, port)
	case isThere: // of a process that was killed, on a kernel without owned tables or by an older version
		tx.deleteTable(TraceTable)
		if err := t.socket.commit(&tx); err != nil {
			return err
		}
		tx = batch{table: TraceTable}
	}
	owned, err := t.socket.addOwned(TraceTable)
	if err != nil {
		return err
	}
	f := familyOf(src.Is6())
	trace := match{&expr.Immediate{Register: register, Data: []byte{1}}, &expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: register}}
	for chain, hook := range map[string]uint32{"arriving": unix.NF_INET_PRE_ROUTING, "sent": unix.NF_INET_LOCAL_OUT} {
		tx.baseChain(chain, "filter", hook, priorityTrace)
		tx.rule(chain, "from the client", f.is(), f.from(src), trace)
		tx.rule(chain, "to the client", f.is(), f.to(src), trace)
	}
	if err := t.socket.commit(&tx); err != nil {
		if !owned {
			err = errors.Join(err, t.remove())
		}
		return err
	}
	return nil
}

func (t *Tracer) remove() error {
	var tx batch
	tx.deleteTable(TraceTable)
	return t.socket.commit(&tx)
}

// Close ends the trace and deletes the table.
func (t *Tracer) Close() error {
	err := t.remove()
	if closed := t.socket.conn.Close(); closed != nil {
		err = errors.Join(err, fmt.Errorf("closing a netlink socket: %w", closed))
	}
	return err
}
