// SPDX-License-Identifier: Apache-2.0

package discovery_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/discovery"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/wire"
)

const service = "resolvers.kube-system.svc.cluster.local."

// A harness is an agent that asks a resolver with a real zone. It runs in a bubble of virtual time.
type harness struct {
	*discovery.Discovery
	store    *zone.Store
	zone     *zone.Zone
	answer   func(q *dns.Msg) *dns.Msg // instead of the zone's; nil: the zone answers
	broken   bool                      // no connection can be opened
	place    string                    // topology zone of the agent
	reported bool
	asked    []time.Duration // when connections were opened, since the start
	found    []string        // by Found
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	h := &harness{store: zone.NewStore()}
	var err error
	h.zone, err = zone.New(zone.Config{Store: h.store, Domain: "cluster.local.", TTL: 5 * time.Second})
	assert.NoError(t, err)
	h.store.Expect(zone.Services, zone.Slices, zone.Namespaces)
	for _, kind := range []zone.Kind{zone.Services, zone.Slices, zone.Namespaces} {
		h.store.SetSynced(kind)
		h.store.ConfirmFresh(kind, h.store.BootTime(time.Now()))
	}
	for _, namespace := range []string{"kube-system", "evil"} {
		h.store.PutService(zone.Service{Namespace: namespace, Name: "resolvers", Type: zone.Headless, TTL: -1}, time.Now())
	}
	start := time.Now()
	h.Discovery = discovery.New(discovery.Config{
		Service: service, Servers: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.9:53"), netip.MustParseAddrPort("[fd00::9]:53")},
		Open: func(_ context.Context, addr netip.AddrPort) (net.Conn, error) {
			if addr.Addr().Is4() {
				h.asked = append(h.asked, time.Since(start))
			}
			if h.broken {
				return nil, errors.New("connection refused")
			}
			agent, server := net.Pipe()
			go h.serve(server)
			return agent, nil
		},
		Zone: func() string { return h.place }, Reported: func() bool { return h.reported },
		Found: func(list []upstream.ServiceEndpoint) {
			h.found = nil
			for _, e := range list {
				h.found = append(h.found, strings.TrimSpace(e.Addr.String()+" "+e.Zone))
			}
		},
		Log: slog.New(slog.DiscardHandler),
	})
	return h
}

func (h *harness) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	synctest.Wait()
}

// put sets the endpoints of the Service in a namespace, each as "address zone".
func (h *harness) put(namespace string, endpoints ...string) {
	s := zone.Slice{Namespace: namespace, Name: "resolvers-x", Service: "resolvers", Ports: []zone.Port{{Name: "dns", Protocol: zone.UDP, Number: 53}, {Name: "dns-tcp", Protocol: zone.TCP, Number: 1053}}}
	for _, e := range endpoints {
		addr, place, _ := strings.Cut(e, " ")
		s.Endpoints = append(s.Endpoints, zone.Endpoint{Addrs: []netip.Addr{netip.MustParseAddr(addr)}, Zone: place, Ready: true})
	}
	h.store.PutSlice(s, time.Now())
}

// serve answers the questions of one connection.
func (h *harness) serve(conn net.Conn) {
	c := &dns.Conn{Conn: conn}
	defer func() { _ = c.Close() }()
	for {
		q, err := c.ReadMsg()
		if err != nil {
			return
		}
		if h.answer != nil {
			if m := h.answer(q); m == nil || c.WriteMsg(m) != nil {
				return
			}
			continue
		}
		packed, _ := q.Pack()
		var parsed wire.Query
		parsed.Parse(packed)
		answer, _ := zone.Zones{h.zone}.Answer(&parsed, zone.Client{MaxSize: wire.MaxMessage}, time.Now(), nil)
		wire.SetID(answer, q.Id)
		answer[2] |= 0x80
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// TestFound asks a real zone.
func TestFound(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, place string
		endpoints   []string
		want        []string
	}{
		{"the zone of the node is unknown", "", []string{"10.244.2.1 b", "10.244.1.1 a"}, []string{"10.244.1.1:1053", "10.244.2.1:1053"}},
		{"one in the zone", "a", []string{"10.244.1.1 a", "10.244.2.1 b"}, []string{"10.244.1.1:1053 a", "10.244.2.1:1053 not a"}},
		{"a zone of several labels", "eu.a", []string{"10.244.1.1 eu.a", "10.244.2.1 eu.b"}, []string{"10.244.1.1:1053 eu.a", "10.244.2.1:1053 not eu.a"}},
		{"none in the zone", "c", []string{"10.244.1.1 a", "10.244.2.1 b"}, []string{"10.244.1.1:1053 not c", "10.244.2.1:1053 not c"}},
		{"IPv6", "a", []string{"fd00::1 a", "10.244.2.1 b"}, []string{"10.244.2.1:1053 not a", "[fd00::1]:1053 a"}},
		{"a zone that is no name", "a..b", []string{"10.244.1.1 a"}, []string{"10.244.1.1:1053"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.put("kube-system", tt.endpoints...)
				h.put("evil", "10.244.9.9 a") // a Service of the same name elsewhere
				h.place = tt.place
				h.run(t)
				assert.Same(t, "endpoints", tt.want, h.found)
				assert.Same(t, "stats", discovery.Stats{Synced: true}, *h.Stats())
			})
		})
	}
}

// TestMany bounds the endpoints of one answer.
func TestMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		var all []string
		for i := range 300 {
			all = append(all, fmt.Sprintf("10.244.%d.%d", i/250, 1+i%250))
		}
		h.put("kube-system", all...)
		h.run(t)
		assert.Same(t, "endpoints", 256, len(h.found))
	})
}

// TestPace counts questions: by TTL, once a minute while changes are reported, and twice after a report.
func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.put("kube-system", "10.244.1.1")
		h.run(t)
		took := func(d time.Duration) int {
			h.asked = nil
			time.Sleep(d)
			synctest.Wait()
			return len(h.asked)
		}
		within := func(what string, from, got, to int) {
			if got < from || got > to {
				t.Errorf("%s: %d questions, want %d to %d", what, got, from, to)
			}
		}
		within("a minute by TTL", 10, took(time.Minute), 12)
		h.reported = true
		time.Sleep(6 * time.Second)
		within("ten minutes of reports", 8, took(10*time.Minute), 10)
		h.put("kube-system", "10.244.1.2")
		h.Wake()
		assert.Same(t, "questions within half a second", 0, took(499*time.Millisecond))
		assert.Same(t, "questions within a second", 1, took(time.Second))
		assert.Same(t, "endpoints", []string{"10.244.1.2:1053"}, h.found)
		assert.Same(t, "questions within six seconds", 1, took(5200*time.Millisecond))
		within("the next minute", 0, took(50*time.Second), 0)
		// A server that reports changes without an end.
		h.asked = nil
		for range 60_000 {
			h.Wake()
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		within("a minute of endless reports", 60, len(h.asked), 120)
	})
}

// TestBehind has a server answer that does not know of the reported change yet.
func TestBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.reported = true
		h.put("kube-system", "10.244.1.1")
		h.run(t)
		h.Wake()
		time.Sleep(time.Second)
		h.put("kube-system", "10.244.1.2")
		time.Sleep(6 * time.Second)
		synctest.Wait()
		assert.Same(t, "endpoints", []string{"10.244.1.2:1053"}, h.found)
	})
}

// TestKept has no answer of use: the endpoints that are known stay, and the next answer counts.
func TestKept(t *testing.T) {
	t.Parallel()
	reply := func(change func(m *dns.Msg)) func(h *harness) {
		return func(h *harness) {
			h.answer = func(q *dns.Msg) *dns.Msg {
				m := new(dns.Msg).SetReply(q)
				change(m)
				return m
			}
		}
	}
	records := func(texts ...string) func(h *harness) {
		return reply(func(m *dns.Msg) {
			for _, text := range texts {
				rr, err := dns.NewRR(text)
				if err != nil {
					panic(err)
				}
				if rr.Header().Rrtype == dns.TypeSRV {
					m.Answer = append(m.Answer, rr)
				} else {
					m.Extra = append(m.Extra, rr)
				}
			}
		})
	}
	const srv = "_dns-tcp._tcp." + service + " 5 IN SRV 0 0 53 a.example."
	for _, tt := range []struct {
		name string
		do   func(h *harness)
		want string // part of the error
	}{
		{"no server can be reached", func(h *harness) { h.broken = true }, "connection refused"},
		{"no endpoint is ready", func(h *harness) { h.put("kube-system") }, "NXDOMAIN"},
		{"the Service is gone", func(h *harness) { h.store.Delete(zone.Services, "kube-system", "resolvers", time.Now()) }, "NXDOMAIN"},
		{"the connection ends", func(h *harness) { h.answer = func(*dns.Msg) *dns.Msg { return nil } }, "EOF"},
		{"SERVFAIL", reply(func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure }), "SERVFAIL"},
		{"another ID", reply(func(m *dns.Msg) { m.Id++ }), "another question"},
		{"another question", reply(func(m *dns.Msg) { m.Question[0].Name = "evil.example." }), "another question"},
		{"a query", reply(func(m *dns.Msg) { m.Response = false }), "another question"},
		{"no address", records(srv), "no endpoint with an address"},
		{"an address of another name", records(srv, "b.example. 5 IN A 10.244.9.9"), "no endpoint with an address"},
		{"loopback", records(srv, "a.example. 5 IN A 127.0.0.1", "a.example. 5 IN AAAA ::1"), "no endpoint with an address"},
		{"the agent's own", records(srv, "a.example. 5 IN A 169.254.20.10", "a.example. 5 IN AAAA fe80::1"), "no endpoint with an address"},
		{"multicast, and none", records(srv, "a.example. 5 IN A 224.0.0.1", "a.example. 5 IN A 0.0.0.0"), "no endpoint with an address"},
		{"port 0", records("_dns-tcp._tcp."+service+" 5 IN SRV 0 0 0 a.example.", "a.example. 5 IN A 10.244.9.9"), "no endpoint with an address"},
		{"silence", func(h *harness) {
			h.answer = func(*dns.Msg) *dns.Msg {
				time.Sleep(time.Hour)
				return nil
			}
		}, "closed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.put("kube-system", "10.244.1.1")
				h.run(t)
				tt.do(h)
				time.Sleep(20 * time.Second)
				synctest.Wait()
				assert.Same(t, "endpoints", []string{"10.244.1.1:1053"}, h.found)
				if st := h.Stats(); !st.Synced || !strings.Contains(st.LastError, tt.want) {
					t.Errorf("%+v, want an error with %q", st, tt.want)
				}
				h.broken, h.answer = false, nil
				h.store.PutService(zone.Service{Namespace: "kube-system", Name: "resolvers", Type: zone.Headless, TTL: -1}, time.Now())
				h.put("kube-system", "10.244.1.2")
				time.Sleep(15 * time.Second)
				synctest.Wait()
				assert.Same(t, "endpoints", []string{"10.244.1.2:1053"}, h.found)
				assert.Same(t, "stats", discovery.Stats{Synced: true}, *h.Stats())
				time.Sleep(time.Hour) // until the silent server's goroutines are done
			})
		})
	}
}

// TestLateStart has no server at the start.
func TestLateStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.broken = true
		h.run(t)
		time.Sleep(time.Hour)
		assert.Same(t, "synced", false, h.Stats().Synced)
		if n := len(h.asked); n < 450 || n > 750 {
			t.Errorf("%d attempts in an hour", n)
		}
		h.broken = false
		h.put("kube-system", "10.244.1.1")
		time.Sleep(8 * time.Second)
		synctest.Wait()
		assert.Same(t, "endpoints", []string{"10.244.1.1:1053"}, h.found)
	})
}

// FuzzAnswer has a server answer anything. Each endpoint must be an address of a record in it, which traffic may be sent to.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{"10.244.1.1", "127.0.0.1", "169.254.20.10"} {
		q := new(dns.Msg).SetQuestion("_dns-tcp._tcp."+service, dns.TypeSRV)
		m := new(dns.Msg).SetReply(q)
		m.Answer = []dns.RR{&dns.SRV{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeSRV, Class: dns.ClassINET, Ttl: 5}, Port: 53, Target: "a."}}
		m.Extra = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: "a.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: net.ParseIP(text)}}
		packed, err := m.Pack()
		assert.NoError(f, err)
		f.Add(packed)
	}
	f.Fuzz(func(t *testing.T, packed []byte) {
		m := new(dns.Msg)
		if m.Unpack(packed) != nil {
			return
		}
		list := discovery.EndpointsOf(m)
		if len(list) > 256 || !slices.IsSortedFunc(list, netip.AddrPort.Compare) {
			t.Fatalf("%d endpoints: %v", len(list), list)
		}
		for _, e := range list {
			known := slices.ContainsFunc(m.Extra, func(rr dns.RR) bool { return strings.HasSuffix(rr.String(), "\t"+e.Addr().String()) })
			if a := e.Addr(); !known || e.Port() == 0 || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() {
				t.Errorf("%s of\n%s", e, m)
			}
		}
	})
}
