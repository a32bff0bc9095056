// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// serverName is in the certificates.
const serverName = "dns.upstream.test"

// An encryptedServer is an unbound that answers over TLS and HTTPS, and in plain text for those who do not care.
type encryptedServer struct {
	*proctest.Process
	host   *nodetest.Host
	folder string
}

// startEncrypted runs unbound in a host, with a certificate. It closes a connection that was idle for 300 ms.
func startEncrypted(t *testing.T, h *nodetest.Host, ca *upstreamtest.Authority) *encryptedServer {
	t.Helper()
	e := &encryptedServer{host: h, folder: t.TempDir()}
	proctest.WriteFile(t, filepath.Join(e.folder, "unbound.conf"), fmt.Sprintf(`server:
  interface: %[1]s@53
  interface: %[1]s@853
  interface: %[1]s@443
  tls-service-key: %[2]s/key.pem
  tls-service-pem: %[2]s/cert.pem
  tls-port: 853
  https-port: 443
  http-endpoint: "/dns-query"
  access-control: 0.0.0.0/0 allow
  do-daemonize: no
  username: ""
  chroot: ""
  directory: %[2]s
  pidfile: ""
  use-syslog: no
  num-threads: 1
  incoming-num-tcp: 100
  tcp-idle-timeout: 300
  extended-statistics: yes
  module-config: "iterator"
  local-zone: "upstream.test." redirect
  local-data: "upstream.test. 300 IN A %[3]s"
remote-control:
  control-enable: yes
  control-interface: %[2]s/control
  control-use-cert: no
`, h.IPv4, e.folder, tag(0)))
	e.startWithCertificate(t, ca)
	return e
}

// startWithCertificate starts unbound, or starts it again, with a new certificate.
func (e *encryptedServer) startWithCertificate(t *testing.T, ca *upstreamtest.Authority) {
	t.Helper()
	unbound := proctest.FindProgram(t, "unbound", "unbound")
	writeCertificate(t, e.folder, ca.Issue(t, time.Now().Add(time.Hour), serverName))
	if e.Process != nil {
		e.Signal(syscall.SIGTERM)
		if err := e.Wait(t, time.Minute); err != nil {
			t.Fatalf("unbound ended with %v", err)
		}
	}
	e.Process = proctest.Start(t, "unbound", command(e.host, unbound, "-d", "-c", filepath.Join(e.folder, "unbound.conf")))
	awaitServer(t, e.host, e.Process, netip.AddrPortFrom(e.host.IPv4, 53), "upstream.test")
	e.statistics(t) // begin at 0
}

// writeCertificate writes a certificate and its key into a folder.
func writeCertificate(t *testing.T, folder string, certificate tls.Certificate) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	assert.NoError(t, err)
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}, "key.pem": {Type: "PRIVATE KEY", Bytes: key},
	} {
		proctest.WriteFile(t, filepath.Join(folder, name), string(pem.EncodeToMemory(block)))
	}
}

// statistics are the numbers that unbound has counted since the last call.
func (e *encryptedServer) statistics(t *testing.T) map[string]int {
	t.Helper()
	out, err := exec.Command(proctest.FindProgram(t, "unbound-control", "unbound"), "-c", filepath.Join(e.folder, "unbound.conf"), "stats").CombinedOutput()
	if err != nil {
		t.Fatalf("asking unbound: %v: %s", err, out)
	}
	counts := map[string]int{}
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if n, err := strconv.Atoi(value); err == nil {
			counts[key] = n
		}
	}
	return counts
}

// encryptedHarness is a node with two servers that speak TLS and HTTPS.
type encryptedHarness struct {
	*nodetest.Network
	ca      *upstreamtest.Authority
	file    string // of certificates that the agent trusts
	servers [2]*encryptedServer
}

func newEncryptedHarness(t *testing.T) *encryptedHarness {
	t.Helper()
	proctest.FindProgram(t, "unbound", "unbound")
	b := &encryptedHarness{Network: nodetest.Start(t, nodetest.Options{Pods: 1, NoIPv6: true}), ca: upstreamtest.NewAuthority(t, time.Now())}
	b.file = proctest.WriteFile(t, filepath.Join(t.TempDir(), "ca.pem"), string(b.ca.PEM()))
	for i, h := range []*nodetest.Host{b.Upstream, b.Pods[0]} {
		b.servers[i] = startEncrypted(t, h, b.ca)
	}
	return b
}

// start runs an agent whose route has further settings.
func (e *encryptedHarness) start(t *testing.T, route string) *agent {
	t.Helper()
	return start(t, settings{
		host: e.Node, listen: netip.MustParseAddrPort("127.0.0.1:53"), admin: netip.MustParseAddrPort("127.0.0.1:9253"),
		rest: fmt.Sprintf("forward: [{zone: ., tls: {ca: %q}, %s}]\n", e.file, route),
	})
}

// serverList is the list of both servers over a transport.
func (e *encryptedHarness) serverList(scheme string) string {
	return fmt.Sprintf("to: [%q, %q]", scheme+e.servers[0].host.IPv4.String()+"#"+serverName, scheme+e.servers[1].host.IPv4.String()+"#"+serverName)
}

// expectOnly expects that a server was asked in one way only. The queries that awaited its start are not counted.
func (e *encryptedServer) expectOnly(t *testing.T, key string) (n int) {
	t.Helper()
	counts := e.statistics(t)
	if n = counts[key]; counts["total.num.queries"] != n {
		t.Errorf("unbound had %d queries, of which %d count as %s, want all", counts["total.num.queries"], n, key)
	}
	return n
}

// misses asks for new names for a time and expects an address for each.
func (a *agent) misses(t *testing.T, what string, first int, during func()) report {
	t.Helper()
	l := startLoad(t, loadOptions{
		addr: a.settings.listen, dial: a.settings.dial, rate: proctest.OrdinaryOrSoak(500, 2000), length: time.Minute, suffix: "upstream.test", first: first,
	})
	during()
	l.end()
	r := l.all()
	if r.bad() > 0 || r.by[tag(0)] != r.asked {
		page, _ := a.Page("/status?format=text")
		t.Errorf("%s: %s, want the address for each\n%s", what, r, page)
	}
	return r
}

// TestTLS has an agent ask over TLS while certificates and those who sign them change.
func TestTLS(t *testing.T) {
	b := newEncryptedHarness(t)
	a := b.start(t, b.serverList("tls://"))
	span := proctest.OrdinaryOrSoak(time.Second, 5*time.Second)
	r := a.misses(t, "at rest", 0, func() { time.Sleep(span) })
	asked := b.servers[0].expectOnly(t, "num.query.tls") + b.servers[1].expectOnly(t, "num.query.tls")
	proctest.Figure(t, "over TLS: %s; %d queries at the servers, all over TLS", r, asked)

	r = a.misses(t, "with new certificates", 1e6, func() {
		for _, s := range b.servers {
			time.Sleep(span)
			s.startWithCertificate(t, b.ca)
		}
		time.Sleep(span)
	})
	proctest.Figure(t, "both servers stopped and started with new certificates, one after the other: %s", r)

	second := upstreamtest.NewAuthority(t, time.Now())
	r = a.misses(t, "with a new authority", 2e6, func() {
		proctest.WriteFile(t, b.file, string(slices.Concat(b.ca.PEM(), second.PEM())))
		for _, s := range b.servers {
			time.Sleep(span)
			s.startWithCertificate(t, second)
		}
		second.Trust(t, b.file)
		time.Sleep(span)
	})
	proctest.Figure(t, "the authority replaced, the servers' certificates with it: %s", r)

	third := upstreamtest.NewAuthority(t, time.Now())
	for _, s := range b.servers { // in the wrong order
		s.startWithCertificate(t, third)
	}
	if r, took := a.ask(t, nameOf(4e6, "upstream.test")); r.Rcode != dns.RcodeServerFailure {
		t.Errorf("servers of an authority that is not trusted yet: %s after %s, want SERVFAIL", dns.RcodeToString[r.Rcode], ms(took))
	}
	b.fixAuthority(t, a, third)
	b.testResumption(t, a)
}

// testResumption has the servers close idle connections, and expects later ones to resume their sessions.
func (e *encryptedHarness) testResumption(t *testing.T, a *agent) {
	t.Helper()
	for i := range proctest.OrdinaryOrSoak(4, 20) {
		time.Sleep(700 * time.Millisecond)
		for j := range 4 {
			if r, took := a.ask(t, nameOf(3e6+10*i+j, "upstream.test")); addressOf(r) != tag(0).String() {
				t.Errorf("after an idle time: %s after %s", dns.RcodeToString[r.Rcode], ms(took))
			}
		}
	}
	resumed, seen := 0, 0
	for _, u := range a.status(t).Upstreams {
		resumed += u.Open.Resumed
	}
	for _, s := range e.servers {
		counts := s.statistics(t)
		seen += counts["num.query.tls.resume"]
		if counts["num.query.tls"] != counts["total.num.queries"] {
			t.Errorf("%d queries came over TLS, %d in all", counts["num.query.tls"], counts["total.num.queries"])
		}
	}
	proctest.Figure(t, "sessions resumed: %d; queries in resumed sessions, by unbound's count: %d", resumed, seen)
	if resumed == 0 || seen == 0 {
		t.Errorf("%d sessions were resumed, and %d queries came in such, want some", resumed, seen)
	}
}

// fixAuthority puts the right authority into the file. The agent is to find out by itself.
func (e *encryptedHarness) fixAuthority(t *testing.T, a *agent, right *upstreamtest.Authority) {
	t.Helper()
	right.Trust(t, e.file)
	n := 0
	took := proctest.Eventually(t, time.Minute, "the server is trusted", func() bool {
		n++
		r, _ := a.ask(t, nameOf(5e6+n, "upstream.test"))
		return addressOf(r) == tag(0).String()
	})
	e.servers[0].statistics(t)
	proctest.Figure(t, "trusted %s after the file had the right authority", ms(took))
}

// TestHTTPS has an agent ask over HTTPS, in each way a query can travel.
func TestHTTPS(t *testing.T) {
	b := newEncryptedHarness(t)
	address := b.servers[0].host.IPv4
	for _, tt := range []struct{ name, route string }{
		{name: "POST", route: b.serverList("https://")},
		{name: "GET", route: b.serverList("https://") + ", https: {method: get}"},
		{name: "by name", route: fmt.Sprintf("to: [\"https://%s/dns-query\"], bootstrap: [%s]", serverName, address)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := b.start(t, tt.route)
			r := a.misses(t, tt.name, 0, func() { time.Sleep(proctest.OrdinaryOrSoak(time.Second, 5*time.Second)) })
			asked := b.servers[0].expectOnly(t, "num.query.https") + b.servers[1].expectOnly(t, "num.query.https")
			proctest.Figure(t, "%s; %d queries at the servers, all over HTTPS", r, asked)
			if asked < r.asked*9/10 {
				t.Errorf("%d queries came over HTTPS, want about %d", asked, r.asked)
			}
			a.Stop(t)
		})
	}
}
