// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/rules"
)

// A match is a piece of a rule: expressions that end the rule for a packet that is
// none of what they look for, or that do something with it.
type match []expr.Any

// The registers that rules use: the first, and what lies behind an address in it.
const (
	register     = unix.NFT_REG_1
	behindIPv4   = unix.NFT_REG32_01
	behindIPv6   = unix.NFT_REG32_00 + 4
	statusDNAT   = 1 << 5 // IPS_DST_NAT
	tcpFlags     = 13     // the offset of a TCP header's flags
	flagSYN      = 0x02
	flagACK      = 0x10
	originalWay  = 0 // IP_CT_DIR_ORIGINAL
	sourcePort   = 0 // the offsets of ports in a header of TCP or UDP
	destPort     = 2
	ipv4Source   = 12 // and of addresses in those of IP
	ipv4Dest     = 16
	ipv6Source   = 8
	ipv6Dest     = 24
	ipv4Checksum = 10
)

// A family is IPv4 or IPv6.
type family struct{ v6 bool }

// suffix ends the names of the family's sets.
func (f family) suffix() string {
	if f.v6 {
		return "6"
	}
	return "4"
}

func (f family) size() uint32 {
	if f.v6 {
		return 16
	}
	return 4
}

// is matches packets of the family.
func (f family) is() match {
	proto := byte(unix.NFPROTO_IPV4)
	if f.v6 {
		proto = unix.NFPROTO_IPV6
	}
	return match{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register}, equal([]byte{proto})}
}

// load puts the packet's source or destination into the register.
func (f family) load(dest bool) *expr.Payload {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: f.offset(dest), Len: f.size()}
}

func (f family) offset(dest bool) uint32 {
	switch {
	case f.v6 && dest:
		return ipv6Dest
	case f.v6:
		return ipv6Source
	case dest:
		return ipv4Dest
	}
	return ipv4Source
}

// to matches packets to a, and from those from a.
func (f family) to(a netip.Addr) match   { return match{f.load(true), equal(a.AsSlice())} }
func (f family) from(a netip.Addr) match { return match{f.load(false), equal(a.AsSlice())} }

// notTo matches packets to anything but a.
func (f family) notTo(a netip.Addr) match {
	return match{f.load(true), &expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: a.AsSlice()}}
}

// toAny matches packets to what is in one of the family's sets of that name.
func (f family) toAny(set string) match {
	return match{f.load(true), &expr.Lookup{SourceRegister: register, SetName: set + f.suffix()}}
}

// session puts what tells a client's sessions apart into the register: its address and
// port.
func (f family) session() match {
	port := uint32(behindIPv4)
	if f.v6 {
		port = behindIPv6
	}
	return match{
		f.load(false),
		&expr.Payload{DestRegister: port, Base: expr.PayloadBaseTransportHeader, Offset: sourcePort, Len: 2},
	}
}

// noteSession matches packets that begin a TCP session, and keeps it in one of the
// family's sets. A packet that finds the set full is not matched.
func (f family) noteSession(set string) match {
	return slices.Concat(tcp(), flags(flagSYN|flagACK, flagSYN), f.session(),
		match{&expr.Dynset{SrcRegKey: register, SetName: set + f.suffix(), Operation: unix.NFT_DYNSET_OP_UPDATE}})
}

// otherSession matches packets of TCP sessions that are not in one of the family's sets.
func (f family) otherSession(set string) match {
	return slices.Concat(tcp(), f.session(),
		match{&expr.Lookup{SourceRegister: register, SetName: set + f.suffix(), Invert: true}})
}

// become writes the packet's source or destination, and puts the checksums right:
// that of IPv4's header, and those of UDP and TCP, which cover the addresses. For
// IPv6 the latter alone are asked for.
func (f family) become(dest bool, a netip.Addr) match {
	value := &expr.Immediate{Register: register, Data: a.AsSlice()}
	if f.v6 {
		return match{value, &raw{name: "payload", attrs: []netlink.Attribute{
			number(unix.NFTA_PAYLOAD_SREG, register), number(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER),
			number(unix.NFTA_PAYLOAD_OFFSET, f.offset(dest)), number(unix.NFTA_PAYLOAD_LEN, f.size()),
			number(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_NONE), number(unix.NFTA_PAYLOAD_CSUM_OFFSET, 0),
			number(unix.NFTA_PAYLOAD_CSUM_FLAGS, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR),
		}}}
	}
	return match{value, &expr.Payload{
		OperationType: expr.PayloadWrite, SourceRegister: register, Base: expr.PayloadBaseNetworkHeader,
		Offset: f.offset(dest), Len: f.size(),
		CsumType: expr.CsumTypeInet, CsumOffset: ipv4Checksum, CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR,
	}}
}

// firstTo matches packets of a protocol's connections whose first packet was to a and
// port.
func (f family) firstTo(a netip.Addr, proto byte, port uint16) match {
	key := uint32(unix.NFT_CT_DST_IP)
	if f.v6 {
		key = unix.NFT_CT_DST_IP6
	}
	original := func(key uint32) *raw {
		return &raw{name: "ct", attrs: []netlink.Attribute{
			number(unix.NFTA_CT_KEY, key), number(unix.NFTA_CT_DREG, register),
			{Type: unix.NFTA_CT_DIRECTION, Data: []byte{originalWay}},
		}}
	}
	return match{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, equal([]byte{proto}),
		original(key), equal(a.AsSlice()),
		original(unix.NFT_CT_PROTO_DST), equal(binary.BigEndian.AppendUint16(nil, port)),
	}
}

// divert sends the connection to one of the targets, a random one.
func (f family) divert(targets *set) match {
	proto, port := uint32(unix.NFPROTO_IPV4), uint32(behindIPv4)
	if f.v6 {
		proto, port = unix.NFPROTO_IPV6, behindIPv6
	}
	return match{
		&expr.Numgen{Register: register, Modulus: uint32(len(targets.elements)), Type: unix.NFT_NG_RANDOM},
		&expr.Lookup{SourceRegister: register, DestRegister: register, IsDestRegSet: true, SetName: targets.name},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: proto, RegAddrMin: register, RegProtoMin: port, Specified: true},
	}
}

// divertTo sends the connection to one target.
func (f family) divertTo(target netip.AddrPort) match {
	proto, port := uint32(unix.NFPROTO_IPV4), uint32(behindIPv4)
	if f.v6 {
		proto, port = unix.NFPROTO_IPV6, behindIPv6
	}
	return match{
		&expr.Immediate{Register: register, Data: target.Addr().AsSlice()},
		&expr.Immediate{Register: port, Data: binary.BigEndian.AppendUint16(nil, target.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: proto, RegAddrMin: register, RegProtoMin: port, Specified: true},
	}
}

func equal(data []byte) *expr.Cmp {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: data}
}

// over matches packets of a protocol whose source or destination port is port.
func over(proto byte, offset uint32, port uint16) match {
	return match{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, equal([]byte{proto}),
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
		equal(binary.BigEndian.AppendUint16(nil, port)),
	}
}

// tcp matches packets of TCP.
func tcp() match {
	return match{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, equal([]byte{unix.IPPROTO_TCP})}
}

// flags matches TCP packets of whose flags those in mask are want.
func flags(mask, want byte) match {
	return match{
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: tcpFlags, Len: 1},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 1, Mask: []byte{mask}, Xor: []byte{0}},
		equal([]byte{want}),
	}
}

// bits matches packets of which that many bits of what e loads are as asked for.
func bits(load expr.Any, mask uint32, set bool) match {
	op := expr.CmpOpEq // with none of them
	if set {
		op = expr.CmpOpNeq
	}
	none := []byte{0, 0, 0, 0}
	return match{
		load,
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, mask), Xor: none},
		&expr.Cmp{Op: op, Register: register, Data: none},
	}
}

// marked matches the agent's own packets, or all others.
func marked(own bool) match {
	return bits(&expr.Meta{Key: expr.MetaKeyMARK, Register: register}, rules.Mark, own)
}

// tracked matches packets that conntrack has looked at.
func tracked() match {
	return bits(&expr.Ct{Key: expr.CtKeySTATE, Register: register}, expr.CtStateBitUNTRACKED, false)
}

// diverted matches packets of connections that DNAT has sent elsewhere.
func diverted() match {
	return bits(&expr.Ct{Key: expr.CtKeySTATUS, Register: register}, statusDNAT, true)
}

// untrack keeps the packet from conntrack, and ends the chain for it.
func untrack() match {
	return match{&expr.Notrack{}, &expr.Verdict{Kind: expr.VerdictAccept}}
}

func leave() match              { return match{&expr.Verdict{Kind: expr.VerdictAccept}} }
func goTo(chain string) match   { return match{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}} }
func reset() match              { return match{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}} }
func masquerade() match         { return match{&expr.Masq{}} }
func udpTo(port uint16) match   { return over(unix.IPPROTO_UDP, destPort, port) }
func tcpTo(port uint16) match   { return over(unix.IPPROTO_TCP, destPort, port) }
func udpFrom(port uint16) match { return over(unix.IPPROTO_UDP, sourcePort, port) }
func tcpFrom(port uint16) match { return over(unix.IPPROTO_TCP, sourcePort, port) }
