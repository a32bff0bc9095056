// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

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
