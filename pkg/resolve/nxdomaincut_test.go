// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

const denied20 = "NXDOMAIN / test., upstream after 0s"

// TestNXDomainCut queries names around the denied name gone.test. and checks which ones go upstream
// (RFC 8020).
func TestNXDomainCut(t *testing.T) {
	t.Parallel()
	const cut = "NXDOMAIN / test., cache after 0s"
	const address = " 100 192.0.2.2, upstream after 0s"
	for _, tt := range []struct {
		name  string
		alter func(*stateTest, *dns.Msg) // nil: nothing
		about string
		qtype uint16
		want  string
	}{
		{"the name itself", nil, "gone.test.", dns.TypeA, cut},
		{"the name itself, another type", nil, "gone.test.", dns.TypeAAAA, cut},
		{"the name below", nil, "www.gone.test.", dns.TypeA, cut},
		{"the name below, another type", nil, "www.gone.test.", dns.TypeSRV, cut},
		{"the name far below", nil, "a.b.c.gone.test.", dns.TypeAAAA, cut},
		{"in another spelling", nil, "Www.GONE.test.", dns.TypeA, cut},
		{"the name above", nil, "test.", dns.TypeA, "NOERROR | test." + address},
		{"a name beside", nil, "begone.test.", dns.TypeA, "NOERROR | begone.test." + address},
		{"a label that only ends like it", nil, "x.begone.test.", dns.TypeA, "NOERROR | x.begone.test." + address},
		{"turned off", func(y *stateTest, _ *dns.Msg) { y.p.Cut = false }, "www.gone.test.", dns.TypeA, "NOERROR | www.gone.test." + address},
		{"turned off, the name itself", func(y *stateTest, _ *dns.Msg) { y.p.Cut = false }, "gone.test.", dns.TypeAAAA, cut},
		{"with proof", func(_ *stateTest, m *dns.Msg) { m.IsEdns0().SetDo() }, "www.gone.test.", dns.TypeA, "NOERROR | www.gone.test." + address},
		{"unchecked", func(_ *stateTest, m *dns.Msg) { m.CheckingDisabled = true }, "www.gone.test.", dns.TypeA, "NOERROR | www.gone.test." + address},
		{"without RD", func(_ *stateTest, m *dns.Msg) { m.RecursionDesired = false }, "www.gone.test.", dns.TypeA, cut},
		{"a route's names below it", func(y *stateTest, _ *dns.Msg) {
			y.p.Routes = append(y.p.Routes, resolve.Route{Suffix: []byte("\x03sub\x04gone\x04test\x00"), Upstream: y.u, TTL: bounds()})
		}, "www.sub.gone.test.", dns.TypeA, "NOERROR | www.sub.gone.test." + address},
		{"a route's name itself", func(y *stateTest, _ *dns.Msg) {
			y.p.Routes = append(y.p.Routes, resolve.Route{Suffix: []byte("\x04gone\x04test\x00"), Upstream: y.u, TTL: bounds()})
		}, "www.gone.test.", dns.TypeA, "NOERROR | www.gone.test." + address},
		{"names of the cluster", func(y *stateTest, _ *dns.Msg) { y.p.Routes[0].Exact = true }, "www.gone.test.", dns.TypeA, "NOERROR | www.gone.test." + address},
		{"names of the cluster on a route of the configuration", func(y *stateTest, _ *dns.Msg) {
			y.p.Owner = func(name []byte) []byte { return name }
		}, "www.gone.test.", dns.TypeA, "NOERROR | www.gone.test." + address},
		{"a route that tells clients apart", func(y *stateTest, _ *dns.Msg) { y.p.Routes[0].Subnet = true }, "www.gone.test.", dns.TypeA, "NOERROR | www.gone.test." + address},
		{"its time is over", func(*stateTest, *dns.Msg) { time.Sleep(21 * time.Second) }, "www.gone.test.", dns.TypeA, "NOERROR | www.gone.test." + address},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				y, m := newPlay(t), query(tt.about, tt.qtype)
				y.u.be("NXDOMAIN")
				if got := y.ask(t, query("gone.test.", dns.TypeA)); got != denied20 {
					t.Fatalf("got %s", got)
				}
				y.u.be("good")
				if tt.alter != nil {
					tt.alter(y, m)
					next := *y.p
					y.r.Swap(&next)
				}
				if tt.qtype != dns.TypeA && tt.want == cut {
					y.u.be("NODATA") // the fake knows addresses only
				}
				if diff := cmp.Diff(tt.want, y.ask(t, m)); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			})
		})
	}
}

// TestNoCutOfTopLevel has a denial of one label, the root and the name of a route: nothing
// below is denied with it, and the name itself is.
func TestNoCutOfTopLevel(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, zone string
		denied     string
		below      []string
	}{
		{"a top-level domain", "", "com.", []string{"example.com.", "www.example.com.", "a.b.c.com."}},
		{"the root", "", ".", []string{"com.", "www.example.com."}},
		{"a route of one label", "\x04corp", "corp.", []string{"git.corp.", "www.git.corp."}},
		{"a route of two labels", "\x04corp\x07example", "corp.example.", []string{"git.corp.example.", "www.git.corp.example."}},
		{"above a route", "\x03git\x04corp\x07example", "corp.example.", []string{"www.git.corp.example."}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			soa, _ := dns.NewRR(". 900 IN SOA ns. host. 1 3600 600 86400 900")
			u := newUpstream(t)
			u.mangle = func(m *dns.Msg) {
				if m.Ns = []dns.RR{soa}; m.Question[0].Name == tt.denied {
					m.Rcode = dns.RcodeNameError
				}
			}
			p := plan(t, u)
			if tt.zone != "" {
				p.Routes = append(p.Routes, resolve.Route{Suffix: []byte(tt.zone + "\x00"), Upstream: u, TTL: bounds()})
			}
			c := newClient(newResolver(t, p), false)
			for range 2 { // asked, and from memory
				if got := unpack(t, c.exchange(t, pack(t, question(tt.denied, dns.TypeA)))); got.Rcode != dns.RcodeNameError {
					t.Errorf("%s got\n%s", tt.denied, got)
				}
			}
			for _, name := range tt.below {
				if got := unpack(t, c.exchange(t, pack(t, question(name, dns.TypeA)))); got.Rcode != dns.RcodeSuccess {
					t.Errorf("%s below %s got\n%s", name, tt.denied, got)
				}
			}
			if got, want := u.count(), 1+len(tt.below); got != want {
				t.Errorf("%d queries upstream, want %d", got, want)
			}
		})
	}
}

// TestNoCut has answers that deny no name: of them nothing follows for names below.
func TestNoCut(t *testing.T) {
	t.Parallel()
	soa, _ := dns.NewRR("test. 20 IN SOA ns.test. host.test. 1 3600 600 86400 20")
	alias, _ := dns.NewRR("gone.test. 20 IN CNAME far.test.")
	for name, mangle := range map[string]func(*dns.Msg){
		"no data":                    func(m *dns.Msg) { m.Ns = []dns.RR{soa} },
		"an alias of a denied name":  func(m *dns.Msg) { m.Rcode, m.Answer, m.Ns = dns.RcodeNameError, []dns.RR{alias}, []dns.RR{soa} },
		"a denial that is not kept":  func(m *dns.Msg) { m.Rcode = dns.RcodeNameError },
		"a failure":                  func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure },
		"an alias and no data there": func(m *dns.Msg) { m.Answer, m.Ns = []dns.RR{alias}, []dns.RR{soa} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t, "www.gone.test. 60 IN A 192.0.2.1")
			u.mangle = func(m *dns.Msg) {
				if m.Question[0].Name == "gone.test." {
					mangle(m)
				}
			}
			c := newClient(newResolver(t, plan(t, u)), false)
			c.exchange(t, pack(t, question("gone.test.", dns.TypeA)))
			if got := unpack(t, c.exchange(t, pack(t, question("www.gone.test.", dns.TypeA)))); got.Rcode != dns.RcodeSuccess || len(got.Answer) != 1 {
				t.Errorf("got\n%s", got)
			}
		})
	}
}

// TestCutOfRecords is the denial below as a message: its own question, the SOA record
// with what is left of its TTL, AA and AD off, and behind an alias of the cluster's the
// alias first.
func TestCutOfRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := shop(time.Now())
		s.PutService(zoneAlias("below", "www.Gone.example.com"), time.Now())
		inSync(s)
		p, root := clusterPlan(t, s, false)
		root.mangle = func(m *dns.Msg) {
			soa, _ := dns.NewRR("example.com. 30 IN SOA ns.example.com. host.gone.example.com. 1 2 3 4 30")
			m.Rcode, m.Ns, m.Authoritative, m.AuthenticatedData = dns.RcodeNameError, []dns.RR{soa}, true, true
		}
		c := newClient(newResolver(t, p), false)
		c.exchange(t, pack(t, question("gone.example.com.", dns.TypeA)))
		time.Sleep(10 * time.Second)
		for name, head := range map[string]string{
			"a.gone.example.com.":           "",
			"WWW.gone.example.com.":         "",
			"below.shop.svc.cluster.local.": "below.shop.svc.cluster.local.\t5\tIN\tCNAME\tWww.Gone.example.com.",
		} {
			m := query(name, dns.TypeAAAA)
			m.AuthenticatedData = true
			got := unpack(t, c.exchange(t, pack(t, m)))
			if got.Rcode != dns.RcodeNameError || got.AuthenticatedData || got.Authoritative != (head != "") || got.Question[0] != m.Question[0] || got.Id != m.Id {
				t.Errorf("%s got\n%s", name, got)
			}
			if len(got.Ns) != 1 || got.Ns[0].String() != "example.com.\t20\tIN\tSOA\tns.example.com. host.gone.example.com. 1 2 3 4 30" {
				t.Errorf("%s: authority %v", name, got.Ns)
			}
			answer := ""
			for _, rr := range got.Answer {
				answer += rr.String()
			}
			if !equalLine(answer, head) {
				t.Errorf("%s: answer %q, want %q", name, answer, head)
			}
		}
		if n := root.count(); n != 1 {
			t.Errorf("%d queries upstream, want 1", n)
		}
	})
}

// TestCutAllocations is the budget of a denial by that of a name above: that of a hit.
func TestCutAllocations(t *testing.T) {
	y := newPlay(t)
	y.u.be("NXDOMAIN")
	c := newClient(y.r, false)
	c.exchange(t, pack(t, question("gone.test.", dns.TypeA)))
	pkt, now, dst := pack(t, query("a.b.gone.test.", dns.TypeAAAA)), time.Now(), make([]byte, 0, 4096)
	if got := testing.AllocsPerRun(1000, func() {
		if _, verdict := c.worker.AnswerFromMemory(pkt, &c.from, now, dst); verdict != wire.Answered {
			t.Fatalf("verdict %v", verdict)
		}
		c.worker.Flush(now)
	}); got != 0 {
		t.Errorf("%v allocations, want 0", got)
	}
}

// BenchmarkMissBesideDenial is a miss while the denial of another name is held.
func BenchmarkMissBesideDenial(b *testing.B) {
	soa, _ := dns.NewRR("test. 900 IN SOA ns.test. host.test. 1 3600 600 86400 900")
	u := newUpstream(b)
	u.mangle = func(m *dns.Msg) { m.Rcode, m.Ns = dns.RcodeNameError, []dns.RR{soa} }
	p := plan(b, newCanned(b))
	p.Routes = append(p.Routes, resolve.Route{Suffix: []byte("\x04test\x00"), Upstream: u, TTL: resolve.TTLs{Negative: time.Hour}})
	m, now, pkt := missing(b, p, false), time.Now(), pack(b, question("gone.test.", dns.TypeA))
	if _, verdict := m.worker.AnswerFromMemory(pkt, &m.from, now, nil); verdict != wire.Missed {
		b.Fatalf("verdict %v, want a miss", verdict)
	}
	m.worker.Resolve(&m.from, now, &m.got)
	b.ReportAllocs()
	for b.Loop() {
		m.miss(now)
	}
}

func BenchmarkCut(b *testing.B) {
	u := newUpstream(b)
	soa, _ := dns.NewRR("test. 20 IN SOA ns.test. host.test. 1 3600 600 86400 20")
	u.mangle = func(m *dns.Msg) { m.Rcode, m.Ns = dns.RcodeNameError, []dns.RR{soa} }
	c := newClient(newResolver(b, plan(b, u)), false)
	c.exchange(b, pack(b, question("gone.test.", dns.TypeA)))
	pkt, now, dst := pack(b, question("a.gone.test.", dns.TypeA)), time.Now(), make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		c.worker.AnswerFromMemory(pkt, &c.from, now, dst)
	}
}
