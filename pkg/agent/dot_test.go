// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/subscribe"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// TestOverTLS asks an agent over TLS, hands its sockets over, and asks the next one, which has another certificate.
func TestOverTLS(t *testing.T) {
	t.Parallel()
	authority := upstreamtest.NewAuthority(t, time.Now())
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM())
	client := dns.Client{Net: "tcp-tls", TLSConfig: &tls.Config{RootCAs: roots, ServerName: "resolver.test", MinVersion: tls.VersionTLS13}}
	cfg := handingConfig(t)
	cfg.Listen.Cert, cfg.Listen.Key = issue(t, authority)
	cfg.Listen.TLSPort = proctest.FreeAddr(t).Port()
	question := new(dns.Msg)
	question.SetQuestion("version.bind.", dns.TypeTXT)
	question.Question[0].Qclass = dns.ClassCHAOS
	question.SetEdns0(1232, false).IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_PADDING{}}
	ask := func(a *Agent) {
		t.Helper()
		reply, _, err := client.Exchange(question, a.servers.tcp[1].Addr().String())
		assert.NoError(t, err)
		assert.Equal(t, "rcode", dns.RcodeSuccess, reply.Rcode)
		reply.Compress = true // as received
		assert.Equal(t, "padded to", 468, reply.Len())
	}
	m1, m2 := newFakeHost(), newFakeHost()
	m2.kernel = m1.kernel
	first, _ := startHanding(t, m1, cfg)
	ask(first)
	session, err := client.Dial(first.servers.tcp[1].Addr().String())
	assert.NoError(t, err)
	cfg.Listen.Cert, cfg.Listen.Key = issue(t, authority)
	second, _ := startHanding(t, m2, cfg)
	assert.Equal(t, "the hand-over", handover.OutcomeTaken, second.Status().Handover.Taken)
	ask(second)
	assert.Equal(t, "sessions over TLS of the second", uint64(1), second.servers.tcp[1].Stats().Accepted)
	reply, _, err := client.ExchangeWithConn(question, session)
	assert.NoError(t, err)
	assert.Equal(t, "in the session of the first", dns.RcodeSuccess, reply.Rcode)
}

// TestPushOverTLS subscribes over TLS, and violates the protocol.
func TestPushOverTLS(t *testing.T) {
	t.Parallel()
	resolver := nodeConfig(t)
	authority := upstreamtest.NewAuthority(t, time.Now())
	resolver.Listen.Cert, resolver.Listen.Key = issue(t, authority)
	resolver.Listen.TLSPort = proctest.FreeAddr(t).Port()
	resolver.Cluster.Resolver, resolver.Cluster.Manifests = config.ResolverLocal, t.TempDir()
	resolver.Push.Clients = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	a, _ := serveOnHost(t, newFakeHost(), resolver)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM())
	client := dns.Client{Net: "tcp-tls", TLSConfig: &tls.Config{RootCAs: roots, ServerName: "resolver.test", MinVersion: tls.VersionTLS13}}
	session, err := client.Dial(a.servers.tcp[1].Addr().String())
	assert.NoError(t, err)
	assert.NoError(t, session.SetDeadline(time.Now().Add(time.Minute)))
	msg := dso.AppendSubscribe(dso.AppendHeader(nil, dso.Request, 1, 0), dso.Subscription{Name: []byte("\x03web\x04shop\x03svc\x07cluster\x05local\x00"), Type: 255, Class: 1})
	_, err = session.Write(msg)
	assert.NoError(t, err)
	buf := make([]byte, 512)
	n, err := session.Read(buf)
	assert.NoError(t, err)
	m, err := dso.Parse(buf[:n])
	assert.NoError(t, err)
	if m.Kind != dso.Response || m.ID != 1 || m.Rcode != 0 {
		t.Errorf("response %x", buf[:n])
	}
	_, err = session.Write(msg) // a duplicate
	assert.NoError(t, err)
	for err == nil {
		_, err = session.Read(buf)
	}
	if st := a.push.Stats(); st.Ended.Protocol != 1 {
		t.Errorf("%v, stats %+v", err, st)
	}
}

// TestCentralOverTLS has an agent ask its central resolver over TLS: for a name in the certificate, and for another.
func TestCentralOverTLS(t *testing.T) {
	t.Parallel()
	resolver := nodeConfig(t)
	authority := upstreamtest.NewAuthority(t, time.Now())
	resolver.Listen.Cert, resolver.Listen.Key = issue(t, authority)
	resolver.Listen.TLSPort = proctest.FreeAddr(t).Port()
	resolver.Cluster.Resolver, resolver.Cluster.Manifests = config.ResolverLocal, t.TempDir()
	proctest.WriteFile(t, filepath.Join(resolver.Cluster.Manifests, "web.yaml"),
		"apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.7, ports: [{port: 80}]}\n")
	resolver.Push.Clients = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	central, _ := serveOnHost(t, newFakeHost(), resolver)
	for _, tt := range []struct {
		name string
		want int
	}{{"resolver.test", dns.RcodeSuccess}, {"other.test", dns.RcodeServerFailure}} {
		cfg := nodeConfig(t)
		cfg.Cluster.Resolver = config.ResolverCentral
		cfg.Cluster.Central.Addresses = []netip.AddrPort{netip.AddrPortFrom(central.Addrs()[0].Addr(), 1)}
		cfg.Cluster.Central.CentralTLS = config.CentralTLS{ServerName: tt.name, CA: filepath.Join(t.TempDir(), "ca.crt"), TLSPort: resolver.Listen.TLSPort}
		cfg.Cluster.Central.Push = true
		authority.Trust(t, cfg.Cluster.Central.CA)
		a, _ := serveOnHost(t, newFakeHost(), cfg)
		question := new(dns.Msg)
		question.SetQuestion("web.shop.svc.cluster.local.", dns.TypeA)
		reply, _, err := (&dns.Client{Timeout: 10 * time.Second}).Exchange(question, a.Addrs()[0].String())
		assert.NoError(t, err)
		assert.Equal(t, tt.name, tt.want, reply.Rcode)
		push := func() *subscribe.Stats { return a.Status().Cluster.Central.Push }
		if tt.want == dns.RcodeSuccess {
			proctest.Eventually(t, time.Minute, "no session", func() bool { return push().Server != "" })
		} else {
			proctest.Eventually(t, time.Minute, "no attempt", func() bool { // none if the query was first: then the server is known to be down
				return strings.Contains(push().Why, "certificate") || push().Why == subscribe.NoServer
			})
			assert.Equal(t, "sessions", 0, push().Sessions)
		}
	}
}

// issue writes a certificate of resolver.test and its key.
func issue(t *testing.T, authority *upstreamtest.Authority) (cert, key string) {
	t.Helper()
	pair := authority.Issue(t, time.Now().Add(time.Hour), "resolver.test")
	text, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	assert.NoError(t, err)
	cert, key = filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	proctest.WriteFile(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})))
	proctest.WriteFile(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})))
	return cert, key
}
