// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// near and far are a client on this machine and another.
const near, stranger = "169.254.20.10:4567", "10.1.2.3:4567"

// wish is a query that asks how its reply comes about.
func wish(name string, rrtype uint16) *dns.Msg {
	m := query(name, rrtype)
	m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: wire.OptionExplain}}
	return m
}

// local has a plan explain to the client near.
func local(p *resolve.Plan) {
	p.Local = func(a netip.Addr) bool { return a == netip.MustParseAddrPort(near).Addr() }
}

// explanations sends q as a client and gives what the reply explains.
func explanations(t *testing.T, r *resolve.Resolver, from string, q *dns.Msg) (list []string) {
	t.Helper()
	c := newClient(r, false)
	c.from.Addr = netip.MustParseAddrPort(from)
	m := unpack(t, c.exchange(t, pack(t, q)))
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if local, ok := o.(*dns.EDNS0_LOCAL); ok {
				if local.Code != wire.OptionExplain {
					t.Errorf("option %d", local.Code)
				}
				list = append(list, string(local.Data))
			}
		}
	}
	return list
}

// TestExplainZone asks for names of the cluster.
func TestExplainZone(t *testing.T) {
	t.Parallel()
	s := shop(time.Now())
	p, _ := clusterPlan(t, s, false)
	local(p)
	r := newResolver(t, p)
	for _, tt := range []struct {
		name, ask string
		want      []string // with every time left out
	}{
		{"before the first view", "none.shop.svc.cluster.local.", []string{"source=zone state=unready"}},
		{"an address", "web.shop.svc.cluster.local.", []string{"source=zone state=fresh"}},
		{"a denial", "none.shop.svc.cluster.local.", []string{"source=zone state=fresh"}},
		{"a name beside", "a.stub.cluster.local.", []string{"source=upstream left= took= route=stub.cluster.local."}},
		{"the target of an alias, asked for", "mail.shop.svc.cluster.local.", []string{"source=upstream left= took= route=."}},
		{"the target of an alias, held", "mail.shop.svc.cluster.local.", []string{"source=cache state=fresh age= left= route=."}},
	} {
		if tt.name == "an address" {
			inSync(s)
		}
		got := explanations(t, r, near, wish(tt.ask, dns.TypeA))
		for i := range got {
			words := strings.Fields(got[i])
			for j, w := range words {
				if name, _, _ := strings.Cut(w, "="); name == "age" || name == "left" || name == "took" {
					words[j] = name + "="
				}
			}
			got[i] = strings.Join(words, " ")
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if got := explanations(t, r, stranger, wish(tt.ask, dns.TypeA)); got != nil {
			t.Errorf("%s: a remote client got %q", tt.name, got)
		}
	}
}

// TestExplainFits explains answers that fill the client's room: records give way.
func TestExplainFits(t *testing.T) {
	t.Parallel()
	var records []string
	for i := range 60 {
		records = append(records, fmt.Sprintf("many.test. 60 IN A 192.0.2.%d", i))
	}
	p := plan(t, newUpstream(t, records...))
	long := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c", 60) + ".test."
	p.Routes = append(p.Routes, resolve.Route{Suffix: wireName(t, long), Upstream: newUpstream(t, long+" 60 IN A 192.0.2.1"), TTL: bounds()})
	local(p)
	r := newResolver(t, p)
	for range 2 { // from upstream, and from the cache
		for _, size := range []uint16{512, 600, 1232} {
			m := wish("many.test.", dns.TypeA)
			m.IsEdns0().SetUDPSize(size)
			c := newClient(r, false)
			c.from.Addr = netip.MustParseAddrPort(near)
			reply := c.exchange(t, pack(t, m))
			if len(reply) > int(size) || len(unpack(t, reply).Answer) == 0 {
				t.Errorf("%d bytes of %d, %d records", len(reply), size, len(unpack(t, reply).Answer))
			}
			if got := explanations(t, r, near, m); len(got) != 1 || !strings.HasPrefix(got[0], "source=") {
				t.Errorf("explanation %q", got)
			}
		}
		got := explanations(t, r, near, wish(long, dns.TypeA))
		if len(got) != 1 || strings.Contains(got[0], "route=") || len(got[0]) == 0 {
			t.Errorf("explanation %q, want all but the route, for which there is no room", got)
		}
	}
}

// TestExplainCosts shows that a stranger's wish costs nothing.
func TestExplainCosts(t *testing.T) {
	p := plan(t, newUpstream(t, "www.test. 300 IN A 192.0.2.1"))
	local(p)
	r := newResolver(t, p)
	c := newClient(r, false)
	q := pack(t, wish("www.test.", dns.TypeA))
	c.exchange(t, q)
	dst, now := make([]byte, 0, 4096), time.Now()
	if got := testing.AllocsPerRun(1000, func() {
		c.worker.AnswerFromMemory(q, &c.from, now, dst)
		c.worker.Flush(now)
	}); got != 0 {
		t.Errorf("%v allocations, want 0", got)
	}
}
