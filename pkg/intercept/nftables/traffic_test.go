// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

const centralName = "central"

func central4() netip.AddrPort { return netip.MustParseAddrPort("10.201.0.2:53") }

// A harness is a node with an agent and a central resolver behind it.
type harness struct {
	*nodetest.Network
	backend *Backend
	agent   []*nodetest.Server
}

// newHarness starts a harness. Conntrack is active on its node, as on every node.
func newHarness(t *testing.T, r rules.Rules) *harness {
	t.Helper()
	s := &harness{Network: nodetest.Start(t, nodetest.Options{Pods: 2})}
	track := "table inet others { chain c { type filter hook prerouting priority 0; ct state new counter; }; }"
	if out, err := s.Node.Output(t.Context(), "nft", track); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	for _, a := range r.Addresses {
		assert.NoError(t, s.Node.AddAddress(a))
		s.agent = append(s.agent, serve(t, s.Node, netip.AddrPortFrom(a, r.Port), agentName))
	}
	for _, a := range []netip.Addr{s.Upstream.IPv4, s.Upstream.IPv6, nodetest.ServiceIPv4(), nodetest.ServiceIPv6()} {
		serve(t, s.Upstream, netip.AddrPortFrom(a, dnsPort), centralName)
	}
	s.backend = newBackend(t, s.Node)
	return s
}

func serve(t *testing.T, h *nodetest.Host, addr netip.AddrPort, name string) *nodetest.Server {
	t.Helper()
	s, err := nodetest.Serve(h, addr, name)
	assert.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// central returns the fallback of both families.
func (s *harness) central() []netip.AddrPort {
	return []netip.AddrPort{netip.AddrPortFrom(s.Upstream.IPv4, dnsPort), netip.AddrPortFrom(s.Upstream.IPv6, dnsPort)}
}

// expectAnswers queries each address that clients use, over UDP and TCP, from a pod and
// from the node. It expects all answers from want.
func (s *harness) expectAnswers(t *testing.T, r rules.Rules, want string) {
	t.Helper()
	for _, h := range []*nodetest.Host{s.Pods[0], s.Node} {
		for _, l := range r.Leases() {
			for _, network := range []string{"udp", "tcp"} {
				got, err := nodetest.Ask(h, netip.AddrPortFrom(l.Key, r.Port), network)
				if err != nil || got != want {
					t.Errorf("%s, %s over %s: %q, %v, want %q", h.Name, l.Key, network, got, err, want)
				}
			}
		}
	}
}

// flushConntrack deletes all conntrack entries of the node.
func (s *harness) flushConntrack(t *testing.T) {
	t.Helper()
	if out, err := s.Node.Output(t.Context(), "conntrack", "-F"); err != nil {
		t.Fatalf("conntrack: %v\n%s", err, out)
	}
}

// TestDrain releases a lease during an open session. The session continues, and new ones
// go to the fallback. When the drain ends, the session is reset at once; the client does
// not run into a timeout.
func TestDrain(t *testing.T) {
	t.Parallel()
	for _, r := range []rules.Rules{linkLocalRules(central4(), netip.MustParseAddrPort("[fd00:201::2]:53")), transparentRules()} {
		t.Run(r.Mode.String(), func(t *testing.T) {
			t.Parallel()
			s := newHarness(t, r)
			if r.Mode == rules.LinkLocal {
				r.Fallback = s.central()
			}
			apply(t, s.backend, r)
			renew(t, s.backend, r)
			var open []*session
			for _, h := range []*nodetest.Host{s.Pods[0], s.Node} {
				for _, key := range keys(r) {
					open = append(open, dialSession(t, h, netip.AddrPortFrom(key, r.Port)))
				}
			}
			assert.NoError(t, s.backend.Release(t.Context(), keys(r), longLease))
			s.expectAnswers(t, r, centralName)
			for _, c := range open {
				if got, err := c.ask(); err != nil || got != agentName {
					t.Errorf("draining, %s: %q, %v, want the agent", c.name, got, err)
				}
			}
			assert.NoError(t, s.backend.Release(t.Context(), keys(r), time.Millisecond))
			if r.Mode == rules.Transparent {
				return // kube-proxy gets it then, which has no such session
			}
			proctest.Eventually(t, time.Minute, "the drain to end", func() bool {
				held, err := s.backend.reader.listElements(leaseTable(owner), leaseSet, drainSet)
				return err == nil && len(held) == 0
			})
			for _, c := range open {
				got, err := c.ask()
				if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("drained, %s: %q, %v, want a reset", c.name, got, err)
				}
			}
		})
	}
}

// TestOwnPackets sends the agent's self-query: no fallback may answer it and conntrack
// may not track it, with or without a lease.
func TestOwnPackets(t *testing.T) {
	t.Parallel()
	for _, r := range []rules.Rules{linkLocalRules(central4(), netip.MustParseAddrPort("[fd00:201::2]:53")), transparentRules()} {
		t.Run(r.Mode.String(), func(t *testing.T) {
			t.Parallel()
			s := newHarness(t, r)
			apply(t, s.backend, r)
			for _, leased := range []bool{false, true} {
				if leased {
					renew(t, s.backend, r)
				}
				s.flushConntrack(t)
				for _, l := range r.Leases() {
					for _, network := range []string{"udp", "tcp"} {
						got, err := askMarked(s.Node, l.Probe, netip.AddrPortFrom(l.Probe, r.Port), network)
						if err != nil || got != agentName {
							t.Errorf("leased %t, %s over %s: %q, %v, want the agent", leased, l.Probe, network, got, err)
						}
						if l.Key == l.Probe {
							continue
						}
						got, err = askMarked(s.Node, netip.Addr{}, netip.AddrPortFrom(l.Key, r.Port), network)
						if err != nil || got != centralName {
							t.Errorf("leased %t, %s over %s: %q, %v, want the service", leased, l.Key, network, got, err)
						}
					}
					flows, err := nodetest.ConntrackOf(s.Node, netip.AddrPortFrom(l.Probe, r.Port))
					if err != nil || len(flows) > 0 {
						t.Errorf("leased %t: conntrack has %v, %v", leased, flows, err)
					}
				}
			}
		})
	}
}

// TestFallbackDistribution counts the queries that each target gets.
func TestFallbackDistribution(t *testing.T) {
	t.Parallel()
	const queries = 600
	r := linkLocalRules()
	s := newHarness(t, r)
	var servers []*nodetest.Server
	for _, a := range []string{"10.201.0.2:5301", "10.201.0.2:5302", "10.201.0.2:5303"} {
		addr := netip.MustParseAddrPort(a)
		r.Fallback = append(r.Fallback, addr)
		servers = append(servers, serve(t, s.Upstream, addr, a))
	}
	apply(t, s.backend, r)
	for i := range queries {
		network := []string{"udp", "tcp"}[i%2]
		if _, err := nodetest.Ask(s.Pods[0], netip.AddrPortFrom(agent4(), dnsPort), network); err != nil {
			t.Fatal(err)
		}
	}
	chi, expected := 0.0, float64(queries)/3
	for i, srv := range servers {
		udp, tcp := srv.Queries()
		d := float64(udp+tcp) - expected
		chi += d * d / expected
		t.Logf("%s: %d over UDP, %d over TCP", r.Fallback[i], udp, tcp)
	}
	if chi > 27.6 { // two degrees of freedom: probability one in a million
		t.Errorf("chi square %.1f: not spread evenly", chi)
	}
}

// TestFallbackLeavesInOrder removes a target that answers a pending query afterwards. The
// end of the context ends the wait for such answers.
func TestFallbackLeavesInOrder(t *testing.T) {
	t.Parallel()
	r := linkLocalRules()
	s := newHarness(t, r)
	s.backend.flowGrace = time.Hour
	leaving := netip.MustParseAddrPort("10.201.0.2:5301")
	var server net.PacketConn
	assert.NoError(t, s.Upstream.Do(func() (err error) {
		server, err = net.ListenPacket("udp4", leaving.String())
		return err
	}))
	defer func() { _ = server.Close() }()
	r.Fallback = []netip.AddrPort{leaving}
	apply(t, s.backend, r)

	type answer struct {
		who string
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		who, err := nodetest.Ask(s.Pods[0], netip.AddrPortFrom(agent4(), dnsPort), "udp")
		answers <- answer{who, err}
	}()
	buf := make([]byte, 512)
	n, client, err := server.ReadFrom(buf)
	assert.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	applied := make(chan error, 1)
	r.Fallback = s.central()
	go func() {
		_, err := s.backend.Apply(ctx, r)
		applied <- err
	}()
	for { // until new queries go to the other target
		now, err := s.backend.State(t.Context())
		assert.NoError(t, err)
		if !slices.Contains(now.Fallback, leaving) {
			break
		}
	}
	time.Sleep(100 * time.Millisecond) // without the grace period the entry would be gone by now
	reply := new(dns.Msg)
	assert.NoError(t, reply.Unpack(buf[:n]))
	reply.SetReply(reply.Copy())
	reply.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: reply.Question[0].Name, Rrtype: dns.TypeTXT, Class: reply.Question[0].Qclass}, Txt: []string{"leaving"}}}
	packed, err := reply.Pack()
	assert.NoError(t, err)
	if _, err := server.WriteTo(packed, client); err != nil {
		t.Fatal(err)
	}
	if got := <-answers; got.err != nil || got.who != "leaving" {
		t.Errorf("the answer under way: %q, %v", got.who, got.err)
	}
	cancel()
	if err := <-applied; err != nil {
		t.Errorf("Apply: %v", err)
	}
}

// TestFallbackLeaves checks that clients that reuse their port follow a change of targets.
// TCP sessions stay with the target of their first packet.
func TestFallbackLeaves(t *testing.T) {
	t.Parallel()
	r := linkLocalRules()
	s := newHarness(t, r)
	targets := []string{"10.201.0.2:5301", "10.201.0.2:5302", "[fd00:201::2]:5301", "[fd00:201::2]:5302"}
	var clients []net.Conn
	var sessions []*session
	for i, a := range targets {
		serve(t, s.Upstream, netip.MustParseAddrPort(a), a)
		c, err := s.Pods[0].Dial(t.Context(), "udp", netip.AddrPortFrom(r.Addresses[i/2], dnsPort).String())
		assert.NoError(t, err)
		defer func() { _ = c.Close() }()
		clients = append(clients, c)
	}
	for _, now := range [][]string{{targets[0], targets[2]}, {targets[1], targets[3]}} {
		r.Fallback = []netip.AddrPort{netip.MustParseAddrPort(now[0]), netip.MustParseAddrPort(now[1])}
		apply(t, s.backend, r)
		if sessions == nil {
			for _, a := range r.Addresses {
				sessions = append(sessions, dialSession(t, s.Pods[0], netip.AddrPortFrom(a, dnsPort)))
			}
		}
		for i, c := range sessions {
			if got, err := c.ask(); err != nil || got != targets[2*i] {
				t.Errorf("session %s: %q, %v, want %q", c.name, got, err, targets[2*i])
			}
		}
		for i, c := range clients {
			if got, err := exchange(c, false); err != nil || got != now[i/2] {
				t.Errorf("client %d: %q, %v, want %q", i, got, err, now[i/2])
			}
		}
		if flows, err := s.backend.reader.listFlows(agent4(), dnsPort); err != nil || len(flows) != 2 {
			t.Errorf("flows: %v, %v", flows, err)
		}
	}
}
