// SPDX-License-Identifier: Apache-2.0

//go:build linux

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

	"github.com/nodecache/node-cache/pkg/rules"
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
	filterByPort  = 1<<3 | 1<<5 // by the protocol and the destination's port
	filterByIP    = 1 << 1      // by the destination
	tupleIP       = 1           // CTA_TUPLE_IP
	tupleProto    = 2           // CTA_TUPLE_PROTO
	protoNumber   = 1           // CTA_PROTO_NUM
	protoSource   = 2           // CTA_PROTO_SRC_PORT
	protoDest     = 3           // CTA_PROTO_DST_PORT
)

// inFlight is how long the flows to a former target are left as they are: a target that
// leaves in order answers what it was asked, and no new client is sent to it.
const inFlight = 200 * time.Millisecond

// forget has conntrack forget the UDP flows to r's addresses whose answers would come
// from none of the present targets, once those under way are there. A client that asks
// from one port all the time would else be sent to a target that has gone, for as long as
// it asks. The end of ctx is the end of the waiting.
func (b *Backend) forget(ctx context.Context, r *rules.Rules) error {
	if strays, err := b.strays(r); len(strays) == 0 {
		return err
	}
	wait := time.NewTimer(b.inFlight)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
	strays, unlisted := b.strays(r)
	b.reader.mu.Lock()
	defer b.reader.mu.Unlock()
	for _, f := range strays {
		_, err := b.reader.conn.Execute(flowMessage(flowDelete, netlink.Acknowledge, f.to.Addr(), f.name...))
		if err != nil && !errors.Is(err, unix.ENOENT) { // it may have ended meanwhile
			return errors.Join(unlisted, fmt.Errorf("forgetting a connection: %w", err))
		}
	}
	return unlisted
}

// strays are the flows that are to be forgotten, of the addresses whose flows can be listed.
func (b *Backend) strays(r *rules.Rules) (strays []flow, err error) {
	b.reader.mu.Lock()
	defer b.reader.mu.Unlock()
	var errs []error
	for _, a := range r.Addresses {
		part := r.Family(a.Is6())
		if len(part.Fallback) == 0 {
			continue
		}
		flows, err := b.flowsTo(a, r.Port)
		if err != nil {
			errs = append(errs, fmt.Errorf("listing connections: %w", err))
		}
		for _, f := range flows {
			if !slices.Contains(part.Fallback, f.answers) {
				strays = append(strays, f)
			}
		}
	}
	return strays, errors.Join(errs...)
}

// A flow is a connection that conntrack knows.
type flow struct {
	proto   byte
	to      netip.AddrPort      // where its first packet was sent
	answers netip.AddrPort      // where the answers come from
	name    []netlink.Attribute // what tells it from all others
}

// flowsTo lists the UDP flows to a and port. Kernels older than 5.8 tell of all there
// are: these are read one by one, as they may be many.
func (b *Backend) flowsTo(a netip.Addr, port uint16) ([]flow, error) {
	dest, by := uint16(2), uint32(filterByPort|filterByIP) // CTA_IP_V4_DST
	if a.Is6() {
		dest, by = 4, filterByPort // kernels up to 6.18 at least leave out what they should leave in
	}
	peer := nested(flowOriginal,
		nested(tupleIP, netlink.Attribute{Type: dest, Data: a.AsSlice()}),
		nested(tupleProto, netlink.Attribute{Type: protoNumber, Data: []byte{unix.IPPROTO_UDP}},
			netlink.Attribute{Type: protoDest, Data: binary.BigEndian.AppendUint16(nil, port)}))
	filter := nested(flowFilter,
		netlink.Attribute{Type: filterForward, Data: binary.NativeEndian.AppendUint32(nil, by)},
		netlink.Attribute{Type: filterBack, Data: []byte{0, 0, 0, 0}})
	if _, err := b.reader.conn.Send(flowMessage(flowGet, netlink.Dump, a, peer, filter)); err != nil {
		return nil, err
	}
	var flows []flow
	for m, err := range b.reader.conn.ReceiveIter() {
		if err != nil {
			return nil, err
		}
		if f, err := flowOf(m.Data); err == nil && f.proto == unix.IPPROTO_UDP && f.to == netip.AddrPortFrom(a, port) {
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

// flowOf reads a message about a connection.
func flowOf(data []byte) (flow, error) {
	var f flow
	var failed error
	err := attributes(data, func(ad *netlink.AttributeDecoder) {
		kind := ad.Type()
		switch kind {
		case flowOriginal, flowID, flowZone:
			flags := uint16(0)
			if kind == flowOriginal {
				flags = unix.NLA_F_NESTED
			}
			f.name = append(f.name, netlink.Attribute{Type: kind | flags, Data: slices.Clone(ad.Bytes())})
		}
		switch kind {
		case flowOriginal:
			var t tuple
			failed = errors.Join(failed, t.read(ad.Bytes()))
			f.proto, f.to = t.proto, t.dst
		case flowReply:
			var t tuple
			failed = errors.Join(failed, t.read(ad.Bytes()))
			f.answers = t.src
		}
	})
	return f, errors.Join(err, failed)
}

// A tuple is one direction of a connection.
type tuple struct {
	proto    byte
	src, dst netip.AddrPort
}

func (t *tuple) read(data []byte) error {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		switch ad.Type() {
		case tupleIP:
			ad.Nested(t.readAddresses)
		case tupleProto:
			ad.Nested(t.readPorts)
		}
	}
	return ad.Err()
}

func (t *tuple) readAddresses(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		a, _ := netip.AddrFromSlice(ad.Bytes())
		if ad.Type()%2 == 1 { // CTA_IP_V4_SRC, CTA_IP_V6_SRC
			t.src = netip.AddrPortFrom(a, t.src.Port())
		} else {
			t.dst = netip.AddrPortFrom(a, t.dst.Port())
		}
	}
	return ad.Err()
}

func (t *tuple) readPorts(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case protoNumber:
			t.proto = ad.Uint8()
		case protoSource:
			t.src = netip.AddrPortFrom(t.src.Addr(), ad.Uint16())
		case protoDest:
			t.dst = netip.AddrPortFrom(t.dst.Addr(), ad.Uint16())
		}
	}
	return ad.Err()
}
