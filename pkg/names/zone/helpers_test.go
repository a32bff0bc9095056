// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A got is an answer as text, with sorted sets.
type got struct {
	Verdict zone.Verdict
	EDE     int
	Rcode   string
	Target  string
	Answer  []string
	Ns      []string
	Extra   []string
}

// epoch is the current time of the tests.
func epoch() time.Time { return time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) }

// packet returns a query for the name, in presentation form.
func packet(tb testing.TB, name string, rrtype uint16) []byte {
	tb.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, rrtype)
	pkt, err := m.Pack()
	if err != nil {
		tb.Fatalf("packing a query for %q: %v", name, err)
	}
	return pkt
}

// ask queries the zone and checks the form of the answer.
func ask(tb testing.TB, z *zone.Zone, name string, rrtype uint16, turn uint32, now time.Time) got {
	tb.Helper()
	return askPacket(tb, z, packet(tb, name, rrtype), turn, now)
}

func askPacket(tb testing.TB, z *zone.Zone, pkt []byte, turn uint32, now time.Time) got {
	tb.Helper()
	return askZones(tb, zone.Zones{z}, pkt, turn, now)
}

func askZones(tb testing.TB, zs zone.Zones, pkt []byte, turn uint32, now time.Time) got {
	tb.Helper()
	var q wire.Query
	if fault := q.Parse(pkt); fault != wire.RcodeSuccess {
		tb.Fatalf("query %x: fault %d", pkt, fault)
	}
	const before = "before"
	dst, res := zs.Answer(&q, zone.Client{MaxSize: wire.MaxMessage, Rotation: turn}, now, []byte(before))
	if !strings.HasPrefix(string(dst), before) {
		tb.Fatalf("the bytes before the answer are %q now", dst[:len(before)])
	}
	g := got{Verdict: res.Verdict, EDE: res.EDE}
	msg := dst[len(before):]
	if res.Verdict != zone.Answered && res.Verdict != zone.Alias {
		if len(msg) != 0 {
			tb.Fatalf("verdict %d, and %d bytes appended", res.Verdict, len(msg))
		}
		return g
	}
	if res.Verdict == zone.Alias {
		g.Target, _, _ = dns.UnpackDomainName(res.Target, 0)
	}
	m := parse(tb, msg)
	g.Rcode = dns.RcodeToString[m.Rcode]
	g.Answer, g.Ns, g.Extra = texts(m.Answer), texts(m.Ns), texts(m.Extra)
	checkSealed(tb, &q, msg, m)
	if denied := res.Denial != zone.NotDenied; denied != (len(m.Ns) > 0) || m.Rcode == dns.RcodeNameError && res.Denial == zone.NoType {
		tb.Fatalf("denial %q of\n%s", res.Denial, m)
	}
	if why := zs.Explain(res.Denial, q.Name()); why != res.Denial && (why != zone.NoNamespace || res.Denial != zone.NoService || len(m.Answer) > 0) {
		tb.Fatalf("denial %q explained as %q, of\n%s", res.Denial, why, m)
	}
	return g
}

// parse parses a message with both parsers.
func parse(tb testing.TB, msg []byte) *dns.Msg {
	tb.Helper()
	var walked wire.Message
	if err := walked.Parse(msg); err != nil {
		tb.Fatalf("wire: %v: %x", err, msg)
	}
	if len(walked.Raw) != len(msg) {
		tb.Fatalf("%d bytes trail the message", len(msg)-len(walked.Raw))
	}
	m := new(dns.Msg)
	if err := m.Unpack(msg); err != nil {
		tb.Fatalf("miekg: %v: %x", err, msg)
	}
	if !m.Response || !m.Authoritative {
		tb.Fatalf("header %+v, want QR and AA", m.MsgHdr)
	}
	return m
}

// checkSealed adapts the message to its client, and checks that only the case changed and that a truncated message is valid.
func checkSealed(tb testing.TB, q *wire.Query, msg []byte, plain *dns.Msg) {
	tb.Helper()
	whole := slices.Clone(msg)
	whole = q.Reply(whole, 0, &wire.ReplyOptions{Limit: wire.MaxMessage, UDPSize: wire.SafeUDP, EDE: wire.EDENone})
	sealed := new(dns.Msg)
	assert.NoError(tb, sealed.Unpack(whole))
	if !slices.Equal(texts(sealed.Answer), texts(plain.Answer)) || !slices.Equal(texts(sealed.Extra), texts(plain.Extra)) {
		tb.Fatalf("sealed:\n%s\nwas:\n%s", sealed, plain)
	}
	name, _, _ := dns.UnpackDomainName(q.QuestionSection(), 0)
	for i, record := range slices.Concat(sealed.Answer, sealed.Ns, sealed.Extra) {
		owner := record.Header().Name
		if record.Header().Rrtype == dns.TypeCNAME {
			break // the names that follow are below the alias
		}
		if i >= len(sealed.Answer)+len(sealed.Ns) { // an endpoint's own label is not in the question
			_, owner, _ = strings.Cut(owner, ".")
			if strings.HasSuffix(strings.ToLower(owner), ".clusterset.local.") { // nor is its cluster
				_, owner, _ = strings.Cut(owner, ".")
			}
		}
		if !strings.HasSuffix(name, owner) && dns.IsSubDomain(owner, name) {
			tb.Fatalf("owner %q, want the case of the question %q", owner, name)
		}
	}
	cut := q.Reply(slices.Clone(msg), 0, &wire.ReplyOptions{Limit: wire.MinUDP, UDPSize: wire.SafeUDP, EDE: wire.EDENone})
	if err := new(dns.Msg).Unpack(cut); err != nil || len(cut) > wire.MinUDP && len(msg) > wire.MinUDP {
		tb.Fatalf("cut to %d bytes: %v", len(cut), err)
	}
}

// texts returns the records as text, sorted, with names in lower case and without a SOA record's serial number.
func texts(records []dns.RR) []string {
	var list []string
	for _, record := range records {
		h := record.Header()
		data := strings.TrimPrefix(record.String(), h.String())
		switch record := record.(type) {
		case *dns.SOA:
			data = strings.Join([]string{record.Ns, record.Mbox}, " ")
		case *dns.AAAA:
			a, _ := netip.AddrFromSlice(record.AAAA.To16())
			data = a.String()
		}
		list = append(list, strings.ToLower(rr(h.Name, h.Ttl, "", ""))+dns.TypeToString[h.Rrtype]+" "+strings.ToLower(data))
	}
	for i := range list {
		list[i] = strings.Join(strings.Fields(list[i]), " ")
	}
	slices.Sort(list)
	return list
}

// soa returns the SOA record of a denial as text.
func (m *model) soa(owner string) []string {
	hostmaster := " hostmaster."
	if m.cfg.External {
		hostmaster += "dns."
	}
	return []string{rr(owner, min(300, uint32(m.cfg.TTL.Seconds())), "SOA", m.server()+m.cfg.Domain+hostmaster+m.cfg.Domain)}
}

// answer returns the zone's expected answer with fresh data.
func (m *model) answer(name string, rrtype uint16) got {
	name = strings.ToLower(name)
	first := m.at(name)
	if first == nil {
		return m.reverse(name, rrtype)
	}
	m = first
	g := got{Verdict: zone.Answered, EDE: wire.EDENone, Rcode: "NOERROR"}
	for range 9 {
		sets, exists := m.find(name)
		if alias, ok := sets[dns.TypeCNAME]; ok {
			g.Answer = append(g.Answer, alias.answer...)
			_, target, _ := strings.Cut(alias.answer[0], " CNAME ")
			switch {
			case rrtype == dns.TypeCNAME:
				slices.Sort(g.Answer)
				return g
			case m.at(target) == nil:
				g.Verdict, g.Target = zone.Alias, target
				slices.Sort(g.Answer)
				return g
			}
			name, m = target, m.at(target)
			continue
		}
		switch {
		case exists || len(m.cfg.Fallthrough) == 0 || strings.HasSuffix(name, ".dns."+m.cfg.Domain):
		case len(g.Answer) == 0:
			return got{Verdict: zone.NotInZone, EDE: wire.EDENone}
		default:
			g.Verdict, g.Target = zone.Alias, name
			slices.Sort(g.Answer)
			return g
		}
		set := sets[rrtype]
		g.Answer, g.Extra = append(g.Answer, set.answer...), set.extra
		slices.Sort(g.Answer)
		if !exists {
			g.Rcode = "NXDOMAIN"
		}
		if len(set.answer) == 0 {
			g.Ns = m.soa(m.cfg.Domain)
		}
		return g
	}
	return got{Verdict: zone.Answered, EDE: wire.EDENone, Rcode: "NOERROR", Ns: first.soa(first.cfg.Domain)} // an endless chain
}

// find returns the records of a name in the zone.
func (m *model) find(name string) (map[uint16]recordSet, bool) {
	if m.types == nil {
		m.build()
	}
	if sets, ok := m.federated(name); ok {
		return sets, sets != nil
	}
	if name == m.cfg.Domain {
		return m.apex(), true
	}
	if sets, ok := m.types[name]; ok {
		return sets, true
	}
	if m.nodes[name] {
		return nil, true
	}
	labels := dns.SplitDomainName(strings.TrimSuffix(name, "."+m.cfg.Domain))
	switch n := len(labels); {
	case n == 3 && !m.cfg.External && labels[2] == "pod":
		return m.pod(name, labels[0], labels[1])
	case n >= 6 && !m.cfg.External && !m.inSet() && labels[n-1] == "svc" && labels[n-4] == "_zone" && (labels[n-5] == "pin" || labels[n-5] == "prefer"):
		return m.zonal(name, strings.Join(labels[:n-5], "."), labels[n-5], object{labels[n-2], labels[n-3]})
	}
	return nil, false
}

// federated returns the records of a name of a federation.
func (m *model) federated(name string) (sets map[uint16]recordSet, ok bool) {
	labels := dns.SplitDomainName(strings.TrimSuffix(name, "."+m.cfg.Domain))
	for _, f := range m.cfg.Federations {
		if len(labels) != 4 || labels[2] != f.Name || labels[3] != "svc" {
			continue
		}
		target := strings.Join(labels, ".") + "." + strings.ToLower(f.Suffix)
		svc, here := m.services[object{labels[1], labels[0]}]
		if here && m.exposed(labels[1]) && (svc.Type == zone.ExternalName || len(m.ends(svc)) > 0) {
			target = m.base(svc)
		}
		if _, valid := dns.IsDomainName(target); !valid {
			return nil, true
		}
		return map[uint16]recordSet{dns.TypeCNAME: {answer: []string{rr(name, uint32(m.cfg.TTL.Seconds()), "CNAME", target)}}}, true
	}
	return nil, false
}

func (m *model) apex() map[uint16]recordSet {
	d, ttl := m.cfg.Domain, uint32(m.cfg.TTL.Seconds())
	glue := []string{}
	for _, a := range m.cfg.Nameservers {
		glue = append(glue, addressRR(m.server()+d, ttl, a))
	}
	slices.Sort(glue)
	return map[uint16]recordSet{
		dns.TypeSOA: {answer: m.soa(d)},
		dns.TypeNS:  {answer: []string{rr(d, ttl, "NS", m.server()+d)}, extra: glue},
	}
}

func (m *model) pod(name, text, ns string) (map[uint16]recordSet, bool) {
	a, err := netip.ParseAddr(strings.ReplaceAll(text, "-", "."))
	if err != nil {
		a, err = netip.ParseAddr(strings.ReplaceAll(text, "-", ":"))
	}
	a = a.Unmap()
	exists := false
	switch m.cfg.Pods {
	case zone.PodsInsecure:
		exists = m.nodes[ns+".pod."+m.cfg.Domain]
	case zone.PodsVerified:
		for id, p := range m.pods {
			exists = exists || id.namespace == ns && slices.ContainsFunc(p.Addrs, func(o netip.Addr) bool { return o.Unmap() == a })
		}
	case zone.PodsDisabled:
	}
	if err != nil || !exists || !m.exposed(ns) || strings.ContainsAny(text, ".:\\") {
		return nil, false
	}
	return map[uint16]recordSet{addressType(a): {answer: []string{addressRR(name, uint32(m.cfg.TTL.Seconds()), a)}}}, true
}

func (m *model) zonal(name, topology, directive string, id object) (map[uint16]recordSet, bool) {
	svc, ok := m.services[id]
	if !ok || svc.Type != zone.Headless && svc.Type != zone.Unselected || !m.exposed(id.namespace) {
		return nil, false
	}
	all := m.ends(svc)
	near := slices.DeleteFunc(slices.Clone(all), func(e end) bool { return e.zone != topology })
	if len(near) == 0 && directive == "prefer" {
		near = all
	}
	return endSets(name, m.base(svc), m.ttl(svc), near, nil), true
}

// reverse answers a name outside of the domain.
func (m *model) reverse(name string, rrtype uint16) got {
	foreign := got{Verdict: zone.NotInZone, EDE: wire.EDENone}
	a, tree := reverseAddr(name)
	isOwn := slices.ContainsFunc(m.cfg.ReverseZones, func(zone string) bool { return dns.IsSubDomain(zone, name) })
	g := got{Verdict: zone.Answered, EDE: wire.EDENone, Rcode: "NOERROR"}
	var list []string
	if a.IsValid() {
		for _, z := range m.zones {
			if list = z.pointers(name, a); len(list) > 0 {
				m = z
				break
			}
		}
	}
	switch {
	case isOwn && !a.IsValid():
	case len(list) > 0 && rrtype == dns.TypePTR:
		g.Answer = list
		return g
	case len(list) > 0:
	case isOwn:
		g.Rcode = "NXDOMAIN"
	default:
		return foreign
	}
	g.Ns = m.soa(tree)
	return g
}

// reverseAddr finds the address of a reverse name by trial, and its tree.
func reverseAddr(name string) (netip.Addr, string) {
	for _, tree := range []string{"in-addr.arpa.", "ip6.arpa."} {
		front, ok := strings.CutSuffix(name, "."+tree)
		if !ok {
			continue
		}
		labels := strings.Split(front, ".")
		slices.Reverse(labels)
		text := strings.Join(labels, ".")
		if tree == "ip6.arpa." {
			text = ""
			for i, l := range labels {
				if i > 0 && i%4 == 0 {
					text += ":"
				}
				text += l
			}
		}
		a, err := netip.ParseAddr(text)
		if back, e := dns.ReverseAddr(a.String()); err == nil && e == nil && back == name {
			return a, tree
		}
		return netip.Addr{}, tree
	}
	return netip.Addr{}, ""
}
