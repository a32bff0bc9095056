// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// otherServers returns the servers of a node, each with the agent's address that takes its place.
func otherServers() []rules.Redirect {
	var list []rules.Redirect
	for _, pair := range [][2]string{
		{"10.203.0.2", "169.254.20.11"},
		{"10.203.0.3", "169.254.20.12"},
		{"fd00:203::2", "fd00:20::11"},
		{"fd00:203::3", "fd00:20::12"},
	} {
		list = append(list, rules.Redirect{From: netip.MustParseAddr(pair[0]), To: netip.MustParseAddr(pair[1])})
	}
	return list
}

// servers returns the addresses of the other servers.
func (n nodeHarness) servers() []netip.Addr {
	var list []netip.Addr
	for _, s := range n.Servers {
		list = append(list, s.From)
	}
	return list
}

// redirecting returns rules with other servers, beside all of fallingBack.
func (n nodeHarness) redirecting(owner string) rules.Rules {
	r := n.fallingBack(owner)
	r.Servers = n.Servers
	for _, s := range n.Servers {
		r.Addresses = append(slices.Clip(r.Addresses), s.To)
	}
	return r
}

// redirector is an agent with such rules, which holds no lease.
func (n nodeHarness) redirector() intercept.Backend {
	n.t.Helper()
	b, r := n.agent(), n.redirecting("first")
	assert.NoError(n.t, r.Check())
	n.apply(b, r)
	return b
}

// expectServers sends queries to the other servers. Each answer must come from the one that name returns.
func (n nodeHarness) expectServers(when string, name func(i int) string) {
	n.t.Helper()
	for i, s := range n.servers() {
		n.expect(when, n.queries([]netip.Addr{s}), name(i))
		n.expect(when+", the agent's own", n.marked([]netip.Addr{s}), Server(i))
	}
}

// redirected takes the queries to other servers while their leases are held, and leaves them alone otherwise. The leases on the addresses of
// the cluster and those on other servers do not depend on each other.
func redirected(n nodeHarness) {
	b := n.redirector()
	n.expectServers("not leased", Server)
	n.expectFallback("not leased", n.queries(n.asked()), n.Fallbacks)
	n.renew(b, n.servers()[:1], time.Minute)
	n.expectServers("one leased", func(i int) string {
		if i == 0 {
			return Outside(i)
		}
		return Server(i)
	})
	n.renew(b, n.servers(), time.Minute)
	n.expectServers("leased", Outside)
	n.expectFallback("others leased", n.queries(n.asked()), n.Fallbacks)
	n.expect("leased", n.marked(n.Addresses), Agent)
	n.renew(b, n.asked(), time.Minute)
	n.expectServers("all leased", Outside)
	n.expect("all leased", n.queries(n.asked()), Agent)
	n.expectFallback("all leased", n.tests(n.asked()), n.Fallbacks)
	n.release(b, n.asked(), 0)
	n.expectServers("the cluster's released", Outside)
	n.expectFallback("the cluster's released", n.queries(n.asked()), n.Fallbacks)
	n.release(b, n.servers(), 0)
	n.expectServers("released", Server)
	n.renew(b, n.servers(), n.Lease)
	n.waitFor("without any lease", func() bool { return len(n.state(b).Leases) == 0 })
	n.expectServers("lapsed", Server)
	n.remove(b, "first")
	n.expectServers("removed", Server)
}

func redirectedDrained(n nodeHarness) {
	b := n.redirector()
	n.renew(b, n.servers(), time.Minute)
	open := map[Query]Conn{}
	names := map[Query]string{}
	for i, s := range n.servers() {
		for _, q := range n.queries([]netip.Addr{s}) {
			if q.Network == "tcp" {
				open[q], names[q] = n.dial(q), Outside(i)
				n.expectConn("leased", q, open[q], Outside(i))
			}
		}
	}
	n.release(b, n.servers(), time.Minute)
	n.expectServers("draining", Server)
	if n.cilium && strings.HasPrefix(b.String(), "iptables") {
		return // rules cannot tell open sessions from new ones there, see redirectZoneRules of that backend: the server resets them
	}
	for q, c := range open {
		n.expectConn("draining", q, c, names[q])
	}
	n.release(b, n.servers(), n.Lease) // the last release counts
	for q, c := range open {
		n.waitFor("drained: "+q.String(), func() bool { return c.Ask() == NoAnswer })
	}
}

// redirectedReused queries through the same UDP sockets while leases start and end.
func redirectedReused(n nodeHarness) {
	b := n.redirector()
	open := map[Query]Conn{}
	expect := func(when string, name func(i int) string) {
		for i, s := range n.servers() {
			for _, q := range n.queries([]netip.Addr{s}) {
				if q.Network != "udp" {
					continue
				}
				if open[q] == nil {
					open[q] = n.dial(q)
				}
				n.expectConn(when, q, open[q], name(i))
			}
		}
	}
	for range 3 {
		expect("not leased", Server)
		n.renew(b, n.servers(), time.Minute)
		expect("leased", Outside)
		n.release(b, n.servers(), 0)
	}
}

// redirectedFallbackChanged changes the fallback: flows to other servers, which get their answers, are none of its old targets. Without its
// entry, an answer that is on its way to a pod behind masquerading would be lost.
func redirectedFallbackChanged(n nodeHarness) {
	if n.cilium {
		return // it exempts the flow from conntrack
	}
	b := n.redirector()
	to := netip.AddrPortFrom(n.servers()[0], n.Port)
	q := Query{From: Pod, Network: "udp", To: to}
	n.expectConn("not leased", q, n.dial(q), Server(0))
	before := n.Tracked(n.t, to)
	if before == 0 {
		n.t.Fatalf("the flow to %s is not tracked", to)
	}
	r := n.redirecting("first")
	r.Fallback = r.Fallback[1:]
	n.apply(b, r)
	assert.Equal(n.t, "tracked flows to the server after a change of the fallback", before, n.Tracked(n.t, to))
}
