// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const domain = "cluster.local."

// ownerlessName is the reverse name of the endpoint in the slice without a service.
const ownerlessName = "9.5.2.10.in-addr.arpa."

// A shape is the kind of a generated name.
type shape string

// The shapes.
const (
	shapeService  shape = "service"        // web.shop.svc
	shapePort     shape = "port"           // _http._tcp.web.shop.svc, of ports that exist and others
	shapeBarePort shape = "bare port"      // http.tcp.web.shop.svc
	shapeNode     shape = "protocol"       // _tcp.web.shop.svc
	shapeEndpoint shape = "endpoint"       // db-0.db.shop.svc, of endpoints that exist and others
	shapeZonal    shape = "zonal"          // zone-a.pin._zone.db.shop.svc
	shapeZoneNode shape = "above zonal"    // _zone.db.shop.svc
	shapeDeep     shape = "deep"           // a.b.c.web.shop.svc
	shapeSpace    shape = "namespace"      // shop.svc, shop.pod
	shapePod      shape = "pod"            // 10-1-0-1.shop.pod
	shapeBelowPod shape = "below pod"      // a.10-1-0-1.shop.pod
	shapeTree     shape = "tree"           // svc, pod, the zone itself
	shapeOwn      shape = "own"            // dns-version, ns.dns
	shapeOutside  shape = "outside"        // in the zone, outside of all that
	shapeReverse  shape = "reverse"        // an address of a service, an endpoint or a pod
	shapeUnknown  shape = "reverse other"  // an address that no object has
	shapeBroken   shape = "reverse broken" // no address
	shapeElse     shape = "elsewhere"      // outside the zone
	shapeJunk     shape = "junk"           // no name of anything
)

// A subject is a name to ask for.
type subject struct {
	name   string // absolute, in presentation form
	shape  shape
	target string // of an alias
	silent bool   // CoreDNS does not answer
}

// A generator makes subjects, each name once.
type generator struct {
	list    []subject
	seen    map[string]bool
	targets map[string]string // of aliases
	rand    *rand.Rand
}

// subjects are the names that the objects give rise to, and others beside them. Of two objects with the same name the
// first is the one that exists.
func subjects(objects []runtime.Object) []subject {
	g := &generator{seen: map[string]bool{}, targets: map[string]string{}, rand: rand.New(rand.NewPCG(3, 1))}
	g.apex()
	g.namespaces(objects)
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Service:
			g.service(o)
		case *discoveryv1.EndpointSlice:
			g.slice(o)
		case *corev1.Pod:
			g.pod(o)
		}
	}
	g.unknownServices()
	g.podNames()
	g.zonal()
	g.reverse()
	g.junk()
	g.elsewhere()
	g.mixCase()
	return g.list
}

// add takes the names that can be sent at all.
func (g *generator) add(s shape, names ...string) {
	for _, name := range names {
		if _, ok := dns.IsDomainName(name); ok && !g.seen[name] {
			g.seen[name] = true
			lower := strings.ToLower(name)
			g.list = append(g.list, subject{name: name, shape: s, target: g.targets[lower], silent: lower == ownerlessName})
		}
	}
}

// in is add for names in the zone.
func (g *generator) in(s shape, names ...string) {
	for _, name := range names {
		g.add(s, name+"."+domain)
	}
}

func (g *generator) apex() {
	g.add(shapeTree, domain)
	g.in(shapeTree, "svc", "pod")
	g.in(shapeOwn, "dns", "ns.dns", "dns-version")
	g.in(shapeOutside, "x", "x.dns", "x.ns.dns", "x.dns-version", "dns.dns", "apex.dns", "hostmaster", "_tcp", "*", "any",
		"www.example.test", "1.0.96.10.in-addr.arpa", "cluster.local", "svc.cluster.local", "web.shop", "shop", "svc.x", "pod.x",
		"_http._tcp.web.shop", "nodes", "ns", "0.0.0.0", "in-addr.arpa", longLabel)
}

func (g *generator) namespaces(objects []runtime.Object) {
	names := []string{"default", "kube-system", "nowhere", "_tcp", "*", "any", "x.y", longLabel + "x"}
	for _, o := range objects {
		if n, ok := o.(*corev1.Namespace); ok {
			names = append(names, n.Name)
		}
	}
	for _, name := range names {
		for _, tree := range []string{"svc", "pod"} {
			s := shapeSpace
			if strings.Contains(name, ".") {
				s = shapeService
			}
			g.in(s, name+"."+tree)
		}
		g.in(shapeService, "nothing."+name+".svc", "_tcp."+name+".svc", "*."+name+".svc", "_zone."+name+".svc")
		g.in(shapePort, "_http._tcp."+name+".svc")
	}
}

// service asks for all that a service could have.
func (g *generator) service(s *corev1.Service) {
	base := s.Name + "." + s.Namespace + ".svc"
	if s.Spec.ExternalName != "" && !g.seen[base+"."+domain] && net.ParseIP(s.Spec.ExternalName) == nil {
		g.targets[base+"."+domain] = dns.Fqdn(s.Spec.ExternalName)
	}
	g.in(shapeService, base)
	g.in(shapePod, s.Name+"."+s.Namespace+".pod")
	g.in(shapeOutside, s.Name+"."+s.Namespace, s.Name)
	for i, p := range s.Spec.Ports {
		if i > 4 {
			break
		}
		for _, protocol := range []string{"tcp", "udp", "sctp"} {
			g.in(shapePort, "_"+p.Name+"._"+protocol+"."+base)
		}
		protocol := strings.ToLower(string(p.Protocol))
		g.in(shapeBarePort, p.Name+"."+protocol+"."+base, "_"+p.Name+"."+protocol+"."+base, p.Name+"._"+protocol+"."+base)
		g.in(shapePort, "__"+p.Name+"._"+protocol+"."+base, "_"+p.Name+"x._"+protocol+"."+base, "_"+p.Name+"._"+protocol+"x."+base)
		g.in(shapeDeep, "x._"+p.Name+"._"+protocol+"."+base)
		g.in(shapeEndpoint, "_"+p.Name+"."+base)
	}
	g.in(shapeNode, "_tcp."+base, "_udp."+base, "_sctp."+base)
	g.in(shapeEndpoint, "tcp."+base, "_."+base, "_icmp."+base, "x."+base, "*."+base, "any."+base, s.Name+"."+base)
	g.in(shapePort, "_nothing._tcp."+base, "_._tcp."+base, "_http._."+base, "*._tcp."+base, "_any._any."+base, "x.y."+base, "*.*."+base)
	g.in(shapeDeep, "a.b.c."+base, "_http._tcp.x."+base, "_zone.x.y."+base)
	g.in(shapeZoneNode, "_zone."+base, "pin._zone."+base, "prefer._zone."+base, "other._zone."+base)
	g.in(shapeZonal, "zone-a.pin._zone."+base, "zone-a.prefer._zone."+base, "zone-a.other._zone."+base)
	for _, search := range []string{"shop.svc", "svc", "shop.svc.shop.svc"} { // what resolvers walk through
		g.in(shapeDeep, base+"."+strings.TrimSuffix(domain, ".")+"."+search)
	}
	for _, text := range s.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil {
			g.address(a, base)
		}
	}
}

func (g *generator) slice(s *discoveryv1.EndpointSlice) {
	base := s.Labels[discoveryv1.LabelServiceName] + "." + s.Namespace + ".svc"
	for i, e := range s.Endpoints {
		if i > 20 {
			break
		}
		if e.Hostname != nil {
			g.in(shapeEndpoint, *e.Hostname+"."+base)
			g.in(shapePort, *e.Hostname+"._tcp."+base)
			g.in(shapeDeep, "x.y."+*e.Hostname+"."+base, "_sql._tcp."+*e.Hostname+"."+base)
		}
		if e.TargetRef != nil {
			g.in(shapeEndpoint, e.TargetRef.Name+"."+base)
		}
		for _, text := range e.Addresses {
			if a, err := netip.ParseAddr(text); err == nil {
				g.address(a, base)
			}
		}
	}
}

func (g *generator) pod(p *corev1.Pod) {
	for _, service := range []string{"web", "db", "db6", "db46", "bare", "half", "half-published", "unready", "unready-published", "lasting"} {
		base := service + "." + p.Namespace + ".svc"
		g.in(shapeEndpoint, p.Name+"."+base)
		if p.Spec.Hostname != "" {
			g.in(shapePort, p.Spec.Hostname+"._tcp."+base)
		}
		for _, ip := range p.Status.PodIPs {
			g.address(netip.MustParseAddr(ip.IP), base)
		}
	}
	for _, ip := range p.Status.PodIPs {
		for _, space := range []string{p.Namespace, "other", "nowhere"} {
			g.in(shapePod, dashed(netip.MustParseAddr(ip.IP))+"."+space+".pod")
		}
	}
	g.in(shapePod, p.Name+"."+p.Namespace+".pod")
}

// address asks for an address as an endpoint, as a pod and backwards.
func (g *generator) address(a netip.Addr, base string) {
	g.in(shapeEndpoint, dashed(a)+"."+base)
	if a.Is6() {
		full := strings.ReplaceAll(a.StringExpanded(), ":", "-")
		g.in(shapeEndpoint, full+"."+base, strings.ReplaceAll(a.String(), ":", "-")+"."+base)
	}
	g.in(shapePod, dashed(a)+".shop.pod")
	if name, err := dns.ReverseAddr(a.String()); err == nil {
		g.add(shapeReverse, name)
	}
}

func (g *generator) unknownServices() {
	for _, name := range []string{"nothing", "web-", "web.x", "-", "_", "_http", "dns-version", "10-0-0-1", longLabel, longLabel + "x", "\\.", "web\\.shop", "\\000"} {
		g.in(shapeService, name+".shop.svc")
		g.in(shapePort, "_http._tcp."+name+".shop.svc")
		g.in(shapeEndpoint, "db-0."+name+".shop.svc")
		g.in(shapeZonal, "zone-a.pin._zone."+name+".shop.svc")
	}
}

func (g *generator) podNames() {
	labels := []string{
		"10-0-0-1", "0-0-0-0", "255-255-255-255", "256-0-0-1", "1-2-3", "1-2-3-4-5", "01-2-3-4", "1-2-3-", "-1-2-3", "1--2-3", "a-b-c-d",
		"--", "--1", "1--", "fd00--1", "fd00--", "-fd00--1", "FD00--1", "fd00-0-0-0-0-0-0-1", "fd00-0-0-0-0-0-0-0", "fd00--1--1", "fd00-1",
		"1-2-3-4-5-6-7-8", "1-2-3-4-5-6-7-8-9", "1--3-4-5-6-7-8", "1-2-3-4-5-6-7--", "--ffff-10-0-0-1", "--ffff-a00-1", "--10-0-0-1",
		"fd00--10-0-0-1", "12345--1", "g--1", "fd00--0", "fd00--1-0", "10.0.0.1", "10\\.0\\.0\\.1", "fd00\\:\\:1", "x", "_tcp", "*", longLabel,
	}
	for _, label := range labels {
		s := shapePod
		if strings.Contains(label, ".") && !strings.Contains(label, "\\") {
			s = shapeDeep
		}
		g.in(s, label+".shop.pod", label+".empty.pod", label+".nowhere.pod")
		g.in(shapeBelowPod, "x."+label+".shop.pod", "_http._tcp."+label+".shop.pod", "zone-a.pin._zone."+label+".shop.pod")
		g.in(shapeService, label+".shop.svc")
	}
}

func (g *generator) zonal() {
	zones := []string{
		"zone-b", "zone-c", "zone-x", "eu.west.1", "eu", "west.1", "pin", "pin.pin", "prefer", "_zone", "a.pin._zone", "*", longLabel,
		"zone\\.a", "zone-a.pin._zone.zone-a",
	}
	for _, zone := range zones {
		for _, directive := range []string{"pin", "prefer", "_pin", "other"} {
			for _, service := range []string{"zones", "db", "bare", "vacant", "web", "to-web", "nothing"} {
				g.in(shapeZonal, zone+"."+directive+"._zone."+service+".shop.svc")
			}
		}
	}
	g.in(shapeZonal, longLabel+".pin._zone.long."+longLabel+".svc", "_sql._tcp.pin._zone.db.shop.svc", "zone-a.pin._zone.db.nowhere.svc")
}

func (g *generator) reverse() {
	for _, text := range []string{
		"10.96.0.1", "10.96.0.2", "10.96.255.255", "10.1.0.200", "10.2.0.0", "192.0.2.1", "127.0.0.1", "0.0.0.0", "255.255.255.255", "198.51.100.7",
		"fd00:10:96::1", "fd00:10:96::ffff", "fd00:1::ffff", "::1", "::", "2001:db8::1", "::ffff:10.96.1.1", "::ffff:10.1.0.1",
	} {
		name, err := dns.ReverseAddr(text)
		if err != nil {
			panic(err) // a slip in the list above
		}
		g.add(shapeUnknown, name)
	}
	v6, _ := dns.ReverseAddr("fd00:10:96::101")
	g.add(shapeBroken, "in-addr.arpa.", "10.in-addr.arpa.", "96.10.in-addr.arpa.", "1.96.10.in-addr.arpa.", "1.1.1.96.10.in-addr.arpa.",
		"x.1.1.96.10.in-addr.arpa.", "_tcp.1.1.96.10.in-addr.arpa.", "01.1.96.10.in-addr.arpa.", "1.1.096.10.in-addr.arpa.", "256.1.96.10.in-addr.arpa.",
		"x.1.96.10.in-addr.arpa.", "1.96.10.x.in-addr.arpa.", "*.1.96.10.in-addr.arpa.", "0-63.1.96.10.in-addr.arpa.", "1\\.1.96.10.in-addr.arpa.",
		"1.1.96.10.ip6.arpa.", "svc.in-addr.arpa.", "web.shop.svc.in-addr.arpa.", "svc.ip6.arpa.", "dns-version.in-addr.arpa.", "ns.dns.in-addr.arpa.",
		"ns.dns.ip6.arpa.", "pod.in-addr.arpa.", "10-1-0-1.shop.pod.in-addr.arpa.", "-1.1.96.10.in-addr.arpa.", "1.1.96.a.in-addr.arpa.",
		"ip6.arpa.", "d.f.ip6.arpa.", v6[2:], "x."+v6, "0."+v6, "g"+v6[1:], "11"+v6[1:], strings.ToUpper(v6), "*"+v6[1:], strings.Replace(v6, "1.0.", "10.", 1),
		strings.Replace(v6, "0.0.", "0\\.0.", 1), strings.Replace(v6, "ip6.arpa", "in-addr.arpa", 1))
}

func (g *generator) junk() {
	label := strings.Repeat("x", 63)
	deep := strings.Repeat("1.", 60)
	g.in(shapeJunk, label, label+"."+label+"."+label, deep+"svc", deep+"pod", "\\000\\001\\255", "\\032", "a\\.b", "\\\\", "\\\"", "\\(", "\\;", "\\@",
		"@", "web.shop.svc\\.cluster", "web\\.shop.svc", "web.shop\\.svc", "-", "_", "__", "0", "web .shop.svc", "wéb.shop.svc", "xn--wb-cja.shop.svc", "%00.shop.svc",
		"\\000web.shop.svc", "web\\000.shop.svc", "db-0\\.db.shop.svc", "\\255\\254.web.shop.svc", "_\\000._tcp.web.shop.svc", "'or'1.shop.svc", "../web.shop.svc", "web/shop.shop.svc")
	for _, tail := range []string{"web.shop.svc." + domain, "nothing.shop.svc." + domain, "shop.pod." + domain, "1.1.96.10.in-addr.arpa."} {
		name := tail // as long as a name can be: 255 bytes on the wire
		for room := 254 - len(tail) - 1; room > 1; room = 254 - len(name) - 1 {
			name = strings.Repeat("y", min(63, room)) + "." + name
		}
		g.add(shapeJunk, name)
	}
	for range 300 {
		g.in(shapeJunk, g.randomName())
	}
}

// randomName puts together labels that mean something somewhere.
func (g *generator) randomName() string {
	words := []string{
		"web", "db", "db-0", "shop", "svc", "pod", "_tcp", "_udp", "_http", "_sql", "tcp", "http", "pin", "prefer", "_zone", "zone-a", "dns", "ns",
		"dns-version", "cluster", "local", "10-1-0-1", "10-2-1-1", "zones", "any", "*", "_", "default", "kubernetes", "in-addr", "arpa", "other", "x",
	}
	var labels []string
	for range 1 + g.rand.IntN(7) {
		labels = append(labels, words[g.rand.IntN(len(words))])
	}
	if g.rand.IntN(3) > 0 { // most go deep
		labels = append(labels, "shop", []string{"svc", "svc", "pod"}[g.rand.IntN(3)])
	}
	return strings.Join(labels, ".")
}

func (g *generator) elsewhere() {
	for _, name := range []string{"www", "alias", "chain", "back", "empty", "missing", "x.www", "large", "broken", "a.b.c", "ns"} {
		g.add(shapeElse, name+".example.test.")
	}
	g.add(shapeElse, "example.test.", "test.", "local.", "xcluster.local.", "web.shop.svc.cluster.locale.", "cluster.local.example.test.",
		"arpa.", "xin-addr.arpa.", "web.shop.svc.", "svc.", "kubernetes.default.svc.", "web.", "e164.arpa.")
}

// mixCase asks for some of the names again in other spellings, and for all that mean something.
func (g *generator) mixCase() {
	for i, s := range slices.Clone(g.list) {
		if i%5 == 0 || s.shape == shapeService || s.shape == shapeOwn || s.shape == shapeTree {
			g.add(s.shape, g.mixed(s.name))
		}
	}
}

func (g *generator) mixed(name string) string {
	return strings.Map(func(c rune) rune {
		if g.rand.IntN(2) == 0 {
			return unicode.ToUpper(c)
		}
		return c
	}, name)
}

// dashed is an address as a label, in the way of CoreDNS.
func dashed(a netip.Addr) string {
	label := strings.NewReplacer(".", "-", ":", "-").Replace(a.String())
	if strings.HasSuffix(label, "-") {
		label += "0"
	}
	return label
}
