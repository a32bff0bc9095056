// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
)

// startCoreDNS runs CoreDNS with options of its plugin kubernetes for the domains. It forwards other names to the upstream, if there is one.
func startCoreDNS(t *testing.T, c *kubetest.Cluster, upstream netip.AddrPort, domains string, options ...string) *kubetest.CoreDNS {
	t.Helper()
	forward := ""
	if upstream.IsValid() {
		forward = fmt.Sprintf("forward . %s {\n\t\tmax_concurrent 10000\n\t}", upstream)
	}
	return kubetest.StartCoreDNS(t, c, fmt.Sprintf(`. {
	bind 127.0.0.1
	ready {$READY}
	kubernetes %s in-addr.arpa ip6.arpa {
		kubeconfig {$KUBECONFIG}
		%s
	}
	%s
}
`, domains, strings.Join(options, "\n\t\t"), forward))
}

// startUpstream serves the names that are no cluster's. It knows example.test and denies everything else.
func startUpstream(t *testing.T) netip.AddrPort {
	t.Helper()
	records := make(map[string][]dns.RR)
	for zp := dns.NewZoneParser(strings.NewReader(outsideRecords()), "example.test.", ""); ; {
		rr, ok := zp.Next()
		if !ok {
			assert.NoError(t, zp.Err())
			break
		}
		records[rr.Header().Name] = append(records[rr.Header().Name], rr)
	}
	return serve(t, func(q *dns.Msg) *dns.Msg { return outsideAnswer(records, q) })
}

// outsideRecords is the zone example.test.
func outsideRecords() string {
	var text strings.Builder
	text.WriteString(`$TTL 3600
@ SOA ns hostmaster 1 7200 1800 86400 60
@ NS ns
ns A 192.0.2.53
www A 192.0.2.1
www A 192.0.2.2
www AAAA 2001:db8::1
www TXT "one" "two"
www HTTPS 1 . alpn=h2
alias CNAME www
chain CNAME alias
back CNAME web.shop.svc.cluster.local.
empty TXT "no address"
`)
	for i := range 100 {
		fmt.Fprintf(&text, "large A 192.0.2.%d\n", i)
	}
	return text.String()
}

// outsideAnswer follows the aliases that it has, as a recursive server does.
func outsideAnswer(records map[string][]dns.RR, q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable = true
	name := dns.CanonicalName(q.Question[0].Name)
	if name == "broken.example.test." {
		m.Rcode = dns.RcodeServerFailure
		return m
	}
	soa := records["example.test."][0]
	for range 8 {
		var alias *dns.CNAME
		for _, rr := range records[name] {
			if cname, ok := rr.(*dns.CNAME); ok {
				alias = cname
			}
			if rr.Header().Rrtype == q.Question[0].Qtype || rr.Header().Rrtype == dns.TypeCNAME {
				m.Answer = append(m.Answer, rr)
			}
		}
		if alias == nil || q.Question[0].Qtype == dns.TypeCNAME {
			break
		}
		name = alias.Target
	}
	if records[name] == nil && !strings.HasSuffix(name, ".cluster.local.") {
		m.Rcode = dns.RcodeNameError
	}
	if len(m.Answer) == 0 || m.Rcode != dns.RcodeSuccess {
		m.Ns = []dns.RR{soa}
	}
	return m
}
