// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// describeDrop says what the rule of d says, in about the words of nft; nothing if the
// rule cannot be read or is gone.
func describeDrop(d *Drop) string {
	if d.Policy {
		return "policy drop"
	}
	conn, err := nftables.New()
	if err != nil {
		return ""
	}
	t := &nftables.Table{Name: d.Table, Family: nftables.TableFamily(familyNumber(d.Family))}
	list, err := conn.GetRules(t, &nftables.Chain{Name: d.Chain, Table: t})
	if err != nil {
		return ""
	}
	i := slices.IndexFunc(list, func(r *nftables.Rule) bool { return r.Handle == d.Handle })
	if i < 0 {
		return ""
	}
	return describe(list[i].Exprs, list[i].UserData)
}

// A describer turns expressions into words: most load something into a register, and
// the next ones say what it must be.
type describer struct {
	words  []string
	loaded string // what is in the register
	mask   []byte // of which these bits count; nil: all
}

func describe(exprs []expr.Any, data []byte) string {
	var d describer
	for _, e := range exprs {
		d.add(e)
	}
	if comment, ok := userdata.GetString(data, userdata.TypeComment); ok {
		d.say("comment", strconv.Quote(comment))
	}
	return strings.Join(d.words, " ")
}

func (d *describer) say(words ...string) { d.words = append(d.words, words...) }

func (d *describer) load(what string) { d.loaded, d.mask = what, nil }

func (d *describer) add(e expr.Any) {
	switch e := e.(type) {
	case *expr.Meta:
		d.load(metaName(e.Key))
	case *expr.Payload:
		d.load(payloadName(e))
	case *expr.Ct:
		d.load(ctName(e.Key))
	case *expr.Bitwise:
		d.mask = e.Mask
	case *expr.Cmp:
		d.compare(e)
	case *expr.Lookup:
		op := "in"
		if e.Invert {
			op = "not in"
		}
		d.say(d.loaded, op, "@"+e.SetName)
	case *expr.Match:
		d.say("-m", e.Name)
	case *expr.Target:
		d.say("-j", e.Name)
	case *expr.Counter, *expr.Log, *expr.Immediate: // nothing that decides
	case *expr.Notrack:
		d.say("notrack")
	case *expr.Masq:
		d.say("masquerade")
	case *expr.NAT:
		d.say(map[expr.NATType]string{expr.NATTypeSourceNAT: "snat", expr.NATTypeDestNAT: "dnat"}[e.Type])
	case *expr.Reject:
		d.say("reject")
	case *expr.Verdict:
		d.say(verdictName(e))
	default:
		d.say("…") // something that there are no words for here
		d.load("")
	}
}

// compare says what a Cmp asks of what is loaded.
func (d *describer) compare(e *expr.Cmp) {
	op, ok := map[expr.CmpOp]string{
		expr.CmpOpEq: "", expr.CmpOpNeq: "!= ", expr.CmpOpLt: "< ", expr.CmpOpLte: "<= ", expr.CmpOpGt: "> ", expr.CmpOpGte: ">= ",
	}[e.Op]
	switch {
	case d.loaded == "": // the dots stand for this, too
	case d.mask != nil && d.loaded == "ct state":
		if e.Op == expr.CmpOpEq { // none of the masked states, else any
			op = "not "
		} else {
			op = ""
		}
		d.say(d.loaded, op+stateNames(d.mask))
	case d.mask != nil:
		if e.Op == expr.CmpOpEq {
			op = "== "
		}
		d.say(d.loaded, "&", value(d.loaded, d.mask), op+value(d.loaded, e.Data))
	case !ok:
		d.say(d.loaded, "…")
	default:
		d.say(d.loaded, op+value(d.loaded, e.Data))
	}
}

// value spells what is compared with what has the name loaded.
func value(loaded string, data []byte) string {
	switch {
	case strings.HasSuffix(loaded, "addr"):
		return prefix(strings.HasPrefix(loaded, "ip6"), data)
	case strings.HasSuffix(loaded, "port") && len(data) == 2:
		return strconv.Itoa(int(binary.BigEndian.Uint16(data)))
	case strings.HasSuffix(loaded, "name"):
		return strings.TrimRight(string(data), "\x00")
	case strings.HasSuffix(loaded, "proto") && len(data) == 1:
		return protocolName(loaded, data[0])
	case strings.HasSuffix(loaded, "mark") && len(data) == 4, strings.HasSuffix(loaded, "status") && len(data) == 4:
		return fmt.Sprintf("0x%x", binary.NativeEndian.Uint32(data))
	}
	return fmt.Sprintf("0x%x", data)
}

// prefix spells an address, or the first octets of one.
func prefix(v6 bool, data []byte) string {
	size := int(family{v6: v6}.size())
	if len(data) > size {
		return fmt.Sprintf("0x%x", data)
	}
	a, _ := netip.AddrFromSlice(append(slices.Clone(data), make([]byte, size-len(data))...))
	if len(data) == size {
		return a.String()
	}
	return netip.PrefixFrom(a, 8*len(data)).String()
}

func protocolName(loaded string, n byte) string {
	names := map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_ICMP: "icmp", unix.IPPROTO_ICMPV6: "ipv6-icmp"}
	if loaded == "meta nfproto" {
		names = map[byte]string{unix.NFPROTO_IPV4: "ipv4", unix.NFPROTO_IPV6: "ipv6"}
	}
	if name, ok := names[n]; ok {
		return name
	}
	return strconv.Itoa(int(n))
}

// stateNames spells the bits of a connection's state.
func stateNames(mask []byte) string {
	if len(mask) != 4 {
		return fmt.Sprintf("0x%x", mask)
	}
	bits := binary.NativeEndian.Uint32(mask)
	var names []string
	for _, s := range []struct {
		bit  uint32
		name string
	}{
		{expr.CtStateBitINVALID, "invalid"},
		{expr.CtStateBitESTABLISHED, "established"},
		{expr.CtStateBitRELATED, "related"},
		{expr.CtStateBitNEW, "new"},
		{expr.CtStateBitUNTRACKED, "untracked"},
	} {
		if bits&s.bit != 0 {
			names = append(names, s.name)
		}
	}
	return strings.Join(names, ",")
}

func metaName(key expr.MetaKey) string {
	names := map[expr.MetaKey]string{
		expr.MetaKeyIIFNAME: "iifname", expr.MetaKeyOIFNAME: "oifname", expr.MetaKeyL4PROTO: "meta l4proto",
		expr.MetaKeyNFPROTO: "meta nfproto", expr.MetaKeyMARK: "meta mark", expr.MetaKeySKUID: "meta skuid",
	}
	if name, ok := names[key]; ok {
		return name
	}
	return fmt.Sprintf("meta key %d", key)
}

func ctName(key expr.CtKey) string {
	names := map[expr.CtKey]string{expr.CtKeySTATE: "ct state", expr.CtKeySTATUS: "ct status", expr.CtKeyMARK: "ct mark"}
	if name, ok := names[key]; ok {
		return name
	}
	return fmt.Sprintf("ct key %d", key)
}

func payloadName(e *expr.Payload) string {
	network := e.Base == expr.PayloadBaseNetworkHeader
	transport := e.Base == expr.PayloadBaseTransportHeader && e.Len == 2
	switch {
	case network && e.Offset == ipv4Source && e.Len <= 4: // less than an address is a prefix
		return "ip saddr"
	case network && e.Offset == ipv4Dest && e.Len <= 4:
		return "ip daddr"
	case network && e.Offset == ipv6Source && e.Len <= 16:
		return "ip6 saddr"
	case network && e.Offset == ipv6Dest && e.Len <= 16:
		return "ip6 daddr"
	case transport && e.Offset == sourcePort:
		return "sport"
	case transport && e.Offset == destPort:
		return "dport"
	case e.Base == expr.PayloadBaseTransportHeader && e.Offset == tcpFlags && e.Len == 1:
		return "tcp flags"
	}
	return fmt.Sprintf("octets %d to %d of header %d", e.Offset, e.Offset+e.Len, e.Base)
}

func verdictName(v *expr.Verdict) string {
	switch v.Kind {
	case expr.VerdictDrop:
		return "drop"
	case expr.VerdictAccept:
		return "accept"
	case expr.VerdictJump:
		return "jump " + v.Chain
	case expr.VerdictGoto:
		return "goto " + v.Chain
	case expr.VerdictReturn:
		return "return"
	default:
	}
	return fmt.Sprintf("verdict %d", v.Kind)
}
