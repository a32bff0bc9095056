// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/names/zone"
)

// An object is the namespace and name of an API object.
type object struct{ namespace, name string }

// A model is a slow, simple zone: it builds every name and record from plain objects for each question.
type model struct {
	cfg        zone.Config
	services   map[object]zone.Service
	slices     map[object]zone.Slice
	namespaces map[string]bool
	pods       map[object]zone.Pod

	zones []*model // of the process, in their order

	types map[string]map[uint16]recordSet // by name, presentation form in lower case
	nodes map[string]bool                 // names that exist, including those without data
}

// A recordSet is the records of one name and type.
type recordSet struct{ answer, extra []string }

func newModel(cfg zone.Config) *model {
	m := &model{
		cfg: cfg, services: map[object]zone.Service{}, slices: map[object]zone.Slice{},
		namespaces: map[string]bool{}, pods: map[object]zone.Pod{},
	}
	m.zones = []*model{m}
	return m
}

// changed drops the built records.
func (m *model) changed() {
	for _, z := range m.zones {
		z.types = nil
	}
}

// at returns the zone that has the name, or nil.
func (m *model) at(name string) *model {
	i := slices.IndexFunc(m.zones, func(z *model) bool { return dns.IsSubDomain(z.cfg.Domain, name) })
	if i < 0 {
		return nil
	}
	return m.zones[i]
}

func (m *model) inSet() bool { return m.cfg.Cluster != nil }

// label returns s in lower case if it can be a label, or "".
func label(s string) string {
	s = strings.ToLower(s)
	if s == "" || len(s) > 63 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
		return ""
	}
	return s
}

// An end is one address of an endpoint with the ports of its slice.
type end struct {
	addr  netip.Addr
	label string
	zone  string
	ports []zone.Port
}

// ends returns what the service publishes.
func (m *model) ends(svc zone.Service) []end {
	var list []end
	for id, s := range m.slices {
		if id.namespace != svc.Namespace || s.Service != svc.Name {
			continue
		}
		seen := map[string]bool{}
		for _, e := range s.Endpoints {
			for _, a := range e.Addrs {
				a = a.Unmap()
				if !a.IsValid() || !e.Ready && !svc.PublishNotReady {
					continue
				}
				own := label(e.Hostname)
				if own == "" {
					own = label(e.Pod)
				}
				same := fmt.Sprint(a, own, topology(e.Zone), e.Ready, label(e.Hostname))
				name := m.endLabel(e, a)
				if m.inSet() {
					name += "." + strings.ToLower(s.Cluster)
				}
				if !seen[same] {
					list = append(list, end{addr: a, label: name, zone: topology(e.Zone), ports: s.Ports})
				}
				seen[same] = true
			}
		}
	}
	return list
}

// topology returns the zone's name as it can be queried, or "".
func topology(s string) string {
	for l := range strings.SplitSeq(s, ".") {
		if label(l) == "" {
			return ""
		}
	}
	return strings.ToLower(s)
}

func (m *model) endLabel(e zone.Endpoint, a netip.Addr) string {
	if l := label(e.Hostname); l != "" {
		return l
	}
	if l := label(e.Pod); l != "" && m.cfg.PodNames {
		return l
	}
	text := strings.NewReplacer(".", "-", ":", "-").Replace(a.String())
	if strings.HasSuffix(text, "-") {
		text += "0"
	}
	return text
}

func protocolName(p zone.Protocol) string { return []string{"tcp", "udp", "sctp"}[p] }

// variants returns the spellings of _port._proto for the port.
func (m *model) variants(p zone.Port) []string {
	name, proto := label(p.Name), protocolName(p.Protocol)
	if name == "" {
		return nil
	}
	list := []string{"_" + name + "._" + proto, "_" + name + "." + proto}
	if !strings.HasPrefix(name, "_") || name == "_" {
		list = append(list, name+"._"+proto, name+"."+proto)
	}
	if m.inSet() {
		list = slices.DeleteFunc(list, func(s string) bool { return s == name+"."+proto }) // an endpoint and its cluster
	}
	return list
}

// portIs reports whether the labels port and proto, without underscores, select p.
func portIs(p zone.Port, want zone.Port) bool {
	return label(p.Name) == label(want.Name) && p.Protocol == want.Protocol
}

func rr(name string, ttl uint32, rrtype, data string) string {
	return fmt.Sprintf("%s %d %s %s", name, ttl, rrtype, data)
}

func addressType(a netip.Addr) uint16 {
	if a.Is4() {
		return dns.TypeA
	}
	return dns.TypeAAAA
}

func addressRR(name string, ttl uint32, a netip.Addr) string {
	return rr(name, ttl, dns.TypeToString[addressType(a)], a.String())
}

// weight is CoreDNS's formula.
func weight(n int) int {
	return int(max(1, math.Floor(100.0/float64(100*n)*100)))
}

// exist adds the name and all names above it.
func (m *model) exist(name string) {
	for ; name != m.cfg.Domain; name = name[strings.Index(name, ".")+1:] {
		m.nodes[name] = true
	}
}

func (m *model) add(name string, rrtype uint16, set recordSet) {
	m.exist(name)
	if m.types[name] == nil {
		m.types[name] = map[uint16]recordSet{}
	}
	old := m.types[name][rrtype]
	set.answer, set.extra = append(old.answer, set.answer...), append(old.extra, set.extra...)
	slices.Sort(set.answer)
	slices.Sort(set.extra)
	m.types[name][rrtype] = recordSet{slices.Compact(set.answer), slices.Compact(set.extra)}
}

func (m *model) ttl(svc zone.Service) uint32 {
	if svc.TTL >= 0 {
		return uint32(min(svc.TTL, 3600e9).Seconds())
	}
	return uint32(m.cfg.TTL.Seconds())
}

// build builds every record.
func (m *model) build() {
	m.types, m.nodes = map[string]map[uint16]recordSet{}, map[string]bool{}
	d := m.cfg.Domain
	if m.cfg.External {
		m.buildExternal()
		return
	}
	version := `"1.1.0"`
	if m.inSet() {
		version = `"1.0.0"`
	}
	m.exist("svc." + d)
	m.exist("pod." + d)
	m.exist("ns.dns." + d)
	for _, a := range m.cfg.Nameservers {
		m.add("ns.dns."+d, addressType(a), recordSet{answer: []string{addressRR("ns.dns."+d, uint32(m.cfg.TTL.Seconds()), a)}})
	}
	m.add("dns-version."+d, dns.TypeTXT, recordSet{answer: []string{rr("dns-version."+d, 28800, "TXT", version)}})
	for ns := range m.namespaces {
		m.buildNamespace(ns)
	}
	for id := range m.zones[0].services { // of a set, those of the cluster too
		m.buildNamespace(id.namespace)
	}
	for _, svc := range m.services {
		if !m.exposed(svc.Namespace) {
			continue
		}
		m.buildNamespace(svc.Namespace)
		switch svc.Type {
		case zone.ClusterIP:
			m.buildClusterIP(svc)
		case zone.Headless, zone.Unselected:
			m.buildHeadless(svc)
		case zone.ExternalName:
			if target := aliasTarget(svc.ExternalName); target != "" {
				m.add(m.base(svc), dns.TypeCNAME, recordSet{answer: []string{rr(m.base(svc), m.ttl(svc), "CNAME", target)}})
			}
		}
	}
}

func (m *model) buildNamespace(ns string) {
	if m.exposed(ns) {
		m.exist(ns + ".svc." + m.cfg.Domain)
		if m.cfg.Pods != zone.PodsDisabled {
			m.exist(ns + ".pod." + m.cfg.Domain)
		}
	}
}

func (m *model) exposed(ns string) bool {
	return (len(m.cfg.Namespaces) == 0 || slices.Contains(m.cfg.Namespaces, ns)) && (!m.cfg.KnownNamespaces || m.namespaces[ns])
}

func (m *model) base(svc zone.Service) string {
	if m.cfg.External {
		return svc.Name + "." + svc.Namespace + "." + m.cfg.Domain
	}
	return svc.Name + "." + svc.Namespace + ".svc." + m.cfg.Domain
}

// aliasTarget returns the target of an ExternalName, if it is valid.
func aliasTarget(s string) string {
	if _, err := netip.ParseAddr(s); err == nil || s == "" || s == "." {
		return ""
	}
	name := strings.ToLower(strings.TrimSuffix(s, ".")) + "."
	if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == '\\' }) {
		return ""
	}
	if _, ok := dns.IsDomainName(name); !ok || len(name)+1 > 255 || strings.Contains(name, "..") || name[0] == '.' {
		return ""
	}
	return name
}

func (m *model) buildClusterIP(svc zone.Service) {
	ends := m.ends(svc)
	if m.cfg.IgnoreEmpty && len(ends) == 0 && !m.inSet() {
		return
	}
	base, ttl := m.base(svc), m.ttl(svc)
	m.addAddresses(base, ttl, distinct(svc.Addrs), svc.Ports)
	if !m.inSet() {
		m.buildEndpoints(base, ttl, ends)
	}
}

// distinct returns the valid addresses, each once.
func distinct(list []netip.Addr) (addrs []netip.Addr) {
	for _, a := range list {
		if a.IsValid() && !slices.Contains(addrs, a.Unmap()) {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs
}

// addAddresses adds the name of a service with addresses, and those of its ports.
func (m *model) addAddresses(base string, ttl uint32, addrs []netip.Addr, ports []zone.Port) {
	m.exist(base)
	var extra []string
	for _, a := range addrs {
		m.add(base, addressType(a), recordSet{answer: []string{addressRR(base, ttl, a)}})
		extra = append(extra, addressRR(base, ttl, a))
	}
	srv := func(owner string, ports []zone.Port) {
		m.exist(owner)
		for _, p := range ports {
			if p.Number != 0 && len(addrs) > 0 {
				data := fmt.Sprintf("0 %d %d %s", weight(len(ports)*len(addrs)), p.Number, base)
				m.add(owner, dns.TypeSRV, recordSet{[]string{rr(owner, ttl, "SRV", data)}, extra})
			}
		}
	}
	srv(base, ports)
	for _, p := range ports {
		for _, v := range m.variants(p) {
			if m.nodes[v+"."+base] && m.types[v+"."+base] != nil {
				continue // another port of this name is there already
			}
			for _, a := range addrs {
				m.add(v+"."+base, addressType(a), recordSet{answer: []string{addressRR(v+"."+base, ttl, a)}})
			}
			srv(v+"."+base, slices.DeleteFunc(slices.Clone(ports), func(o zone.Port) bool { return !portIs(o, p) }))
		}
	}
}

func (m *model) buildHeadless(svc zone.Service) {
	base, ttl, ends := m.base(svc), m.ttl(svc), m.ends(svc)
	if len(ends) > 0 {
		m.addEnds(base, base, ttl, ends, nil)
	}
	for _, e := range ends {
		for _, p := range e.ports {
			for _, v := range m.variants(p) {
				if m.types[v+"."+base] == nil {
					m.addEnds(v+"."+base, base, ttl, ends, &p)
				}
			}
		}
	}
	m.buildEndpoints(base, ttl, ends)
	for _, name := range []string{"_zone.", "pin._zone.", "prefer._zone."} {
		if !m.cfg.External && !m.inSet() {
			m.nodes[name+base] = true
		}
	}
}

// buildEndpoints adds the names of the endpoints.
func (m *model) buildEndpoints(base string, ttl uint32, ends []end) {
	byLabel := map[string][]end{}
	for _, e := range ends {
		byLabel[e.label] = append(byLabel[e.label], e)
	}
	for l, same := range byLabel {
		m.addEnds(l+"."+base, base, ttl, same, nil)
	}
}

// addEnds adds a name for endpoints, with only those of a port if one is given.
func (m *model) addEnds(owner, base string, ttl uint32, ends []end, port *zone.Port) {
	for rrtype, set := range endSets(owner, base, ttl, ends, port) {
		m.add(owner, rrtype, set)
	}
	m.exist(owner)
}

// endSets returns the records of a name for endpoints.
func endSets(owner, base string, ttl uint32, ends []end, port *zone.Port) map[uint16]recordSet {
	sets := map[uint16]recordSet{}
	add := func(rrtype uint16, answer, extra string) {
		s := sets[rrtype]
		s.answer = append(s.answer, answer)
		if extra != "" {
			s.extra = append(s.extra, extra)
		}
		sets[rrtype] = s
	}
	matched := func(e end) (list []zone.Port) {
		for _, p := range e.ports {
			if port == nil || portIs(p, *port) && label(p.Name) != "" {
				list = append(list, p)
			}
		}
		if port == nil && len(e.ports) == 0 {
			list = append(list, zone.Port{})
		}
		return list
	}
	count := 0
	for _, e := range ends {
		count += len(matched(e))
	}
	for _, e := range ends {
		ports := matched(e)
		if len(ports) > 0 {
			add(addressType(e.addr), addressRR(owner, ttl, e.addr), "")
		}
		for _, p := range ports {
			if p.Number != 0 {
				data := fmt.Sprintf("0 %d %d %s.%s", weight(count), p.Number, e.label, base)
				add(dns.TypeSRV, rr(owner, ttl, "SRV", data), addressRR(e.label+"."+base, ttl, e.addr))
			}
		}
	}
	for rrtype, s := range sets {
		slices.Sort(s.answer)
		slices.Sort(s.extra)
		sets[rrtype] = recordSet{slices.Compact(s.answer), slices.Compact(s.extra)}
	}
	return sets
}

// pointers returns the PTR records of an address: those of services, of which one is given, or those of endpoints.
func (m *model) pointers(owner string, a netip.Addr) []string {
	ttl := uint32(m.cfg.TTL.Seconds())
	var list []string
	for _, svc := range m.services {
		if m.cfg.External && m.exposed(svc.Namespace) && slices.Contains(distinct(svc.ExternalAddrs), a) {
			list = append(list, rr(owner, ttl, "PTR", m.base(svc)))
		}
	}
	if m.cfg.External {
		slices.Sort(list)
		return list
	}
	for _, svc := range m.services {
		if svc.Type == zone.ClusterIP && m.exposed(svc.Namespace) && slices.ContainsFunc(svc.Addrs, func(o netip.Addr) bool { return o.Unmap() == a }) {
			list = append(list, rr(owner, ttl, "PTR", m.base(svc)))
		}
	}
	if len(list) > 0 {
		slices.Sort(list)
		return list
	}
	for _, svc := range m.services {
		if svc.Type == zone.ExternalName || m.inSet() && svc.Type == zone.ClusterIP || !m.exposed(svc.Namespace) {
			continue
		}
		for _, e := range m.ends(svc) {
			if e.addr == a {
				list = append(list, rr(owner, ttl, "PTR", e.label+"."+m.base(svc)))
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// shared reports whether several services of a zone may have the address of the reverse name.
func (m *model) shared(name string) bool {
	a, _ := reverseAddr(name)
	for _, z := range m.zones {
		for _, svc := range z.services {
			if svc.Type == zone.ClusterIP && z.exposed(svc.Namespace) && slices.ContainsFunc(svc.Addrs, func(o netip.Addr) bool { return o.IsValid() && o.Unmap() == a }) {
				return true
			}
		}
	}
	return false
}

// buildExternal builds the records of an external zone.
func (m *model) buildExternal() {
	server := m.server() + m.cfg.Domain
	m.exist(server)
	for _, a := range m.cfg.Nameservers {
		m.add(server, addressType(a), recordSet{answer: []string{addressRR(server, uint32(m.cfg.TTL.Seconds()), a)}})
	}
	for ns := range m.namespaces {
		if m.exposed(ns) {
			m.exist(ns + "." + m.cfg.Domain)
		}
	}
	for _, svc := range m.services {
		if !m.exposed(svc.Namespace) {
			continue
		}
		m.exist(svc.Namespace + "." + m.cfg.Domain)
		base, ttl, addrs, host := m.base(svc), m.ttl(svc), distinct(svc.ExternalAddrs), aliasTarget(svc.ExternalHost)
		switch {
		case len(addrs) > 0:
			m.addAddresses(base, ttl, addrs, svc.Ports)
		case host != "":
			m.addHost(base, ttl, host, svc.Ports)
		case m.cfg.Headless && (svc.Type == zone.Headless || svc.Type == zone.Unselected):
			m.buildHeadless(svc)
		}
	}
}

// addHost adds the name of a service with a host name, and those of its ports.
func (m *model) addHost(base string, ttl uint32, host string, ports []zone.Port) {
	m.add(base, dns.TypeCNAME, recordSet{answer: []string{rr(base, ttl, "CNAME", host)}})
	for _, p := range ports {
		same := 0
		for _, o := range ports {
			if portIs(o, p) {
				same++
			}
		}
		for _, v := range m.variants(p) {
			m.exist(v + "." + base)
			if p.Number != 0 {
				data := fmt.Sprintf("0 %d %d %s", weight(same), p.Number, host)
				m.add(v+"."+base, dns.TypeSRV, recordSet{answer: []string{rr(v+"."+base, ttl, "SRV", data)}})
			}
		}
	}
}

// server returns the labels of the name server.
func (m *model) server() string {
	if m.cfg.External {
		return "ns1.dns."
	}
	return "ns.dns."
}
