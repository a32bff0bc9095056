// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// startCoreDNS runs CoreDNS with options of its plugin kubernetes, and with forwarding to the upstream.
func startCoreDNS(t *testing.T, c *kubetest.Cluster, options []string, upstream netip.AddrPort) netip.AddrPort {
	t.Helper()
	var lines strings.Builder
	for _, o := range append([]string{"kubeconfig {$KUBECONFIG}"}, options...) {
		fmt.Fprintf(&lines, "\t\t%s\n", o)
	}
	return kubetest.StartCoreDNS(t, c, fmt.Sprintf(`. {
	bind 127.0.0.1
	ready {$READY}
	kubernetes cluster.local in-addr.arpa ip6.arpa {
%s	}
	forward . %s {
		max_concurrent 10000
	}
}
`, lines.String(), upstream))
}

// startResolver runs `node-cache resolver` with settings of its cluster zone, and with forwarding to the upstream. It
// returns once the cluster zone is in sync.
func startResolver(t *testing.T, c *kubetest.Cluster, settings []string, upstream netip.AddrPort) netip.AddrPort {
	t.Helper()
	addr, admin := proctest.FreeAddr(t), proctest.FreeAddr(t)
	var lines strings.Builder
	for _, s := range append([]string{fmt.Sprintf("kubeconfig: %q", c.Kubeconfig(kubetest.Admin))}, settings...) {
		fmt.Fprintf(&lines, "  %s\n", s)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf(`listen: {addresses: [127.0.0.1], port: %d}
forward: [{zone: ".", to: ["%s"]}]
admin: {address: "%s"}
log: {level: warn, format: text}
cluster:
%s`, addr.Port(), upstream, admin, lines.String())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	proctest.Start(t, "node-cache resolver", exec.Command(nodeCache, "resolver", "--config", file))
	proctest.Eventually(t, limit, "node-cache is ready", func() bool { return isReady(t, admin) })
	return addr
}

// isReady asks the admin server.
func isReady(t *testing.T, admin netip.AddrPort) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin.String()+"/readyz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// startUpstream serves the names that are no cluster's. It knows example.test and denies everything else.
func startUpstream(t *testing.T) netip.AddrPort {
	t.Helper()
	addr := proctest.FreeAddr(t)
	records := make(map[string][]dns.RR)
	for zp := dns.NewZoneParser(strings.NewReader(outsideRecords()), "example.test.", ""); ; {
		rr, ok := zp.Next()
		if !ok {
			if err := zp.Err(); err != nil {
				t.Fatal(err)
			}
			break
		}
		records[rr.Header().Name] = append(records[rr.Header().Name], rr)
	}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := outsideAnswer(records, q)
		if w.LocalAddr().Network() == "udp" {
			m.Truncate(1232)
		}
		_ = w.WriteMsg(m) // a client that is gone
	})
	for _, network := range []string{"udp", "tcp"} {
		listening := make(chan struct{})
		s := &dns.Server{Addr: addr.String(), Net: network, Handler: handler, NotifyStartedFunc: func() { close(listening) }}
		ended := make(chan error, 1)
		go func() { ended <- s.ListenAndServe() }()
		select {
		case <-listening:
		case err := <-ended:
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return addr
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
