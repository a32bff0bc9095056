// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/localdata"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// fixed is a Static of hosts and templates, each template like "zone types: record".
func fixed(tb testing.TB, hosts map[string]string, templates ...string) *localdata.Data {
	tb.Helper()
	cfg := localdata.Config{TTL: 30 * time.Second, Names: map[string][]netip.Addr{}}
	for name, addrs := range hosts {
		for addr := range strings.FieldsSeq(addrs) {
			cfg.Names[name] = append(cfg.Names[name], netip.MustParseAddr(addr))
		}
	}
	for _, text := range templates {
		head, record, _ := strings.Cut(text, ": ")
		words := strings.Fields(head)
		t := localdata.Template{Zone: words[0]}
		for _, word := range words[1:] {
			t.Types = append(t.Types, dns.StringToType[word])
		}
		t.Answer = []func(*localdata.Question) (dns.RR, error){func(q *localdata.Question) (dns.RR, error) {
			return dns.NewRR(strings.ReplaceAll(record, "{{ .Name }}", q.Name))
		}}
		cfg.Templates = append(cfg.Templates, t)
	}
	s, err := localdata.New(cfg)
	assert.NoError(tb, err)
	return s
}

// detouring is a plan with all that leads a query aside, none of which names below test are about.
func detouring(tb testing.TB, p *resolve.Plan) {
	tb.Helper()
	rewriting(tb, p, "exact one.example one.test", "prefix old- new-", "suffix .old.example .test")
	p.LocalData = fixed(tb, map[string]string{"one.hosts": "192.0.2.77"},
		"made. A: {{ .Name }} 60 IN A 192.0.2.9", "alias.: {{ .Name }} 60 IN CNAME one.test.", "inner.: {{ .Name }} 60 IN CNAME mail.shop.svc.cluster.local.",
		"web.: {{ .Name }} 60 IN CNAME web.shop.svc.cluster.local.", "bad.: {{ .Name }} nonsense")
	making(tb, p, false)
}

// TestRedirectLog checks the query log of redirected queries.
func TestRedirectLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		u := newUpstream(t, "one.test. 300 IN A 192.0.2.1")
		p := plan(t, u)
		detouring(t, p)
		p.QueryLog = &resolve.QueryLog{TypeName: typeName, All: true, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey {
					return slog.Attr{}
				}
				return a
			},
		}))}
		r := newResolver(t, p)
		for range 2 {
			for _, name := range []string{"one.example.", "one.hosts.", "x.bad."} {
				newClient6(r).exchange(t, pack(t, question(name, dns.TypeAAAA)))
			}
		}
		want := strings.Join([]string{
			"name=one.example. type=AAAA tcp=false rcode=NOERROR source=upstream took=0s client=fd00::7 upstream=udp://192.0.2.53:53",
			"name=one.hosts. type=AAAA tcp=false rcode=NOERROR source=static took=0s client=fd00::7 rule=hosts.names",
			"name=x.bad. type=AAAA tcp=false rcode=SERVFAIL source=static took=0s client=fd00::7 rule=templates[4] ede=0 ede_text=Other",
			"name=one.example. type=AAAA tcp=false rcode=NOERROR source=cache took=0s client=fd00::7",
			"name=one.hosts. type=AAAA tcp=false rcode=NOERROR source=static took=0s client=fd00::7 rule=hosts.names",
			"name=x.bad. type=AAAA tcp=false rcode=SERVFAIL source=static took=0s client=fd00::7 rule=templates[4] ede=0 ede_text=Other",
		}, "\n") + "\n"
		assert.Same(t, "got", want, log.String())
	})
}

// detours are queries that a plan of detouring answers from memory, by what they go through.
func detours(tb testing.TB) (*resolve.Worker, wire.Peer, map[string][]byte) {
	tb.Helper()
	soa, _ := dns.NewRR("test. 600 IN SOA ns.test. host.test. 1 3600 600 86400 30")
	u := newUpstream(tb, "one.test. 300 IN A 192.0.2.1", "six.test. 300 IN AAAA fd00::6")
	u.mangle = func(m *dns.Msg) {
		if len(m.Answer) == 0 {
			m.Ns = []dns.RR{soa}
		}
	}
	p := plan(tb, u)
	detouring(tb, p)
	c := newClient6(newResolver(tb, p))
	queries := map[string][]byte{
		"none":         pack(tb, question("one.test.", dns.TypeA)),
		"none, AAAA":   pack(tb, question("six.test.", dns.TypeAAAA)),
		"rewritten":    pack(tb, question("one.example.", dns.TypeA)),
		"suffix":       pack(tb, question("one.old.example.", dns.TypeA)),
		"host":         pack(tb, question("one.hosts.", dns.TypeA)),
		"host denied":  pack(tb, question("one.hosts.", dns.TypeHTTPS)),
		"host PTR":     pack(tb, question("77.2.0.192.in-addr.arpa.", dns.TypePTR)),
		"template":     pack(tb, question("x.made.", dns.TypeA)),
		"dns64":        pack(tb, question("one.test.", dns.TypeAAAA)),
		"dns64 prefix": pack(tb, question("ipv4only.arpa.", dns.TypeAAAA)),
	}
	for _, q := range queries {
		c.exchange(tb, q)
		c.exchange(tb, q)
	}
	return c.worker, c.from, queries
}

// TestRedirectAllocations requires that redirected queries answered from memory do not allocate.
func TestRedirectAllocations(t *testing.T) {
	worker, from, queries := detours(t)
	for name, q := range queries {
		t.Run(name, func(t *testing.T) { wantNoAllocations(t, worker, &from, q, time.Now()) })
	}
}

func BenchmarkRedirect(b *testing.B) {
	worker, from, queries := detours(b)
	for _, name := range []string{"none", "none, AAAA", "host", "host denied", "host PTR", "template", "rewritten", "suffix", "dns64", "dns64 prefix"} {
		b.Run(name, func(b *testing.B) {
			q := queries[name]
			dst, now := make([]byte, 0, 4096), time.Now()
			b.ReportAllocs()
			for b.Loop() {
				worker.AnswerFromMemory(q, &from, now, dst)
			}
		})
	}
}

// TestRedirectRace has clients query all names at once while plans change.
func TestRedirectRace(t *testing.T) {
	t.Parallel()
	s := shop(time.Now())
	inSync(s)
	u := newUpstream(t, "one.test. 1 IN A 192.0.2.1", "new-x.test. 0 IN A 192.0.2.2")
	plans := make([]*resolve.Plan, 2)
	for i := range plans {
		plans[i] = clusterPlan(t, s, true)
		plans[i].Inflight = 3 // some are shed
		plans[i].Routes[0].Upstream = asker(func(q []byte, _ time.Time, to wire.AnswerReceiver, _ *wire.SendBatch) {
			answer, err := u.answer(q)
			go func() {
				var batch wire.SendBatch
				respond(to, answer, err, &batch)
				batch.Flush()
			}()
		})
		if i == 0 {
			detouring(t, plans[i])
		}
	}
	r := newResolver(t, plans[0])
	names := []string{"one.test.", "one.example.", "old-x.test.", "one.old.example.", "x.made.", "x.alias.", "x.inner.", "one.hosts.", "web.shop.svc.cluster.local."}
	var clients sync.WaitGroup
	for n := range 4 {
		clients.Go(func() {
			c := newClient6(r)
			for i := range 200 {
				name := names[(i+n)%len(names)]
				m := unpack(t, c.exchange(t, pack(t, question(name, []uint16{dns.TypeA, dns.TypeAAAA, dns.TypePTR}[i%3]))))
				if m.Question[0].Name != name {
					t.Errorf("asked for %s: %s", name, gist(m))
				}
				if n == 0 && i%10 == 0 {
					next := *plans[i/10%2] // a plan is given to a resolver once
					r.Swap(&next)
				}
			}
		})
	}
	clients.Wait()
	if st := r.Stats(); st.Panics != 0 || st.Waiting != 0 || st.Clients != 0 {
		t.Errorf("%d panics, %d waiting, %d clients", st.Panics, st.Waiting, st.Clients)
	}
}

// FuzzRedirect sends arbitrary packets to a worker with all features. Replies must match and fit.
func FuzzRedirect(f *testing.F) {
	u := newUpstream(f, "one.test. 300 IN A 192.0.2.1")
	s := shop(time.Now())
	inSync(s)
	p := clusterPlan(f, s, true)
	p.Routes[0].Upstream = u
	detouring(f, p)
	r := newResolver(f, p)
	for _, name := range []string{
		"one.example.", "x.old.example.", "old-.test.", "one.hosts.", "x.made.", "x.alias.", "x.inner.", "ipv4only.arpa.", "x.ipv4only.arpa.",
		"7.0.0.0.0.6.a.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.b.9.f.f.4.6.0.0.ip6.arpa.", "a.a.0.0.0.0.0.c.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.b.9.f.f.4.6.0.0.ip6.arpa.",
	} {
		for _, rrtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypePTR} {
			m := question(name, rrtype)
			f.Add(pack(f, m), false)
			m.SetEdns0(600, true)
			f.Add(pack(f, m), true)
		}
	}
	f.Fuzz(func(t *testing.T, pkt []byte, stream bool) {
		c := newClient6(r)
		c.from.Stream = stream
		reply := c.exchange(t, bytes.Clone(pkt))
		if reply == nil {
			if len(pkt) >= 12 && pkt[2]&0x80 == 0 {
				t.Error("a query got no reply")
			}
			return
		}
		var q wire.Query
		if q.Parse(pkt) != wire.RcodeSuccess {
			return
		}
		if !stream && len(reply) > min(wire.SafeUDP, int(q.UDPSize)) {
			t.Errorf("%d bytes over UDP", len(reply))
		}
		m := new(dns.Msg)
		if err := m.Unpack(reply); err != nil {
			t.Fatalf("reply cannot be read: %v: %x", err, reply)
		}
		if string(reply[12:12+len(q.QuestionSection())]) != string(q.QuestionSection()) {
			t.Errorf("question %x, want %x", reply[12:], q.QuestionSection())
		}
		if r.Stats().Panics != 0 {
			t.Error(fmt.Sprint("panic for ", m.Question))
		}
	})
}
