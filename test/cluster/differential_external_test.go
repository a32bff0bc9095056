// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
)

const externalDomain = "example.org."

// TestDifferentialExternal compares external names with those of CoreDNS's plugin k8s_external.
func TestDifferentialExternal(t *testing.T) {
	c := kubetest.Start(t, kubetest.Options{})
	kubetest.Apply(t, c, externalObjects()...)
	outside := startUpstream(t)
	total, variants := tally{reasons: map[string]int{}}, 0
	for _, v := range []struct {
		name, coredns, settings string
	}{
		{"defaults", "", "{zones: [example.org]}"},
		{"headless", "\n\t\theadless", "{zones: [example.org], headless: true}"},
		{"fallthrough", "example.org", "{zones: [example.org], fallthrough: true}"},
	} {
		t.Run(v.name, func(t *testing.T) {
			coredns := kubetest.StartCoreDNS(t, c, fmt.Sprintf(`. {
	bind 127.0.0.1
	ready {$READY}
	k8s_external example.org in-addr.arpa ip6.arpa {
		fallthrough in-addr.arpa ip6.arpa %s
	}
	kubernetes cluster.local in-addr.arpa ip6.arpa {
		kubeconfig {$KUBECONFIG}
	}
	forward . %s
}
`, v.coredns, outside))
			resolver := startReady(t, settings{
				command: "resolver", root: outside, cluster: []string{ranges, "external: " + v.settings, kubeconfig(c.Kubeconfig(kubetest.Admin))},
			})
			p := serverPair{coredns: coredns.Addr(), nodeCache: resolver.settings.addr}
			all := slices.DeleteFunc(questions(externalSubjects(), true, 0), func(q question) bool { return q.qtype == dns.TypeAXFR || q.qtype == dns.TypeIXFR })
			results, err := p.compareAll(all)
			assert.NoError(t, err)
			got := judge(t, results, slices.Concat(generalDifferences(), externalDifferences(), reverseDifferences(), sizeDifferences()))
			t.Logf("%s", &got)
			total.add(&got)
			variants++
		})
	}
	t.Run("changes", func(t *testing.T) { testExternalChanges(t, c) })
	for _, listed := range externalDifferences() {
		if variants == 3 && total.reasons[listed.name] == 0 {
			t.Errorf("the difference %q is listed and does not occur", listed.name)
		}
	}
}

// externalObjects are Services with every kind of external address that the API server accepts.
func externalObjects() []runtime.Object {
	objects := []runtime.Object{
		kubetest.Namespace("shop"), kubetest.Namespace("other"), kubetest.Namespace("dns"), kubetest.Namespace("empty"),
		newService("shop", "inside", at("10.96.1.1"), ports("http:80")),
		newService("shop", "lb", at("10.96.1.2"), ports("http:80"), ingress("203.0.113.1")),
		newService("shop", "lb46", at("10.96.1.3"), ports("http:80", "dns:53/UDP", "dns-tcp:53/TCP"), ingress("203.0.113.2", "2001:db8::2")),
		newService("shop", "ips", at("10.96.1.4"), ports("http:80", "https:443"), externalIPs("198.51.100.1", "198.51.100.2")),
		newService("shop", "both", at("10.96.1.5"), ports("http:80"), ingress("203.0.113.3"), externalIPs("198.51.100.3")),
		newService("shop", "twice", at("10.96.1.6"), ports("http:80"), ingress("203.0.113.4"), externalIPs("203.0.113.4")),
		newService("shop", "host", at("10.96.1.7"), ports("http:80"), ingress("www.example.test")),
		newService("shop", "hosts", at("10.96.1.8"), ports("http:80"), ingress("www.example.test", "alias.example.test")),
		newService("shop", "mixed", at("10.96.1.9"), ports("http:80"), ingress("203.0.113.5", "www.example.test")),
		newService("shop", "to-inside", at("10.96.1.10"), ports("http:80"), ingress("inside.shop.svc.cluster.local")),
		newService("shop", "to-lb", at("10.96.1.11"), ports("http:80"), ingress("lb.shop.example.org")),
		newService("shop", "patient", at("10.96.1.12"), ports("http:80"), ingress("203.0.113.6"), annotated("node-cache.io/ttl", "30s")),
		newService("shop", "same-a", at("10.96.1.13"), ports("http:80"), externalIPs("198.51.100.9")),
		newService("shop", "same-b", at("10.96.1.14"), ports("http:80"), externalIPs("198.51.100.9")),
		newService("shop", "claim", at("10.96.1.15"), ports("http:80"), externalIPs("10.96.1.1")),
		newService("shop", "many", at("10.96.1.16"), ports("http:80"), externalIPs(manyAddresses(100)...)),
		newService("shop", "headless", headless(corev1.IPv4Protocol), ports("sql:5432")),
		newService("shop", "headless-ips", headless(corev1.IPv4Protocol), ports("sql:5432"), externalIPs("198.51.100.6")),
		newService("shop", "portless", headless(corev1.IPv4Protocol), externalIPs("198.51.100.8")),
		newService("shop", "vacant", headless(corev1.IPv4Protocol), ports("sql:5432")),
		newService("shop", "out", aliasOf("www.example.test")),
		newService("shop", "to-example", aliasOf("lb.shop.example.org")),
		newService("other", "lb", at("10.96.2.1"), ports("http:80"), ingress("203.0.113.20")),
		newService("dns", "web", at("10.96.2.2"), ports("http:80"), ingress("203.0.113.21")),
		newService("dns", "ns1", at("10.96.2.3"), ports("http:80"), ingress("203.0.113.22")),
	}
	for _, service := range []string{"headless", "headless-ips", "inside"} {
		objects = append(objects, newSlice(service, service+"-1", slicePorts("sql:5432"),
			endpoint("10.1.0.1", named("db-0")), endpoint("10.1.0.2", named("db-1")), endpoint("10.1.0.3")))
	}
	return objects
}

// ingress makes the service that of a load balancer with these addresses and host names.
func ingress(texts ...string) serviceOption {
	return func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		for _, text := range texts {
			point := corev1.LoadBalancerIngress{Hostname: text}
			if _, err := netip.ParseAddr(text); err == nil {
				point = corev1.LoadBalancerIngress{IP: text}
			}
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, point)
		}
	}
}

func externalIPs(ips ...string) serviceOption {
	return func(s *corev1.Service) { s.Spec.ExternalIPs = ips }
}

func manyAddresses(n int) []string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("198.18.0.%d", i))
	}
	return list
}

// externalSubjects are the names to ask for.
func externalSubjects() []subject {
	g := &generator{seen: map[string]bool{}, targets: map[string]string{}}
	in := func(s shape, names ...string) {
		for _, name := range names {
			g.add(s, name+"."+externalDomain)
		}
	}
	g.add(shapeTree, externalDomain)
	in(shapeOwn, "dns", "ns1.dns", "ns.dns", "hostmaster.dns", "x.ns1.dns", "x.y.dns", "web.dns")
	in(shapeSpace, "shop", "other", "empty", "nowhere", "x.y.z.a.b.c")
	in(shapeService, "nothing.shop", "lb.nowhere", "nothing.empty", "x.nothing.shop", "_http._tcp.nothing.shop")
	for _, o := range externalObjects() {
		s, ok := o.(*corev1.Service)
		if !ok {
			continue
		}
		base := s.Name + "." + s.Namespace
		in(shapeService, base, strings.ToUpper(base))
		in(shapePort, "_http._tcp."+base, "_http._udp."+base, "_sql._tcp."+base, "_dns._udp."+base, "_dns._tcp."+base, "_nothing._tcp."+base, "_http._x."+base)
		in(shapeBarePort, "http.tcp."+base, "sql.tcp."+base)
		in(shapeNode, "_tcp."+base, "_udp."+base)
		in(shapeEndpoint, "x."+base, "db-0."+base, "10-1-0-3."+base, "_http."+base)
		in(shapeDeep, "a.b."+base, "a.b.c."+base, "x._http._tcp."+base)
		for _, text := range slices.Concat(s.Spec.ExternalIPs[:min(2, len(s.Spec.ExternalIPs))], s.Spec.ClusterIPs) {
			if name, err := dns.ReverseAddr(text); err == nil {
				g.add(shapeReverse, name)
			}
		}
		for _, point := range s.Status.LoadBalancer.Ingress {
			if name, err := dns.ReverseAddr(point.IP); err == nil {
				g.add(shapeReverse, name)
			}
		}
	}
	g.add(shapeUnknown, "1.1.1.1.in-addr.arpa.")
	g.add(shapeService, "lb.shop.svc."+domain, "to-example.shop.svc."+domain)
	return g.list
}

// externalDifferences are those of external names.
func externalDifferences() []difference {
	return append(hostDifferences(), []difference{
		{
			name: "any name below a service",
			why:  "RFC 8020: a name exists because of its records or of names below it. CoreDNS gives any name one label below a service its addresses, and endpoints below a name that it denies.",
			explains: func(c *comparison) facets {
				_, left := c.external()
				return when(left == 1 && c.coredns.msg.Rcode == dns.RcodeSuccess && len(c.nodeCache.answer) == 0, facetRcode|facetAA|facetTC|facetsSections)
			},
		},
		{
			name: "external nodes above the names of ports",
			why:  "RFC 8020: _tcp.headless exists because _sql._tcp.headless does. CoreDNS takes it for an endpoint.",
			explains: func(c *comparison) facets {
				_, left := c.external()
				return when(c.shape == shapeNode && left == 1 && c.emptyNode(), facetRcode)
			},
		},
		{
			name: "external TTL by annotation",
			why:  "node-cache.io/ttl on a Service gives the TTL of its names. CoreDNS has one TTL for all.",
			explains: func(c *comparison) facets {
				service, _ := c.external()
				return when(service == "patient", facetTTL)
			},
		},
		{
			name: "weights of addresses that are there twice",
			why:  "RFC 2782: weights share the load between targets. CoreDNS counts the same address twice.",
			explains: func(c *comparison) facets {
				service, _ := c.external()
				return when(service == "twice" && slices.Equal(withoutWeight(c.coredns.answer), withoutWeight(c.nodeCache.answer)), facetAnswer)
			},
		},
		{
			name: "the external zone's own name server",
			why:  "RFC 1034 section 4.2.1: a zone has one. CoreDNS looks for a service of its own.",
			explains: func(c *comparison) facets {
				address := strings.EqualFold(c.name, "ns1.dns."+externalDomain) && c.qtype == dns.TypeA && len(c.nodeCache.answer) == 1
				glue := c.shape == shapeTree && c.qtype == dns.TypeNS && len(c.nodeCache.additional) == 1
				return when(address, facetAnswer|facetAuthority) | when(glue, facetAdditional)
			},
		},
		{
			name: "the reverse name of an address that the cluster has itself",
			why:  "Who can write Services can claim any address. CoreDNS asks the external names first.",
			explains: func(c *comparison) facets {
				return when(c.name == "1.1.96.10.in-addr.arpa." && strings.HasSuffix(strings.Join(c.nodeCache.answer, ""), "\tinside.shop.svc.cluster.local."), facetAnswer)
			},
		},
		{
			name: "name server of a reverse name's zone",
			why:  "RFC 1035 section 3.3.13: MNAME is a name server's name. CoreDNS invents ns.dns.in-addr.arpa.",
			explains: func(c *comparison) facets {
				own := c.shape == shapeReverse && len(c.nodeCache.authority) == 1 && strings.Contains(c.nodeCache.authority[0], "\tns1.dns.example.org. ")
				return when(own, facetAuthority)
			},
		},
	}...)
}

// hostDifferences are those of the host names of load balancers.
func hostDifferences() []difference {
	hosts := []string{"host", "hosts", "to-inside", "to-lb"}
	return []difference{
		{
			name: "a host name is one alias for every type",
			why:  "RFC 1034 section 3.6.2, RFC 2181 section 10.1: a name with an alias has one and nothing else. CoreDNS has several, and SRV records beside them.",
			explains: func(c *comparison) facets {
				service, left := c.external()
				alias := func(text string) bool {
					return strings.HasPrefix(strings.ToLower(text), strings.ToLower(c.name)+"\t5\tin\tcname\t")
				}
				one := len(slices.DeleteFunc(slices.Clone(c.nodeCache.answer), func(text string) bool { return !alias(text) })) == 1
				return when(left == 0 && slices.Contains(hosts, service) && one, facetRcode|facetTTL|facetOrder|facetsSections)
			},
		},
		{
			name: "an alias beside SRV records",
			why:  "RFC 2181 section 10.1: the name of a port has SRV records, so it is no alias. CoreDNS gives both.",
			explains: func(c *comparison) facets {
				service, left := c.external()
				return when(left == 2 && slices.Contains(hosts, service) && c.hasNoData(), facetTTL|facetsSections)
			},
		},
		{
			name: "addresses of a target elsewhere",
			why:  "RFC 2782: they are optional. CoreDNS looks them up for each query.",
			explains: func(c *comparison) facets {
				service, left := c.external()
				return when(c.qtype == dns.TypeSRV && left == 2 && slices.Contains(hosts, service) && len(c.nodeCache.additional) == 0, facetAdditional)
			},
		},
		{
			name: "one host name, and none beside an address",
			why:  "RFC 2181 section 10.1: a name has one alias, and no address beside it. SRV records have the same targets.",
			explains: func(c *comparison) facets {
				service, _ := c.external()
				part := isPart(withoutWeight(c.nodeCache.answer), withoutWeight(c.coredns.answer)) && isPart(folded(c.nodeCache.additional), folded(c.coredns.additional))
				none := service == "mixed" && c.hasNoData()
				return when((service == "mixed" || service == "hosts") && (part || none), facetTTL|facetOrder|facetsSections)
			},
		},
		{
			name: "alias of an external name",
			why:  "An alias is followed within all zones that the process has. CoreDNS follows it for A and AAAA only.",
			explains: func(c *comparison) facets {
				return when(strings.HasPrefix(c.name, "to-example.shop.svc.") && len(c.nodeCache.answer) > 0, facetRcode|facetTTL|facetOrder|facetsSections)
			},
		},
	}
}

// hasNoData reports whether node-cache says that a name exists and has no such type.
func (c *comparison) hasNoData() bool {
	return c.nodeCache.msg.Rcode == dns.RcodeSuccess && len(c.nodeCache.answer) == 0 && len(c.nodeCache.authority) == 1
}

// external is the service of an external name, and the number of labels left of it; negative: it has none.
func (c *comparison) external() (service string, left int) {
	name := strings.ToLower(c.name)
	if !dns.IsSubDomain(externalDomain, name) {
		return "", -1
	}
	left = dns.CountLabel(name) - dns.CountLabel(externalDomain) - 2
	if left < 0 {
		return "", left
	}
	return c.label(left), left
}

// testExternalChanges changes the address of a load balancer again and again: each answer after the API server's word is right
// in time.
func testExternalChanges(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	const changes = 300
	kubetest.Apply(t, c, newService("shop", "changes", at("10.96.200.1"), ports("http:80"), ingress("203.0.113.1")))
	n := startReady(t, settings{cluster: local("external: {zones: [example.org]}", kubeconfig(c.Kubeconfig(kubetest.Admin)))})
	n.awaitAnswer(t, "changes.shop.example.org.", "NOERROR 203.0.113.1")
	services := c.Client().CoreV1().Services("shop")
	var took times
	for i := range changes {
		s, err := services.Get(t.Context(), "changes", metav1.GetOptions{})
		assert.NoError(t, err)
		address := fmt.Sprintf("203.0.%d.%d", 114+i/200, 1+i%200)
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
		_, err = services.UpdateStatus(t.Context(), s, metav1.UpdateOptions{})
		assert.NoError(t, err)
		changed := time.Now()
		n.awaitAnswer(t, "changes.shop.example.org.", "NOERROR "+address)
		took.add(time.Since(changed))
	}
	t.Logf("%d changes, right after %s (median), %s (99 %%), %s (longest)", changes, took.percentile(50), took.percentile(99), took.percentile(100))
	took.expectInTime(t)
}
