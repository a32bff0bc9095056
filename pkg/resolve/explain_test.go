// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// near is a client on this machine.
const near = "169.254.20.10:4567"

// wish is a query of type A that asks how its reply comes about.
func wish(name string) *dns.Msg {
	m := query(name, dns.TypeA)
	m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: wire.OptionExplain}}
	return m
}

// local has a plan explain to the client near.
func local(p *resolve.Plan) {
	p.Local = func(a netip.Addr) bool { return a == netip.MustParseAddrPort(near).Addr() }
}

// explanations sends q as the client near and returns what the reply explains.
func explanations(t *testing.T, r *resolve.Resolver, q *dns.Msg) (list []string) {
	t.Helper()
	return explanationsTo(t, newClient(r, false), q)
}

// explanationsTo is explanations for a client that exists.
func explanationsTo(t *testing.T, c *client, q *dns.Msg) (list []string) {
	t.Helper()
	c.from.Addr = netip.MustParseAddrPort(near)
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

// TestExplainUnready explains that the zone is not synced yet.
func TestExplainUnready(t *testing.T) {
	t.Parallel()
	p := clusterPlan(t, shop(time.Now()), false)
	local(p)
	got := explanations(t, newResolver(t, p), wish("none.shop.svc.cluster.local."))
	assert.Same(t, "got", []string{"source=zone state=unready"}, got)
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
			m := wish("many.test.")
			m.IsEdns0().SetUDPSize(size)
			c := newClient(r, false)
			c.from.Addr = netip.MustParseAddrPort(near)
			reply := c.exchange(t, pack(t, m))
			if len(reply) > int(size) || len(unpack(t, reply).Answer) == 0 {
				t.Errorf("%d bytes of %d, %d records", len(reply), size, len(unpack(t, reply).Answer))
			}
			if got := explanations(t, r, m); len(got) != 1 || !strings.HasPrefix(got[0], "source=") {
				t.Errorf("explanation %q", got)
			}
		}
		got := explanations(t, r, wish(long))
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
	q := pack(t, wish("www.test."))
	c.exchange(t, q)
	wantNoAllocations(t, c.worker, &c.from, q, time.Now())
}
