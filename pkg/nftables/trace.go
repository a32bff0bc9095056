// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// priorityTrace is before all that decides something, and after packets are put
// together that came in pieces.
const priorityTrace = -399

// Trace follows the packets from and to the client src through the nftables of the
// current network namespace while send runs, and returns where they were dropped, each
// place once, in the order seen. A rule that rejects drops, too. What iptables-legacy
// or the kernel itself drops is not seen.
//
// It needs the capability NET_ADMIN. While send runs there is a table
// node-cache.doctor, which ends with this process.
func Trace(ctx context.Context, src netip.Addr, send func(context.Context) error) ([]Drop, error) {
	events, err := dial()
	if err != nil {
		return nil, err
	}
	defer func() { _ = events.close() }()
	writer, err := dial()
	if err != nil {
		return nil, err
	}
	defer func() { _ = writer.close() }()
	if err := events.conn.JoinGroup(unix.NFNLGRP_NFTRACE); err != nil {
		return nil, explain("watching packets", err)
	}
	err = traceFrom(writer, src, tableOwned)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = traceFrom(writer, src, 0)
	}
	if err != nil {
		return nil, err
	}
	failed := send(ctx)
	var end batch
	end.dropTable(traceTable)
	failed = errors.Join(failed, writer.do(&end))
	messages, err := events.pending()
	if err != nil && !errors.Is(err, unix.ENOBUFS) { // too many packets: those that were seen will do
		return nil, errors.Join(failed, explain("watching packets", err))
	}
	drops := dropsOf(messages)
	for i := range drops {
		drops[i].Rule = describeDrop(&drops[i])
	}
	return drops, failed
}

// traceFrom has packets from and to src traced.
func traceFrom(s *socket, src netip.Addr, flags uint32) error {
	f := family{v6: src.Is6()}
	trace := match{
		&expr.Immediate{Register: register, Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: register},
	}
	t := table{name: traceTable}
	for name, hook := range map[string]uint32{"arriving": unix.NF_INET_PRE_ROUTING, "sent": unix.NF_INET_LOCAL_OUT} {
		t.chains = append(t.chains, chain{name: name, kind: "filter", hook: hook, priority: priorityTrace})
		t.rules = append(t.rules,
			newRule(name, "from the client", f.is(), f.from(src), trace),
			newRule(name, "to the client", f.is(), f.to(src), trace))
	}
	var tx batch
	tx.table(t.name, flags)
	t.fill(&tx)
	return s.do(&tx)
}

// dropsOf finds the drops among trace messages.
func dropsOf(messages []syscall.NetlinkMessage) []Drop {
	var drops []Drop
	for _, m := range messages {
		if m.Header.Type != uint16(messageType(unix.NFT_MSG_TRACE)) {
			continue
		}
		if d, ok := dropOf(m.Data); ok && !slices.Contains(drops, d) {
			drops = append(drops, d)
		}
	}
	return drops
}

// dropOf reads a trace message, if it tells of a drop.
func dropOf(data []byte) (Drop, bool) {
	if len(data) < headerSize {
		return Drop{}, false
	}
	d := Drop{Family: familyName(data[0])}
	verdict, policy := uint32(verdictAccept), uint32(verdictAccept)
	kind := uint32(0)
	err := attributes(data, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_TRACE_TABLE:
			d.Table = ad.String()
		case unix.NFTA_TRACE_CHAIN:
			d.Chain = ad.String()
		case unix.NFTA_TRACE_RULE_HANDLE:
			d.Handle = ad.Uint64()
		case unix.NFTA_TRACE_TYPE:
			kind = ad.Uint32()
		case unix.NFTA_TRACE_POLICY:
			policy = ad.Uint32()
		case unix.NFTA_TRACE_VERDICT:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					if ad.Type() == unix.NFTA_VERDICT_CODE {
						verdict = ad.Uint32()
					}
				}
				return ad.Err()
			})
		}
	})
	switch {
	case err != nil:
		return Drop{}, false
	case kind == unix.NFT_TRACETYPE_POLICY && policy == verdictDrop:
		d.Policy, d.Handle = true, 0
		return d, true
	case kind == unix.NFT_TRACETYPE_RULE && verdict&0xff == verdictDrop && int32(verdict) >= 0:
		return d, true
	}
	return Drop{}, false
}

func familyName(proto byte) string {
	switch proto {
	case unix.NFPROTO_INET:
		return "inet"
	case unix.NFPROTO_IPV4:
		return "ip"
	case unix.NFPROTO_IPV6:
		return "ip6"
	case unix.NFPROTO_ARP:
		return "arp"
	case unix.NFPROTO_BRIDGE:
		return "bridge"
	case unix.NFPROTO_NETDEV:
		return "netdev"
	}
	return ""
}

func familyNumber(name string) byte {
	for _, proto := range []byte{unix.NFPROTO_INET, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6, unix.NFPROTO_ARP, unix.NFPROTO_BRIDGE, unix.NFPROTO_NETDEV} {
		if familyName(proto) == name {
			return proto
		}
	}
	return unix.NFPROTO_UNSPEC
}
