// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
)

// All names of the zone are what only a company's own DNS knows, and the Internet's denies.
const (
	companyZone = "corp.test"
	companyAddr = "198.51.100.99"
)

// startCompanyDNS serves the DNS of a company at the control machine until the test ends, and returns its address.
func (b *harness) startCompanyDNS(t *testing.T) netip.AddrPort {
	t.Helper()
	addr := netip.AddrPortFrom(b.Control.Addrs[0], 53)
	server := &dns.Server{Handler: dns.HandlerFunc(companyAnswers)}
	err := b.Control.Do(func() (err error) {
		server.PacketConn, err = (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", addr.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	started, ended := make(chan struct{}), make(chan struct{})
	server.NotifyStartedFunc = func() { close(started) }
	go func() { // ends with the test
		defer close(ended)
		_ = server.ActivateAndServe() // until it is shut down
	}()
	<-started
	t.Cleanup(func() {
		_ = server.Shutdown() // it runs
		<-ended
	})
	return addr
}

func companyAnswers(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	m.Authoritative = true
	head := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 30}
	switch {
	case !dns.IsSubDomain(companyZone+".", head.Name):
		m.Rcode = dns.RcodeNameError
	case q.Question[0].Qtype == dns.TypeA:
		m.Answer = append(m.Answer, &dns.A{Hdr: head, A: net.ParseIP(companyAddr)})
	}
	_ = w.WriteMsg(m) // who asked may have gone
}

// applyStubDomains makes the ConfigMap of an old kube-dns, which has the company's names asked at a server.
func (b *harness) applyStubDomains(t *testing.T, server netip.AddrPort) {
	t.Helper()
	const manifest = `{apiVersion: v1, kind: ConfigMap, metadata: {name: kube-dns, namespace: kube-system}, data: {stubDomains: '{"%s": ["%s"]}'}}`
	b.kubectlInput(t, fmt.Sprintf(manifest, companyZone, server.Addr()), "apply", "-f", "-")
	t.Cleanup(func() {
		_, _ = b.Kubectl(context.WithoutCancel(t.Context()), "", "-n", "kube-system", "delete", "configmap", "kube-dns", "--ignore-not-found")
	})
}

// testStubDomains has both agents follow a ConfigMap of kube-dns that is made while they run.
func (b *harness) testStubDomains(t *testing.T) {
	t.Helper()
	for _, n := range b.Nodes {
		if found := b.lookupFromNode(t, n, "early."+companyZone); len(found) > 0 {
			t.Errorf("%s knows %s before its server is configured: %v", n.Name, companyZone, found)
		}
	}
	b.applyStubDomains(t, b.startCompanyDNS(t))
	number := 0
	took := b.eventually(t, "both agents know the stub domain", func() bool {
		number++ // another name each time: what was denied is kept for some seconds
		name := fmt.Sprintf("w%d.%s", number, companyZone)
		return !slices.ContainsFunc(b.Nodes, func(n *kubenode.Node) bool { return !slices.Equal(b.lookupFromNode(t, n, name), []string{companyAddr}) })
	})
	proctest.Figure(t, "both agents answer for a stub domain %s after a ConfigMap of kube-dns is made", took.Round(time.Millisecond))
}

// lookupFromNode is tryFromNode where the agent has to answer.
func (b *harness) lookupFromNode(t *testing.T, n *kubenode.Node, name string) []string {
	t.Helper()
	found, err := b.tryFromNode(t, n, name)
	if err != nil {
		t.Fatalf("%s asks for %s: %v", n.Name, name, err)
	}
	return found
}

// tryFromNode has a program of a node ask its agent for a name's IPv4 addresses, and returns them sorted; none when the name is denied.
func (b *harness) tryFromNode(t *testing.T, n *kubenode.Node, name string) (found []string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	conn, err := n.Dial(ctx, "udp", "169.254.20.10:53")
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	answer, _, err := new(dns.Client).ExchangeWithConnContext(ctx, new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA), &dns.Conn{Conn: conn})
	if err != nil {
		return nil, err
	}
	for _, rr := range answer.Answer {
		if a, ok := rr.(*dns.A); ok {
			found = append(found, a.A.String())
		}
	}
	slices.Sort(found)
	return found, nil
}
