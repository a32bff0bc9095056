// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// command is a program that runs in a host, or on this machine if that is nil. It ends with the test.
func command(h *nodetest.Host, name string, args ...string) *exec.Cmd {
	if h == nil {
		return exec.Command(name, args...)
	}
	return h.Command(context.Background(), name, args...)
}

// startNSD serves a zone at an address of a host. Each name below a label of the zone has the address that is given as tag.
func startNSD(t *testing.T, h *nodetest.Host, addr netip.AddrPort, zone, wild string, tag netip.Addr) *proctest.Process {
	t.Helper()
	nsd := proctest.FindProgram(t, "nsd", "nsd")
	dir := t.TempDir()
	proctest.WriteFile(t, filepath.Join(dir, "zone"), fmt.Sprintf("$TTL 300\n@ SOA ns h 1 3600 600 86400 300\n@ NS ns\nns A 127.0.0.1\n*.%s A %s\n", wild, tag))
	conf := proctest.WriteFile(t, filepath.Join(dir, "nsd.conf"), proctest.NSDConfig(addr, dir, fmt.Sprintf("zone:\n  name: %s\n  zonefile: zone\n", zone)))
	p := proctest.Start(t, "nsd", command(h, nsd, "-d", "-c", conf))
	awaitServer(t, h, p, addr, zone)
	return p
}

// awaitServer waits until a server answers for the apex of a zone.
func awaitServer(t *testing.T, h *nodetest.Host, p *proctest.Process, addr netip.AddrPort, zone string) {
	t.Helper()
	proctest.Eventually(t, time.Minute, p.Name+" answers", func() bool {
		if p.Ended() {
			t.Fatalf("%s ended: %v", p.Name, p.Err())
		}
		r, err := askOnce(h, addr, "udp", new(dns.Msg).SetQuestion(dns.Fqdn(zone), dns.TypeSOA), 500*time.Millisecond)
		return err == nil && r.Rcode == dns.RcodeSuccess
	})
}

// askOnce sends one query from a host, or from this machine if that is nil.
func askOnce(h *nodetest.Host, addr netip.AddrPort, network string, q *dns.Msg, limit time.Duration) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	s := settings{host: h}
	conn, err := s.dial(ctx, network, addr.String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	client := dns.Client{Net: network, Timeout: limit}
	r, _, err := client.ExchangeWithConnContext(ctx, q, &dns.Conn{Conn: conn})
	return r, err
}

// ask asks the agent for an address, with EDNS. No reply in time fails the test.
func (a *agent) ask(t *testing.T, name string) (r *dns.Msg, took time.Duration) {
	t.Helper()
	q := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA)
	q.SetEdns0(1232, false)
	began := time.Now()
	r, err := askOnce(a.settings.host, a.settings.listen, "udp", q, answerTimeout)
	if err != nil {
		t.Fatalf("asking %s for %s: %v", a.Name, name, err)
	}
	return r, time.Since(began)
}

// addressOf is the first address in an answer, as text; empty if there is none.
func addressOf(r *dns.Msg) string {
	for _, rr := range r.Answer {
		if a, ok := rr.(*dns.A); ok {
			return a.A.String()
		}
	}
	return ""
}
