// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// priorityConntrack is the priority of conntrack: what comes later has no say.
const priorityConntrack = -200

// The tables and the chains in raw that agents write.
const (
	ownTable = "node-cache"
	ownChain = "NODE-CACHE-"
)

func nftNotracks(packets []packet) ([]Notrack, error) {
	bases, err := rawBases()
	if err != nil || len(bases) == 0 {
		return nil, err
	}
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("opening netlink: %w", err)
	}
	defer func() { _ = conn.CloseLasting() }()
	var list []Notrack
	r := nftReader{conn: conn}
	for _, c := range bases {
		b := rawBase{chains: rawChains{}, name: c.Name, priority: int(*c.Priority), comes: yes}
		b.describe = func(chain string) string {
			return fmt.Sprintf("chain %s of table %s %s", chain, familyName(c.Table.Family), c.Table.Name)
		}
		if c.Table.Name == "raw" && isIPTablesFamily(c.Table.Family) {
			b.backend = BackendIPTablesNFT
		}
		if ofInterface(c) {
			b.comes = maybe
		}
		if err := r.read(c.Table, c.Name, b.chains); err != nil {
			return list, err
		}
		list = append(list, b.notracks(packetsOf(c.Table.Family, packets))...)
	}
	return list, nil
}

func isIPTablesFamily(f nftables.TableFamily) bool {
	return f == nftables.TableFamilyIPv4 || f == nftables.TableFamilyIPv6
}

func familyName(f nftables.TableFamily) string {
	return map[nftables.TableFamily]string{
		nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
		nftables.TableFamilyNetdev: "netdev", nftables.TableFamilyBridge: "bridge",
	}[f]
}

// packetsOf returns the packets that chains of a family see.
func packetsOf(f nftables.TableFamily, packets []packet) (list []packet) {
	for _, p := range packets {
		if isIPTablesFamily(f) && p.v6() != (f == nftables.TableFamilyIPv6) {
			continue
		}
		list = append(list, p)
	}
	return list
}

// rawBases returns the base chains for packets that arrive, before conntrack, but those of agents. The kernel lists the chains of all
// tables, and a kube-proxy with thousands of Services has tens of thousands: all but a few are forgotten while they are read.
func rawBases() (list []*nftables.Chain, err error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	failed := request.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(m []byte) bool {
		c, ok := rawBaseIn(m)
		if !ok {
			return true
		}
		if len(list) == maxRawChains {
			err = errTooMany
			return false
		}
		list = append(list, c)
		return true
	})
	switch {
	case failed == nil, errors.Is(failed, netlink.ErrDumpInterrupted): // the next reading sees what changes meanwhile
		return list, err
	case errors.Is(failed, unix.EOPNOTSUPP), errors.Is(failed, unix.EINVAL):
		return nil, nil // the kernel has no nf_tables
	}
	return nil, fmt.Errorf("listing chains: %w", failed)
}

// hookInetIngress is NF_INET_INGRESS.
const hookInetIngress = 5

// rawBaseIn returns the chain of a message of the kernel if it is one that rawBases wants.
func rawBaseIn(m []byte) (c *nftables.Chain, ok bool) {
	const header = 4 // of nfnetlink
	if len(m) < header {
		return nil, false
	}
	c = &nftables.Chain{Table: &nftables.Table{Family: nftables.TableFamily(m[0])}}
	attrs, err := mdnetlink.NewAttributeDecoder(m[header:])
	if err != nil {
		return nil, false
	}
	attrs.ByteOrder = binary.BigEndian
	for attrs.Next() {
		switch attrs.Type() {
		case unix.NFTA_CHAIN_TABLE:
			c.Table.Name = attrs.String()
		case unix.NFTA_CHAIN_NAME:
			c.Name = attrs.String()
		case unix.NFTA_CHAIN_HOOK:
			attrs.Nested(func(hook *mdnetlink.AttributeDecoder) error {
				for hook.Next() {
					switch hook.Type() {
					case unix.NFTA_HOOK_HOOKNUM:
						c.Hooknum = new(nftables.ChainHook(hook.Uint32()))
					case unix.NFTA_HOOK_PRIORITY:
						c.Priority = new(nftables.ChainPriority(int32(hook.Uint32()))) //nolint:gosec // it is one
					}
				}
				return nil
			})
		}
	}
	if attrs.Err() != nil || c.Hooknum == nil || c.Priority == nil || c.Table.Name == ownTable || strings.HasPrefix(c.Table.Name, ownTable+"-") {
		return nil, false
	}
	switch c.Table.Family {
	case nftables.TableFamilyIPv4, nftables.TableFamilyIPv6, nftables.TableFamilyINet:
		return c, *c.Hooknum == *nftables.ChainHookPrerouting && *c.Priority < priorityConntrack || ofInterface(c)
	case nftables.TableFamilyNetdev, nftables.TableFamilyBridge:
		return c, *c.Hooknum == 0 // ingress, prerouting
	default:
		return nil, false
	}
}

// ofInterface reports whether only what comes by some interfaces passes a base chain.
func ofInterface(c *nftables.Chain) bool {
	f := c.Table.Family
	return f == nftables.TableFamilyNetdev || f == nftables.TableFamilyBridge || f == nftables.TableFamilyINet && *c.Hooknum == hookInetIngress
}

// A nftReader reads chains, within the limits.
type nftReader struct {
	conn          *nftables.Conn
	chains, rules int
}

// read adds a chain and those that its rules send packets to.
func (r *nftReader) read(table *nftables.Table, name string, to rawChains) error {
	for left := []string{name}; len(left) > 0; left = left[1:] {
		if _, done := to[left[0]]; done || isOwnChain(table, left[0]) {
			continue
		}
		list, err := r.conn.GetRules(table, &nftables.Chain{Name: left[0], Table: table})
		if errors.Is(err, unix.ENOENT) {
			continue // it is gone
		}
		if err != nil {
			return fmt.Errorf("reading chain %s of table %s: %w", left[0], table.Name, err)
		}
		r.chains, r.rules = r.chains+1, r.rules+len(list)
		if r.chains > maxRawChains || r.rules > maxRawRules {
			return errTooMany
		}
		rules := make([]rawRule, 0, len(list))
		for _, l := range list {
			parsed := parseNFT(l.Exprs)
			rules = append(rules, parsed...)
			for _, p := range parsed {
				if p.target != "" {
					left = append(left, p.target)
				}
			}
		}
		to[left[0]] = rules
	}
	return nil
}

// isOwnChain reports whether an agent has written a chain.
func isOwnChain(table *nftables.Table, name string) bool {
	return isIPTablesFamily(table.Family) && table.Name == "raw" && strings.HasPrefix(name, ownChain)
}

// parseNFT returns the actions of a rule, in their order. All share its matches.
func parseNFT(exprs []expr.Any) (list []rawRule) {
	m := nftMatches{loaded: map[uint32]expr.Any{}}
	for _, e := range exprs {
		r := rawRule{action: pass}
		switch e := e.(type) {
		case *expr.Notrack:
			r.action = untrack
		case *expr.Target:
			data, ok := e.Info.(*xt.Unknown)
			switch {
			case e.Name == targetCT && ok && isNotrack(*data), e.Name == "NOTRACK":
				r.action = untrack
			}
		case *expr.Verdict:
			r.action, r.target = actionOf(e)
		default:
			m.add(e)
		}
		if r.action != pass {
			list = append(list, r)
		}
	}
	for i := range list {
		list[i].matches = m.of
	}
	return list
}

func actionOf(v *expr.Verdict) (action, string) {
	switch v.Kind {
	case expr.VerdictJump:
		return jumpTo, v.Chain
	case expr.VerdictGoto:
		return goTo, v.Chain
	case expr.VerdictReturn:
		return comeBack, ""
	case expr.VerdictContinue, expr.VerdictBreak:
		return pass, ""
	default:
		return stop, ""
	}
}

// nftMatches are the matches of a rule.
type nftMatches struct {
	loaded map[uint32]expr.Any // what registers have: *expr.Payload or *expr.Meta
	masks  map[uint32]*expr.Bitwise
	list   []func(p *packet) verdict
}

// of returns whether all match a packet.
func (m *nftMatches) of(p *packet) verdict {
	v := yes
	for _, is := range m.list {
		v = min(v, is(p))
	}
	return v
}

func (m *nftMatches) match(is func(p *packet) verdict) { m.list = append(m.list, is) }

// add takes an expression. One that it does not know may match.
func (m *nftMatches) add(e expr.Any) {
	switch e := e.(type) {
	case *expr.Counter, *expr.Log:
	case *expr.Payload:
		delete(m.masks, e.DestRegister)
		m.loaded[e.DestRegister] = e
	case *expr.Meta:
		delete(m.masks, e.Register)
		if m.loaded[e.Register] = e; e.SourceRegister {
			delete(m.loaded, e.Register) // it sets something of the packet
		}
	case *expr.Bitwise:
		if m.masks == nil {
			m.masks = map[uint32]*expr.Bitwise{}
		}
		m.masks[e.DestRegister] = e
		if e.DestRegister != e.SourceRegister {
			delete(m.loaded, e.DestRegister)
		}
	case *expr.Cmp:
		from, mask := m.loaded[e.Register], m.masks[e.Register]
		m.match(func(p *packet) verdict {
			switch e.Op {
			case expr.CmpOpEq:
				return compare(p, from, mask, e.Data)
			case expr.CmpOpNeq:
				return compare(p, from, mask, e.Data).not(true)
			default:
				return within(p, from, mask, lowest(e), highest(e))
			}
		})
	case *expr.Range:
		from, mask := m.loaded[e.Register], m.masks[e.Register]
		m.match(func(p *packet) verdict { return within(p, from, mask, e.FromData, e.ToData).not(e.Op == expr.CmpOpNeq) })
	case *expr.Match:
		m.match(func(p *packet) verdict { return matchXT(p, e) })
	default:
		m.match(func(*packet) verdict { return maybe })
	}
}

// compare returns whether what was loaded of a packet, under a mask, is these bytes.
func compare(p *packet, from expr.Any, mask *expr.Bitwise, want []byte) verdict {
	bits := bytes.Repeat([]byte{0xff}, len(want))
	if mask != nil {
		if len(mask.Mask) != len(want) || !isZero(mask.Xor) {
			return maybe
		}
		bits = mask.Mask
	}
	switch value, kind := load(p, from); {
	case kind == loadsAddress:
		if len(want) > len(value.AsSlice()) && value.IsValid() {
			return maybe
		}
		return isAddr(value, want, bits)
	case mask != nil:
	case kind == loadsInterface:
		return isArrivingBy(want)
	case kind == loadsProtocol && len(want) == 1:
		return verdictOf(p.proto == want[0])
	case kind == loadsFamily && len(want) == 1:
		return verdictOf(p.v6() == (want[0] == unix.NFPROTO_IPV6))
	case kind == loadsPort && len(want) == 2:
		return inPorts(portOf(p, from), binary.BigEndian.Uint16(want), binary.BigEndian.Uint16(want))
	}
	return maybe
}

// within returns whether what was loaded of a packet is in a range, which it knows of ports only.
func within(p *packet, from expr.Any, mask *expr.Bitwise, first, last []byte) verdict {
	if _, kind := load(p, from); kind == loadsPort && mask == nil && len(first) == 2 && len(last) == 2 {
		return inPorts(portOf(p, from), binary.BigEndian.Uint16(first), binary.BigEndian.Uint16(last))
	}
	return maybe
}

// lowest and highest return the ends of the range of ports that a comparison by order means; nil: no port is compared, or none fits.
func lowest(e *expr.Cmp) []byte {
	switch e.Op {
	case expr.CmpOpGte:
		return e.Data
	case expr.CmpOpGt:
		return next(e.Data, 1)
	default:
		return []byte{0, 0}
	}
}

func highest(e *expr.Cmp) []byte {
	switch e.Op {
	case expr.CmpOpLte:
		return e.Data
	case expr.CmpOpLt:
		return next(e.Data, -1)
	default:
		return []byte{0xff, 0xff}
	}
}

// next returns the port that is so many after another.
func next(port []byte, by int) []byte {
	if len(port) != 2 {
		return nil
	}
	n := int(binary.BigEndian.Uint16(port)) + by
	if n < 0 || n > 0xffff {
		return nil
	}
	return binary.BigEndian.AppendUint16(nil, uint16(n))
}

// What an expression loads.
type loads int

const (
	loadsOther loads = iota
	loadsAddress
	loadsProtocol
	loadsFamily
	loadsPort
	loadsInterface
)

// load returns what an expression loads of a packet, and its address if it is one.
func load(p *packet, from expr.Any) (a netip.Addr, kind loads) {
	switch e := from.(type) {
	case *expr.Meta:
		switch e.Key {
		case expr.MetaKeyL4PROTO:
			return a, loadsProtocol
		case expr.MetaKeyNFPROTO:
			return a, loadsFamily
		case expr.MetaKeyIIFNAME:
			return a, loadsInterface
		default:
		}
	case *expr.Payload:
		size, source := uint32(4), uint32(12)
		if p.v6() {
			size, source = 16, 8
		}
		protocol := map[bool]uint32{false: 9, true: 6}[p.v6()]
		switch {
		case e.Base == expr.PayloadBaseNetworkHeader && e.Offset == source && e.Len <= size:
			return p.from, loadsAddress
		case e.Base == expr.PayloadBaseNetworkHeader && e.Offset == source+size && e.Len <= size:
			return p.to, loadsAddress
		case e.Base == expr.PayloadBaseNetworkHeader && e.Offset == protocol && e.Len == 1:
			return a, loadsProtocol
		case e.Base == expr.PayloadBaseTransportHeader && e.Offset <= 2 && e.Offset%2 == 0 && e.Len == 2:
			return a, loadsPort
		}
	}
	return a, loadsOther
}

// portOf returns the port that a payload loads.
func portOf(p *packet, from expr.Any) uint16 {
	if e, ok := from.(*expr.Payload); ok && e.Offset == 2 {
		return p.toPort
	}
	return p.fromPort
}

// matchXT returns whether a match of iptables-nft matches.
func matchXT(p *packet, e *expr.Match) verdict {
	switch i := e.Info.(type) {
	case *xt.Udp:
		if p.proto != unix.IPPROTO_UDP {
			return no
		}
		return min(inPorts(p.fromPort, i.SrcPorts[0], i.SrcPorts[1]).not(i.InvFlags&xt.UdpInvSrcPorts != 0),
			inPorts(p.toPort, i.DstPorts[0], i.DstPorts[1]).not(i.InvFlags&xt.UdpInvDestPorts != 0))
	case *xt.Tcp:
		if p.proto != unix.IPPROTO_TCP {
			return no
		}
		flags := yes
		if i.FlagsMask != 0 || i.Option != 0 {
			flags = maybe
		}
		return min(flags, inPorts(p.fromPort, i.SrcPorts[0], i.SrcPorts[1]).not(i.InvFlags&xt.TcpInvSrcPorts != 0),
			inPorts(p.toPort, i.DstPorts[0], i.DstPorts[1]).not(i.InvFlags&xt.TcpInvDestPorts != 0))
	}
	if e.Name == "comment" {
		return yes
	}
	return maybe
}
