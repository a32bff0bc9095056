// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/nftables"
)

// trace traces the packets from and to the client src through the nftables of this network namespace while send runs.
// It returns the places that dropped or rejected them, each once, in order. It does not see drops by iptables-legacy or
// by the kernel itself. It needs the capability NET_ADMIN.
//
// While send runs, there is an [nftables.Tracer].
func trace(ctx context.Context, src netip.Addr, send func(context.Context) error, now func() time.Time) (drops []Drop, err error) {
	events, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer func() { _ = events.Close() }()
	_ = events.SetReadBuffer(4 << 20) // best effort: lost traces are not needed
	if err := events.JoinGroup(unix.NFNLGRP_NFTRACE); err != nil {
		return nil, fmt.Errorf("subscribing to traces: %w", err)
	}
	tracer, err := nftables.NewTracer(src)
	if err != nil {
		return nil, fmt.Errorf("tracing packets: %w", err)
	}
	err = errors.Join(send(ctx), tracer.Close())
	drops, failed := readTraces(events, now)
	return drops, errors.Join(err, failed)
}

// readTraces returns the drops that the kernel has reported to the socket, each once.
func readTraces(events *netlink.Conn, now func() time.Time) (drops []Drop, err error) {
	for { // the kernel has sent the traces before the packets were dropped
		_ = events.SetReadDeadline(now().Add(50 * time.Millisecond))
		messages, err := events.Receive()
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

// parseTrace parses a trace message. It reports whether that is a drop.
func parseTrace(m *netlink.Message) (d Drop, dropped bool) {
	const header, drop, accept = 4, 0, 1 // struct nfgenmsg, NF_DROP, NF_ACCEPT
	if m.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE || len(m.Data) < header {
		return d, false
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[header:])
	if err != nil {
		return d, false
	}
	ad.ByteOrder = binary.BigEndian
	families := map[byte]string{
		unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_ARP: "arp", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev",
	}
	table, chain, handle := "", "", uint64(0)
	kind, policy, verdict := uint32(0), uint32(accept), uint32(accept)
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_TRACE_TABLE:
			table = ad.String()
		case unix.NFTA_TRACE_CHAIN:
			chain = ad.String()
		case unix.NFTA_TRACE_RULE_HANDLE:
			handle = ad.Uint64()
		case unix.NFTA_TRACE_TYPE:
			kind = ad.Uint32()
		case unix.NFTA_TRACE_POLICY:
			policy = ad.Uint32()
		case unix.NFTA_TRACE_VERDICT:
			ad.Nested(func(ad *netlink.AttributeDecoder) error { return parseVerdict(ad, &verdict) })
		}
	}
	d.Where = strings.Join([]string{families[m.Data[0]], table, chain}, " ")
	switch {
	case ad.Err() != nil:
		return d, false
	case kind == unix.NFT_TRACETYPE_POLICY:
		d.Policy = true
		return d, policy == drop
	}
	d.Rule = fmt.Sprintf("the rule with handle %d, see `nft -a list chain %s`", handle, d.Where)
	return d, kind == unix.NFT_TRACETYPE_RULE && verdict&0xff == drop && int32(verdict) >= 0
}

// parseVerdict sets code to that of a verdict, if it has one.
func parseVerdict(ad *netlink.AttributeDecoder, code *uint32) error {
	for ad.Next() {
		if ad.Type() == unix.NFTA_VERDICT_CODE {
			*code = ad.Uint32()
		}
	}
	return ad.Err()
}
