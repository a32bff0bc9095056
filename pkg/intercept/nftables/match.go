// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// A match is a part of a rule: expressions that end the rule for a packet that does not
// match, or that change the packet.
type match []expr.Any

// What expressions name by number.
const (
	register          = unix.NFT_REG_1 // the first register of 16 bytes
	statusDNAT        = 1 << 5         // IPS_DST_NAT
	tcpFlags          = 13             // the offset of the flags in a TCP header
	flagSYN           = 0x02
	flagACK           = 0x10
	directionOriginal = 0 // IP_CT_DIR_ORIGINAL
	sourcePort        = 0 // offsets in a TCP or UDP header
	destPort          = 2
	ipv4Source        = 12 // offsets in an IP header
	ipv4Dest          = 16
	ipv6Source        = 8
	ipv6Dest          = 24
	ipv4Checksum      = 10
)

// A family is IPv4 or IPv6, as nf_tables describes it.
type family struct {
	suffix       string // end of the names of its sets
	proto        byte   // NFPROTO_IPV4 or NFPROTO_IPV6
	size         uint32 // size of an address in bytes
	kind         uint32 // datatype of an address, as the program nft numbers it
	after        uint32 // the register right after an address in register
	source, dest uint32 // offsets of the addresses in the IP header
	originalDest uint32 // conntrack key of the original destination of a connection
}

func familyOf(v6 bool) family {
	if v6 {
		return family{"6", unix.NFPROTO_IPV6, 16, typeIPv6, unix.NFT_REG32_00 + 4, ipv6Source, ipv6Dest, unix.NFT_CT_DST_IP6}
	}
	return family{"4", unix.NFPROTO_IPV4, 4, typeIPv4, unix.NFT_REG32_01, ipv4Source, ipv4Dest, unix.NFT_CT_DST_IP}
}

// is matches packets of the family.
func (f family) is() match {
	return match{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register}, equal([]byte{f.proto})}
}

// load loads the packet's source or destination address, which begins at offset in the IP header, into the register.
func (f family) load(offset uint32) *expr.Payload {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.size}
}

// to matches packets to a, and from matches those from a.
func (f family) to(a netip.Addr) match   { return match{f.load(f.dest), equal(a.AsSlice())} }
func (f family) from(a netip.Addr) match { return match{f.load(f.source), equal(a.AsSlice())} }

// notTo matches packets to all addresses except a.
func (f family) notTo(a netip.Addr) match {
	return match{f.load(f.dest), &expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: a.AsSlice()}}
}

// toAny matches packets to an address in the family's set of that name.
func (f family) toAny(set string) match {
	return match{f.load(f.dest), &expr.Lookup{SourceRegister: register, SetName: set + f.suffix}}
}

// session loads the client's address and port, which identify its TCP session, into the
// register.
func (f family) session() match {
	return match{
		f.load(f.source),
		&expr.Payload{DestRegister: f.after, Base: expr.PayloadBaseTransportHeader, Offset: sourcePort, Len: 2},
	}
}

// recordSession matches packets that begin a TCP session, and adds the session to the
// family's set of that name. It does not match if the set is full.
func (f family) recordSession(set string) match {
	return slices.Concat(tcp(), flags(flagSYN|flagACK, flagSYN), f.session(),
		match{&expr.Dynset{SrcRegKey: register, SetName: set + f.suffix, Operation: unix.NFT_DYNSET_OP_UPDATE}})
}

// notRecorded matches packets of TCP sessions that are not in the family's set of that name.
func (f family) notRecorded(set string) match {
	return slices.Concat(tcp(), f.session(),
		match{&expr.Lookup{SourceRegister: register, SetName: set + f.suffix, Invert: true}})
}

// rewriteAddress replaces the packet's source or destination address, which begins at offset in the IP header, by a. It updates the
// checksums that cover the address: of the IPv4 header, and of UDP or TCP. An IPv6 header has no checksum.
func (f family) rewriteAddress(offset uint32, a netip.Addr) match {
	value := &expr.Immediate{Register: register, Data: a.AsSlice()}
	if a.Is6() {
		return match{value, &raw{name: "payload", attrs: []netlink.Attribute{
			number(unix.NFTA_PAYLOAD_SREG, register), number(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER),
			number(unix.NFTA_PAYLOAD_OFFSET, offset), number(unix.NFTA_PAYLOAD_LEN, f.size),
			number(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_NONE), number(unix.NFTA_PAYLOAD_CSUM_OFFSET, 0),
			number(unix.NFTA_PAYLOAD_CSUM_FLAGS, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR),
		}}}
	}
	return match{value, &expr.Payload{
		OperationType: expr.PayloadWrite, SourceRegister: register, Base: expr.PayloadBaseNetworkHeader,
		Offset: offset, Len: f.size,
		CsumType: expr.CsumTypeInet, CsumOffset: ipv4Checksum, CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR,
	}}
}

// originallyTo matches packets of connections of a protocol whose first packet was to a
// and port.
func (f family) originallyTo(a netip.Addr, proto byte, port uint16) match {
	original := func(key uint32) *raw {
		return &raw{name: "ct", attrs: []netlink.Attribute{
			number(unix.NFTA_CT_KEY, key), number(unix.NFTA_CT_DREG, register),
			{Type: unix.NFTA_CT_DIRECTION, Data: []byte{directionOriginal}},
		}}
	}
	return match{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, equal([]byte{proto}),
		original(f.originalDest), equal(a.AsSlice()),
		original(unix.NFT_CT_PROTO_DST), equal(binary.BigEndian.AppendUint16(nil, port)),
	}
}

// dnat rewrites the connection's destination to the address and port in the registers.
func (f family) dnat() *expr.NAT {
	return &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: register, RegProtoMin: f.after, Specified: true}
}

// dnatTo rewrites the connection's destination to target.
func (f family) dnatTo(target netip.AddrPort) match {
	return match{
		&expr.Immediate{Register: register, Data: target.Addr().AsSlice()},
		&expr.Immediate{Register: f.after, Data: binary.BigEndian.AppendUint16(nil, target.Port())},
		f.dnat(),
	}
}

func equal(data []byte) *expr.Cmp {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: data}
}

// portMatch matches packets of a protocol whose port at offset is port.
func portMatch(proto byte, offset uint32, port uint16) match {
	return match{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, equal([]byte{proto}),
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
		equal(binary.BigEndian.AppendUint16(nil, port)),
	}
}

// tcp matches TCP packets.
func tcp() match {
	return match{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, equal([]byte{unix.IPPROTO_TCP})}
}

// flags matches TCP packets whose flags in mask equal want.
func flags(mask, want byte) match {
	return match{
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: tcpFlags, Len: 1},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 1, Mask: []byte{mask}, Xor: []byte{0}},
		equal([]byte{want}),
	}
}

// maskMatch matches packets whose loaded value has any bit of mask set or, if set is false, none of them.
func maskMatch(load expr.Any, mask uint32, set bool) match {
	op := expr.CmpOpEq // no bit is set
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

// marked matches packets with the agent's mark or, if own is false, packets without it.
func marked(own bool) match {
	return maskMatch(&expr.Meta{Key: expr.MetaKeyMARK, Register: register}, rules.Mark, own)
}

// isProxied matches packets that Cilium hands to its proxy.
func isProxied() match {
	return match{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: register},
		&expr.Bitwise{
			SourceRegister: register, DestRegister: register, Len: 4,
			Mask: binary.NativeEndian.AppendUint32(nil, rules.HostMask), Xor: []byte{0, 0, 0, 0},
		},
		equal(binary.NativeEndian.AppendUint32(nil, rules.ProxyMark)),
	}
}

// isTest matches packets that test the fallback.
func isTest() match {
	return maskMatch(&expr.Meta{Key: expr.MetaKeyMARK, Register: register}, rules.TestMark, true)
}

// tracked matches packets that conntrack tracks.
func tracked() match {
	return maskMatch(&expr.Ct{Key: expr.CtKeySTATE, Register: register}, expr.CtStateBitUNTRACKED, false)
}

// isDNAT matches packets of connections whose destination DNAT rewrote.
func isDNAT() match {
	return maskMatch(&expr.Ct{Key: expr.CtKeySTATUS, Register: register}, statusDNAT, true)
}

// isOriginal matches packets in the direction of their connection's first packet.
func isOriginal() match {
	return match{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: register}, equal([]byte{directionOriginal})}
}

// track attaches a template of the default zone to the packet, which conntrack then tracks although a later rule says notrack.
func track() match {
	return match{
		&expr.Immediate{Register: register, Data: []byte{0, 0}},
		&expr.Ct{Key: expr.CtKeyZONE, Register: register, SourceRegister: true},
	}
}

// local matches packets whose source or destination, as flag says, is an address of this node.
func local(flag uint32) match {
	return match{
		&expr.Fib{Register: register, ResultADDRTYPE: true, FlagDADDR: flag == unix.NFTA_FIB_F_DADDR, FlagSADDR: flag == unix.NFTA_FIB_F_SADDR},
		equal(binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)),
	}
}

// markHost gives the packet the mark of the node's own packets.
func markHost() match {
	return match{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: register},
		&expr.Bitwise{
			SourceRegister: register, DestRegister: register, Len: 4,
			Mask: binary.NativeEndian.AppendUint32(nil, ^uint32(rules.HostMask)), Xor: binary.NativeEndian.AppendUint32(nil, rules.HostMark),
		},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: register, SourceRegister: true},
	}
}

// notrack exempts the packet from conntrack and ends the base chain for it.
func notrack() match {
	return match{&expr.Notrack{}, &expr.Verdict{Kind: expr.VerdictAccept}}
}

func accept() match           { return match{&expr.Verdict{Kind: expr.VerdictAccept}} }
func goTo(chain string) match { return match{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}} }

func jumpTo(chain string) match { return match{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}} }
func reset() match              { return match{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}} }
func masquerade() match         { return match{&expr.Masq{}} }
func udpTo(port uint16) match   { return portMatch(unix.IPPROTO_UDP, destPort, port) }
func tcpTo(port uint16) match   { return portMatch(unix.IPPROTO_TCP, destPort, port) }
func udpFrom(port uint16) match { return portMatch(unix.IPPROTO_UDP, sourcePort, port) }
func tcpFrom(port uint16) match { return portMatch(unix.IPPROTO_TCP, sourcePort, port) }
