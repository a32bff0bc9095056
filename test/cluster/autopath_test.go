// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestAutopath compares the walk with CoreDNS's plugin autopath over the same objects, as pods at their addresses see both. They differ
// only where autopath has the defect that is named.
func TestAutopath(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t, kubetest.Options{})
	openShop(t, c)
	plain, few := netip.MustParseAddr("127.20.0.1"), netip.MustParseAddr("127.20.0.2")
	ndots := "1"
	pod := kubetest.Pod{Namespace: "shop", Name: "few", Node: "node1", IPs: []netip.Addr{few}}.Object()
	pod.Spec.DNSConfig = &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &ndots}}}
	kubetest.Apply(t, c, pod, kubetest.Pod{Namespace: "shop", Name: "plain", Node: "node1", IPs: []netip.Addr{plain}}.Object())
	outside := serve(t, autopathAnswer)
	n := startReady(t, settings{
		root: outside, cluster: []string{kubeconfig(c.Kubeconfig(kubetest.Admin)), "resolver: local"},
		more: "pods: {identity: api, searchPath: on}", env: []string{"NODE_NAME=node1"},
	})
	coredns := kubetest.StartCoreDNS(t, c, fmt.Sprintf(`. {
	bind 127.0.0.1
	ready {$READY}
	autopath @kubernetes
	kubernetes cluster.local in-addr.arpa ip6.arpa {
		kubeconfig {$KUBECONFIG}
		pods verified
	}
	forward . %s
}
`, outside))
	ask := func(server, from netip.AddrPort, name string, qtype uint16) string {
		client := dns.Client{Timeout: clientTimeout, Dialer: &net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(from)}}
		m, _, err := client.Exchange(new(dns.Msg).SetQuestion(name+".shop.svc.cluster.local.", qtype), server.String())
		assert.NoError(t, err)
		var found []string
		for _, rr := range m.Answer {
			if rr.Header().Rrtype == qtype {
				found = append(found, strings.ToLower(rr.Header().Name)+strings.TrimPrefix(rr.String(), rr.Header().String()))
			}
		}
		slices.Sort(found)
		return strings.Join(append([]string{dns.RcodeToString[m.Rcode]}, found...), " ")
	}
	// No issue of CoreDNS is about the first and the last, so each has the line of plugin/autopath 1.14.7 that does it.
	const (
		// autopath.go:88 walks for any name below the first suffix. coredns#750 had an argument NDOTS, and coredns#859 dropped it.
		ndotsReason = "it walks for names that the pod's resolver asks as they are first"
		// autopath.go:127 goes on after NXDOMAIN only, though README.md:11 promises the original reply after a failure. coredns#2532
		// has it for a plugin that is missing: a maintainer expects the SERVFAIL of the last name in the reply to the first.
		failure = "the failure of another name ends the search of musl"
		// autopath.go:127, too: of a reply it reads the rcode, and ServeDNS nowhere reads the type of the query.
		types = "an answer without records ends the search of musl"
	)
	same, other := 0, 0
	for _, tt := range []struct {
		from   netip.Addr
		name   string
		qtype  uint16
		defect string // of autopath; empty: both say the same
		want   string // of the agent, where they differ
	}{
		{plain, "web", dns.TypeA, "", ""},
		{plain, "web.shop", dns.TypeA, "", ""},
		{plain, "web.shop.svc", dns.TypeA, "", ""},
		{plain, "web.shop.svc.cluster.local", dns.TypeA, "", ""},
		{plain, "db.shop", dns.TypeA, "", ""},
		{plain, "www.example.test", dns.TypeA, "", ""},
		{plain, "www.example.test", dns.TypeAAAA, "", ""},
		{plain, "gone.example.test", dns.TypeA, "", ""},
		{plain, "gone.example.test", dns.TypeAAAA, "", ""},
		{plain, "www.example.test", dns.TypeTXT, types, "NXDOMAIN"},
		{plain, "old.shop", dns.TypeAAAA, "", ""},
		{plain, "four.example.test", dns.TypeAAAA, "", ""},
		{plain, "fails.example.test", dns.TypeA, failure, "NXDOMAIN"},
		{plain, "a.b.c.d.e.f.example.test", dns.TypeA, ndotsReason, "NXDOMAIN"},
		{few, "www.example.test", dns.TypeA, ndotsReason, "NXDOMAIN"},
	} {
		agent := ask(n.settings.addr, netip.AddrPortFrom(tt.from, 0), tt.name, tt.qtype)
		autopath := ask(coredns.Addr(), netip.AddrPortFrom(tt.from, 0), tt.name, tt.qtype)
		switch {
		case tt.defect == "" && agent == autopath:
			same++
		case tt.defect == "" || agent != tt.want || autopath == tt.want:
			t.Errorf("%s %s from %s: agent %q, autopath %q; want the same, or %q with the defect %q", tt.name, dns.TypeToString[tt.qtype], tt.from,
				agent, autopath, tt.want, tt.defect)
		default:
			other++
			t.Logf("%s %s: %s: agent %q, autopath %q", tt.name, dns.TypeToString[tt.qtype], tt.defect, agent, autopath)
		}
	}
	proctest.Figure(t, "%d searches end as with autopath, %d for the reasons named elsewhere", same, other)
}

// autopathAnswer has addresses for names of example.test and for old.shop. It denies all others.
func autopathAnswer(q *dns.Msg) *dns.Msg {
	m, name, qtype := new(dns.Msg).SetReply(q), strings.ToLower(q.Question[0].Name), q.Question[0].Qtype
	header := dns.RR_Header{Name: q.Question[0].Name, Rrtype: qtype, Class: dns.ClassINET, Ttl: 300}
	known := name == "old.shop." || strings.HasSuffix(name, ".example.test.") && !strings.HasPrefix(name, "gone.")
	switch {
	case strings.HasPrefix(name, "fails.example.test."):
		m.Rcode = dns.RcodeServerFailure
	case known && qtype == dns.TypeA:
		m.Answer = []dns.RR{&dns.A{Hdr: header, A: net.IPv4(192, 0, 2, 1)}}
	case known && qtype == dns.TypeAAAA && !strings.HasPrefix(name, "four."):
		m.Answer = []dns.RR{&dns.AAAA{Hdr: header, AAAA: net.ParseIP("2001:db8::1")}}
	case !known:
		m.Rcode = dns.RcodeNameError
	}
	return m
}
