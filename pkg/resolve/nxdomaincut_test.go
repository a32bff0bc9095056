// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestCutAllocations is the budget of a denial by that of a name above: that of a hit.
func TestCutAllocations(t *testing.T) {
	y := newPlay(t)
	y.u.be("NXDOMAIN")
	c := newClient(y.r, false)
	c.exchange(t, pack(t, question("gone.test.", dns.TypeA)))
	wantNoAllocations(t, c.worker, &c.from, pack(t, query("a.b.gone.test.", dns.TypeAAAA)), time.Now())
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
