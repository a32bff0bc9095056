// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// A describer converts expressions to text. Most load a value into a register, and the
// following ones compare it.
type describer struct {
	words  []string
	loaded string // name of the value in the register
	mask   []byte // of the bits that are compared; nil: all
}

// Describe formats a rule in about the syntax of nft. userData holds the rule's comment.
func Describe(exprs []expr.Any, userData []byte) string {
	var d describer
	for _, e := range exprs {
		d.add(e)
	}
	if comment, ok := userdata.GetString(userData, userdata.TypeComment); ok {
		d.write("comment", strconv.Quote(comment))
	}
	return strings.Join(d.words, " ")
}

func (d *describer) write(words ...string) { d.words = append(d.words, words...) }

func (d *describer) load(what string) { d.loaded, d.mask = what, nil }

func (d *describer) add(e expr.Any) {
	switch e := e.(type) {
	case *expr.Meta:
		d.load(cmp.Or(map[expr.MetaKey]string{
			expr.MetaKeyIIFNAME: "iifname", expr.MetaKeyOIFNAME: "oifname", expr.MetaKeyL4PROTO: "meta l4proto",
			expr.MetaKeyNFPROTO: "meta nfproto", expr.MetaKeyMARK: "meta mark", expr.MetaKeySKUID: "meta skuid",
		}[e.Key], fmt.Sprintf("meta key %d", e.Key)))
	case *expr.Payload:
		d.load(payloadName(e))
	case *expr.Ct:
		d.load(cmp.Or(map[expr.CtKey]string{expr.CtKeySTATE: "ct state", expr.CtKeySTATUS: "ct status", expr.CtKeyMARK: "ct mark"}[e.Key],
			fmt.Sprintf("ct key %d", e.Key)))
	case *expr.Bitwise:
		d.mask = e.Mask
	case *expr.Cmp:
		d.compare(e)
	case *expr.Lookup:
		op := "in"
		if e.Invert {
			op = "not in"
		}
		d.write(d.loaded, op, "@"+e.SetName)
	case *expr.Match:
		d.write("-m", e.Name)
	case *expr.Target:
		d.write("-j", e.Name)
	case *expr.Counter, *expr.Log, *expr.Immediate: // these decide nothing
	case *expr.Notrack:
		d.write("notrack")
	case *expr.Masq:
		d.write("masquerade")
	case *expr.NAT:
		d.write(map[expr.NATType]string{expr.NATTypeSourceNAT: "snat", expr.NATTypeDestNAT: "dnat"}[e.Type])
	case *expr.Reject:
		d.write("reject")
	case *expr.Verdict:
		d.write(strings.TrimSpace(cmp.Or(map[expr.VerdictKind]string{
			expr.VerdictDrop: "drop", expr.VerdictAccept: "accept", expr.VerdictJump: "jump", expr.VerdictGoto: "goto", expr.VerdictReturn: "return",
		}[e.Kind], fmt.Sprintf("verdict %d", e.Kind)) + " " + e.Chain))
	default:
		d.write("…") // an unknown expression
		d.load("")
	}
}

// compare describes a comparison with the loaded value.
func (d *describer) compare(e *expr.Cmp) {
	op, ok := map[expr.CmpOp]string{
		expr.CmpOpEq: "", expr.CmpOpNeq: "!= ", expr.CmpOpLt: "< ", expr.CmpOpLte: "<= ", expr.CmpOpGt: "> ", expr.CmpOpGte: ">= ",
	}[e.Op]
	switch {
	case d.loaded == "": // the value of an unknown expression
	case d.mask != nil && d.loaded == "ct state":
		if e.Op == expr.CmpOpEq { // none of the masked states, else any
			op = "not "
		} else {
			op = ""
		}
		d.write(d.loaded, op+stateNames(d.mask))
	case d.mask != nil:
		if e.Op == expr.CmpOpEq {
			op = "== "
		}
		d.write(d.loaded, "&", formatValue(d.loaded, d.mask), op+formatValue(d.loaded, e.Data))
	case !ok:
		d.write(d.loaded, "…")
	default:
		d.write(d.loaded, op+formatValue(d.loaded, e.Data))
	}
}

// formatValue formats data that is compared with the loaded value.
func formatValue(loaded string, data []byte) string {
	switch {
	case strings.HasSuffix(loaded, "addr"):
		return formatPrefix(strings.HasPrefix(loaded, "ip6"), data)
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

// formatPrefix formats an address, or its leading bytes as a prefix.
func formatPrefix(v6 bool, data []byte) string {
	size := int(familyOf(v6).size)
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
	return cmp.Or(names[n], strconv.Itoa(int(n)))
}

// stateNames formats the bits of a connection's state.
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

func payloadName(e *expr.Payload) string {
	network := e.Base == expr.PayloadBaseNetworkHeader
	transport := e.Base == expr.PayloadBaseTransportHeader && e.Len == 2
	switch {
	case network && e.Offset == ipv4Source && e.Len <= 4: // fewer bytes are a prefix
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
	return fmt.Sprintf("bytes %d to %d of header %d", e.Offset, e.Offset+e.Len, e.Base)
}
