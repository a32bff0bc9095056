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
	"strconv"
	"strings"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// priorityTrace is before all chains that decide, and after the reassembly of
// fragments.
const priorityTrace = -399

// Trace traces the packets from and to the client src through the nftables of the
// current network namespace while send runs. It returns the places that dropped or
// rejected them, each once, in order. It does not see drops by iptables-legacy or by the
// kernel itself.
//
// It needs the capability NET_ADMIN. While send runs, the table node-cache.doctor
// exists. The kernel deletes it when this process ends.
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
		return nil, withHint("subscribing to traces", err)
	}
	err = startTrace(writer, src, tableOwned)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = startTrace(writer, src, 0)
	}
	if err != nil {
		return nil, err
	}
	failed := send(ctx)
	var end batch
	end.deleteTable(traceTable)
	failed = errors.Join(failed, writer.commit(&end))
	messages, err := events.receivePending()
	if err != nil && !errors.Is(err, unix.ENOBUFS) { // ENOBUFS: some traces were lost, the others are enough
		return nil, errors.Join(failed, withHint("reading traces", err))
	}
	drops := parseDrops(messages)
	for i := range drops {
		drops[i].Rule = describeDrop(&drops[i])
	}
	return drops, failed
}

// startTrace enables tracing of packets from and to src.
func startTrace(s *socket, src netip.Addr, flags uint32) error {
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
	t.addTo(&tx)
	return s.commit(&tx)
}

// parseDrops returns the drops among trace messages.
func parseDrops(messages []syscall.NetlinkMessage) []Drop {
	var drops []Drop
	for _, m := range messages {
		if m.Header.Type != uint16(messageType(unix.NFT_MSG_TRACE)) {
			continue
		}
		if d, ok := parseDrop(m.Data); ok && !slices.Contains(drops, d) {
			drops = append(drops, d)
		}
	}
	return drops
}

// parseDrop parses a trace message. It reports whether that is a drop.
func parseDrop(data []byte) (Drop, bool) {
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

// describeDrop describes the rule of d in about the syntax of nft. It returns "" if the
// rule cannot be read.
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

// A describer converts expressions to text. Most load a value into a register, and the
// following ones compare it.
type describer struct {
	words  []string
	loaded string // name of the value in the register
	mask   []byte // of the bits that are compared; nil: all
}

func describe(exprs []expr.Any, data []byte) string {
	var d describer
	for _, e := range exprs {
		d.add(e)
	}
	if comment, ok := userdata.GetString(data, userdata.TypeComment); ok {
		d.write("comment", strconv.Quote(comment))
	}
	return strings.Join(d.words, " ")
}

func (d *describer) write(words ...string) { d.words = append(d.words, words...) }

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
		d.write(verdictName(e))
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
