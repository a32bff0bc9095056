// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// priorityTrace is before all chains that accept or drop packets, and after the reassembly of fragments.
const priorityTrace = -399

// A Tracer makes the kernel trace the packets of a client: the kernel reports each rule that they pass to the group NFNLGRP_NFTRACE.
type Tracer struct {
	socket *socket
	events *netlink.Conn // subscribed to that group
}

// A Drop is a rule or policy that dropped packets.
type Drop struct {
	Where  string // family, table and chain
	Rule   string // names the rule by its handle; empty: the chain's policy dropped the packets
	Policy bool
}

// NewTracer traces the packets from and to src in the current network namespace. The table [TraceTable] exists until Close,
// or until this process ends for any reason; before Linux 5.12 until Close or [Backend.Remove] only. There is one Tracer at a
// time. It needs the capability NET_ADMIN.
func NewTracer(src netip.Addr) (*Tracer, error) {
	s, err := dial()
	if err != nil {
		return nil, err
	}
	events, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, errors.Join(withHint("opening a netlink socket", err), s.conn.Close())
	}
	_ = events.SetReadBuffer(receiveBuffer) // best effort: the traces that arrive are enough
	t := &Tracer{s, events}
	if err = events.JoinGroup(unix.NFNLGRP_NFTRACE); err != nil {
		err = fmt.Errorf("subscribing to traces: %w", err)
	} else {
		err = t.start(src)
	}
	if err != nil {
		return nil, errors.Join(err, events.Close(), s.conn.Close())
	}
	return t, nil
}

// start adds the table [TraceTable] with rules that trace the packets from and to src.
func (t *Tracer) start(src netip.Addr) error {
	all, err := t.socket.listTables()
	if err != nil {
		return err
	}
	tx := batch{table: TraceTable}
	switch port, isThere := all[TraceTable]; {
	case port != 0:
		return fmt.Errorf("adding table %s: another process owns it, at netlink port %d", TraceTable, port)
	case isThere: // left by a killed process: of an older version, or on a kernel without owned tables
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

// Drops returns the drops that the kernel has reported, each once. It ends when no trace arrives for 50 ms.
func (t *Tracer) Drops(now func() time.Time) (drops []Drop, err error) {
	for { // the kernel sends a packet's traces before it drops the packet
		_ = t.events.SetReadDeadline(now().Add(50 * time.Millisecond))
		messages, err := t.events.Receive()
		for _, m := range messages {
			if d, ok := parseTrace(&m); ok && !slices.Contains(drops, d) {
				drops = append(drops, d)
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, unix.ENOBUFS) { // ENOBUFS: the other traces are enough
			return drops, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading traces: %w", err)
		}
	}
}

// parseTrace parses a trace message, and reports whether the packet was dropped.
func parseTrace(m *netlink.Message) (d Drop, dropped bool) {
	const drop, accept = 0, 1 // NF_DROP, NF_ACCEPT
	if m.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE || len(m.Data) < headerSize {
		return d, false
	}
	families := map[byte]string{
		unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_ARP: "arp", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev",
	}
	data := m.Data[headerSize:]
	code := func(path ...uint16) uint32 {
		if value := find(data, path...); len(value) == 4 {
			return binary.BigEndian.Uint32(value)
		}
		return accept
	}
	d.Where = strings.Join([]string{families[m.Data[0]], findText(data, unix.NFTA_TRACE_TABLE), findText(data, unix.NFTA_TRACE_CHAIN)}, " ")
	switch code(unix.NFTA_TRACE_TYPE) {
	case unix.NFT_TRACETYPE_POLICY:
		d.Policy = true
		return d, code(unix.NFTA_TRACE_POLICY) == drop
	case unix.NFT_TRACETYPE_RULE:
		if handle := find(data, unix.NFTA_TRACE_RULE_HANDLE); len(handle) == 8 {
			d.Rule = fmt.Sprintf("the rule with handle %d, see `nft -a list chain %s`", binary.BigEndian.Uint64(handle), d.Where)
		}
		verdict := code(unix.NFTA_TRACE_VERDICT, unix.NFTA_VERDICT_CODE)
		return d, verdict&0xff == drop && int32(verdict) >= 0
	}
	return d, false
}

// Close ends the trace and deletes the table.
func (t *Tracer) Close() error {
	err := errors.Join(t.remove(), t.events.Close())
	if closed := t.socket.conn.Close(); closed != nil {
		err = errors.Join(err, fmt.Errorf("closing a netlink socket: %w", closed))
	}
	return err
}
