// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/internal/kubetest"
)

// testOddObjects has objects that the API server lets in and that DNS has no good answer for.
func testOddObjects(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	odd := func(name string, options ...serviceOption) *corev1.Service {
		return newService("odd", name, options...)
	}
	set := func(name string) *corev1.Service { return odd(name, headless(corev1.IPv4Protocol), ports("sql:5432")) }
	slice := inNamespace("odd", newSlice("set", "set-1", slicePorts("sql:5432"),
		endpoint("10.1.4.1", named(longLabel)), endpoint("10.1.4.2"), endpoint("10.1.4.2")))
	slice.Labels[corev1.IsHeadlessService] = ""
	strayed := inNamespace("odd", newSlice("nowhere", "nowhere-1", nil, endpoint("10.1.4.3")))
	strayed.Labels[corev1.IsHeadlessService] = ""
	far := strings.Repeat("a23456789.", 24) + "example.com" // 251 bytes
	kubetest.Apply(t, c, kubetest.Namespace("odd"))
	kubetest.Apply(t, c,
		odd("self", aliasOf("self.odd.svc.cluster.local")),
		odd("ping", aliasOf("pong.odd.svc.cluster.local")), odd("pong", aliasOf("ping.odd.svc.cluster.local")),
		odd("number", aliasOf("10.96.1.1")),
		odd("far", aliasOf(far)),
		odd("quick", at("10.96.4.1"), ports("http:80"), annotated("node-cache.io/ttl", "0s")),
		odd("slow", at("10.96.4.2"), ports("http:80"), annotated("node-cache.io/ttl", "1h")),
		odd("wrong", at("10.96.4.3"), ports("http:80"), annotated("node-cache.io/ttl", "forever")),
		odd("longer", at("10.96.4.4"), ports("http:80"), annotated("node-cache.io/ttl", "2h")),
		odd(longLabel, at("10.96.4.5"), ports("a-port-of-15-ch:80/SCTP")),
		odd("many", at("10.96.4.6"), ports(manyPorts(100)...)),
		odd("none", headless(corev1.IPv4Protocol)), set("set"), slice, strayed,
		odd("last", at("10.96.4.7"), ports("http:80")),
	)
	n := startReady(t, settings{cluster: local(kubeconfig(c.Kubeconfig(kubetest.Admin)))})
	name := func(service string) string { return service + ".odd.svc.cluster.local." }
	n.awaitAnswer(t, name("last"), "NOERROR 10.96.4.7")
	n.expect(t,
		expectedAnswer{name("self"), dns.TypeA, "NOERROR"},
		expectedAnswer{name("ping"), dns.TypeA, "NOERROR"},
		expectedAnswer{name("pong"), dns.TypeAAAA, "NOERROR"},
		expectedAnswer{name("number"), dns.TypeA, "NXDOMAIN"},
		expectedAnswer{name("far"), dns.TypeCNAME, "NOERROR " + far + "."},
		expectedAnswer{name(longLabel), dns.TypeA, "NOERROR 10.96.4.5"},
		expectedAnswer{"_a-port-of-15-ch._sctp." + name(longLabel), dns.TypeSRV, "NOERROR 0 100 80 " + name(longLabel)},
		expectedAnswer{"_port-99._tcp." + name("many"), dns.TypeSRV, "NOERROR 0 100 1099 " + name("many")},
		expectedAnswer{name("none"), dns.TypeA, "NXDOMAIN"},
		expectedAnswer{name("set"), dns.TypeA, "NOERROR 10.1.4.1 10.1.4.2"},
		expectedAnswer{longLabel + "." + name("set"), dns.TypeA, "NOERROR 10.1.4.1"},
		expectedAnswer{"10-1-4-2." + name("set"), dns.TypeA, "NOERROR 10.1.4.2"},
		expectedAnswer{name("nowhere"), dns.TypeA, "NXDOMAIN"},
		expectedAnswer{"3.4.1.10.in-addr.arpa.", dns.TypePTR, "SERVFAIL ede=23"}, // left to an upstream that is not there
	)
	for service, want := range map[string]uint32{"quick": 0, "slow": 3600, "wrong": 5, "longer": 5} {
		m, err := exchange(n.settings.addr, name(service), dns.TypeA)
		if err != nil || len(m.Answer) != 1 || m.Answer[0].Header().Ttl != want {
			t.Errorf("TTL of %s: %v %v, want %d", service, m, err, want)
		}
	}
	if _, body, err := n.get("/metrics"); err != nil || !strings.Contains(body, `nodecache_panics_total{where="watch"} 0`) {
		t.Errorf("a panic in the watch: %v", err)
	}
}
