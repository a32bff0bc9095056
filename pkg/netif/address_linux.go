// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// tries of a dump that changes interrupt. That of one link fits in one message and is
// never interrupted where the kernel has it.
const tries = 5

func (k *netlinkKernel) addresses(index int) ([]address, error) {
	for try := 1; ; try++ {
		req := k.request(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		msg := nl.NewIfAddrmsg(unix.AF_UNSPEC)
		msg.Index = uint32(index)
		req.AddData(msg)
		replies, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
		if errors.Is(err, netlink.ErrDumpInterrupted) && try < tries {
			continue
		}
		if err != nil {
			return nil, translate(err)
		}
		return parseAddresses(replies, index)
	}
}

// parseAddresses returns those of one link, or all with index 0.
func parseAddresses(replies [][]byte, index int) ([]address, error) {
	var list []address
	for _, reply := range replies {
		a, err := parseAddress(reply)
		if err != nil {
			return nil, err
		}
		if a.prefix.IsValid() && (index == 0 || a.index == index) {
			list = append(list, a)
		}
	}
	return list, nil
}

// parseAddress reads an RTM_NEWADDR or RTM_DELADDR. One of another family than IP has
// no prefix.
func parseAddress(msg []byte) (address, error) {
	if len(msg) < unix.SizeofIfAddrmsg {
		return address{}, fmt.Errorf("reading an address message of %d bytes: too short", len(msg))
	}
	header := nl.DeserializeIfAddrmsg(msg)
	a := address{index: int(header.Index)}
	flags := uint32(header.Flags)
	var ip []byte
	for kind, v := range attributes(msg[unix.SizeofIfAddrmsg:]) {
		switch kind {
		case unix.IFA_LOCAL: // of both ends of a link the one that is here
			ip = v
		case unix.IFA_ADDRESS:
			if ip == nil {
				ip = v
			}
		case unix.IFA_FLAGS:
			flags = number(v)
		case unix.IFA_RT_PRIORITY:
			a.mark = number(v)
		}
	}
	if addr, ok := netip.AddrFromSlice(ip); ok && int(header.Prefixlen) <= addr.BitLen() {
		a.prefix = netip.PrefixFrom(addr, int(header.Prefixlen))
	}
	a.failed = flags&unix.IFA_F_DADFAILED != 0
	a.tentative = flags&unix.IFA_F_TENTATIVE != 0 && flags&unix.IFA_F_OPTIMISTIC == 0
	return a, nil
}

// attributes are those of a message, up to one that does not fit in it. That of
// package nl panics at such.
func attributes(data []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(data) >= unix.SizeofRtAttr {
			size := int(binary.NativeEndian.Uint16(data))
			if size < unix.SizeofRtAttr || size > len(data) {
				return
			}
			kind := binary.NativeEndian.Uint16(data[2:]) & nl.NLA_TYPE_MASK
			if !yield(kind, data[unix.SizeofRtAttr:size]) {
				return
			}
			data = data[min(len(data), (size+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1)):]
		}
	}
}

func number(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(v)
}

func (k *netlinkKernel) put(index int, a netip.Addr, mark uint32, replace bool) error {
	how := unix.NLM_F_CREATE | unix.NLM_F_EXCL
	if replace {
		how = unix.NLM_F_REPLACE
	}
	req := k.request(unix.RTM_NEWADDR, how|unix.NLM_F_ACK)
	msg := message(index, netip.PrefixFrom(a, a.BitLen()), req)
	req.AddData(attribute(unix.IFA_RT_PRIORITY, mark))
	if a.Is4() {
		// With another scope it could become the source of what the node sends to others,
		// and arp_ignore 3 would not keep it from the node's neighbours.
		msg.Scope = unix.RT_SCOPE_HOST
	} else {
		req.AddData(attribute(unix.IFA_FLAGS, unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE))
		forever := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Valid: math.MaxUint32}} // preferred: never
		req.AddData(nl.NewRtAttr(unix.IFA_CACHEINFO, forever.Serialize()))
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return translate(err)
}

func (k *netlinkKernel) drop(index int, p netip.Prefix) error {
	req := k.request(unix.RTM_DELADDR, unix.NLM_F_ACK)
	message(index, p, req)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return nil
	}
	return translate(err)
}

func (k *netlinkKernel) request(kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.addrs}
	return req
}

// message begins a request about an address.
func message(index int, p netip.Prefix, req *nl.NetlinkRequest) *nl.IfAddrmsg {
	family := unix.AF_INET
	if p.Addr().Is6() {
		family = unix.AF_INET6
	}
	msg := nl.NewIfAddrmsg(family)
	msg.Index = uint32(index)
	msg.Prefixlen = uint8(p.Bits())
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, p.Addr().AsSlice()))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, p.Addr().AsSlice()))
	return msg
}

func attribute(kind int, value uint32) *nl.RtAttr {
	return nl.NewRtAttr(kind, nl.Uint32Attr(value))
}
