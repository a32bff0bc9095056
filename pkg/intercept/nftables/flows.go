// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/retry"
)

// Names of ctnetlink (linux/netfilter/nfnetlink_conntrack.h).
const (
	flowGet       = 1           // IPCTNL_MSG_CT_GET
	flowDelete    = 2           // IPCTNL_MSG_CT_DELETE
	flowOriginal  = 1           // CTA_TUPLE_ORIG
	flowReply     = 2           // CTA_TUPLE_REPLY
	flowID        = 12          // CTA_ID
	flowZone      = 18          // CTA_ZONE
	flowFilter    = 25          // CTA_FILTER
	filterForward = 1           // CTA_FILTER_ORIG_FLAGS
	filterBack    = 2           // CTA_FILTER_REPLY_FLAGS
	filterByPort  = 1<<3 | 1<<5 // bits of the filter: protocol and destination port
	filterByIP    = 1 << 1      // bit of the filter: destination address
	tupleIP       = 1           // CTA_TUPLE_IP
	tupleSource   = 1           // CTA_IP_V4_SRC
	tupleDest     = 2           // CTA_IP_V4_DST
	tupleIPv6     = 2           // CTA_IP_V6_SRC and CTA_IP_V6_DST are higher by this
	tupleProto    = 2           // CTA_TUPLE_PROTO
	protoNumber   = 1           // CTA_PROTO_NUM
	protoSource   = 2           // CTA_PROTO_SRC_PORT
	protoDest     = 3           // CTA_PROTO_DST_PORT
)

// flowGrace is how long flows to a removed target stay: a target that shuts down
// gracefully still answers pending queries, and gets no new ones.
const flowGrace = 200 * time.Millisecond

// deleteStaleFlows deletes the UDP conntrack entries to r's keys whose answers come
// from no current target, after flowGrace for pending answers. Otherwise a client that
// always uses the same port would be sent to the removed target forever. The end of ctx
// ends the wait.
func (b *Backend) deleteStaleFlows(ctx context.Context, r *rules.Rules) error {
	if strays, err := b.staleFlows(r); len(strays) == 0 {
		return err
	}
	_ = retry.Sleep(ctx, b.flowGrace)
	strays, unlisted := b.staleFlows(r)
	b.reader.mu.Lock()
	defer b.reader.mu.Unlock()
	for _, f := range strays {
		_, err := b.reader.conn.Execute(flowMessage(flowDelete, netlink.Acknowledge, f.to.Addr(), f.id...))
		if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: it ended meanwhile
			return errors.Join(unlisted, fmt.Errorf("deleting a conntrack entry: %w", err))
		}
	}
	return unlisted
}

// staleFlows returns the flows to delete. On an error it still returns those of the other addresses.
func (b *Backend) staleFlows(r *rules.Rules) (staleFlows []flow, err error) {
	b.reader.mu.Lock()
	defer b.reader.mu.Unlock()
	var errs []error
	for _, a := range r.FallbackKeys() {
		part := r.Family(a.Is6())
		if len(part.Fallback) == 0 {
			continue
		}
		flows, err := b.reader.listFlows(a, r.Port)
		if err != nil {
			errs = append(errs, fmt.Errorf("listing conntrack entries: %w", err))
		}
		for _, f := range flows {
			if !slices.Contains(part.Fallback, f.replyFrom) {
				staleFlows = append(staleFlows, f)
			}
		}
	}
	return staleFlows, errors.Join(errs...)
}

// A flow is a conntrack entry.
type flow struct {
	proto     byte
	to        netip.AddrPort      // destination of the first packet
	replyFrom netip.AddrPort      // source of the answers
	id        []netlink.Attribute // identifies the entry
}

// listFlows lists the UDP flows to a and port. Kernels before 5.8 return all entries:
// these may be many, so they are read one by one.
func (s *socket) listFlows(a netip.Addr, port uint16) ([]flow, error) {
	dest, by := uint16(tupleDest), uint32(filterByPort|filterByIP)
	if a.Is6() {
		dest, by = tupleDest+tupleIPv6, filterByPort // kernels up to 6.18 at least get the IPv6 address filter wrong
	}
	peer := nested(flowOriginal,
		nested(tupleIP, netlink.Attribute{Type: dest, Data: a.AsSlice()}),
		nested(tupleProto, netlink.Attribute{Type: protoNumber, Data: []byte{unix.IPPROTO_UDP}},
			netlink.Attribute{Type: protoDest, Data: binary.BigEndian.AppendUint16(nil, port)}))
	filter := nested(flowFilter,
		netlink.Attribute{Type: filterForward, Data: binary.NativeEndian.AppendUint32(nil, by)},
		netlink.Attribute{Type: filterBack, Data: []byte{0, 0, 0, 0}})
	if _, err := s.conn.Send(flowMessage(flowGet, netlink.Dump, a, peer, filter)); err != nil {
		return nil, err
	}
	var flows []flow
	for m, err := range s.conn.ReceiveIter() {
		if err != nil {
			return nil, err
		}
		if f := parseFlow(m.Data[headerSize:]); f.proto == unix.IPPROTO_UDP && f.to == netip.AddrPortFrom(a, port) {
			flows = append(flows, f)
		}
	}
	return flows, nil
}

func flowMessage(kind int, flags netlink.HeaderFlags, a netip.Addr, attrs ...netlink.Attribute) netlink.Message {
	af := byte(unix.AF_INET)
	if a.Is6() {
		af = unix.AF_INET6
	}
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | kind), Flags: netlink.Request | flags},
		Data:   append([]byte{af, unix.NFNETLINK_V0, 0, 0}, nested(0, attrs...).Data...),
	}
}

// parseFlow parses the attributes of a conntrack entry.
func parseFlow(data []byte) flow {
	f := flow{to: flowEnd(data, flowOriginal, tupleDest, protoDest), replyFrom: flowEnd(data, flowReply, tupleSource, protoSource)}
	if proto := find(data, flowOriginal, tupleProto, protoNumber); len(proto) == 1 {
		f.proto = proto[0]
	}
	for _, a := range attributes(data) {
		switch a.Type {
		case flowOriginal:
			f.id = append(f.id, netlink.Attribute{Type: a.Type | unix.NLA_F_NESTED, Data: a.Data})
		case flowID, flowZone:
			f.id = append(f.id, a)
		}
	}
	return f
}

// flowEnd returns the source or destination of one direction of a conntrack entry.
func flowEnd(data []byte, direction, addr, port uint16) netip.AddrPort {
	ip := find(data, direction, tupleIP, addr)
	if ip == nil {
		ip = find(data, direction, tupleIP, addr+tupleIPv6)
	}
	a, _ := netip.AddrFromSlice(ip)
	p := find(data, direction, tupleProto, port)
	if len(p) != 2 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(p))
}
