// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// sessions opens TCP sessions of all clients to the addresses. Each has had an answer.
func (n nodeHarness) sessions(addrs []netip.Addr) map[Query]Conn {
	n.t.Helper()
	all := map[Query]Conn{}
	for _, q := range n.queries(addrs) {
		if q.Network != "tcp" {
			continue
		}
		all[q] = n.dial(q)
		n.expectConn("leased", q, all[q], Agent)
	}
	return all
}

func drained(n nodeHarness) {
	b := n.leased()
	open := n.sessions(n.asked())
	n.release(b, n.asked(), time.Minute)
	for q, c := range open {
		n.expectConn("draining", q, c, Agent)
	}
	n.expectFallback("draining", n.queries(n.asked()), n.Fallbacks)
	n.release(b, n.asked(), n.Lease) // the last release counts
	for q, c := range open {
		n.waitFor("drained: "+q.String(), func() bool { return c.Ask() == NoAnswer })
	}
	n.expectFallback("drained", n.queries(n.asked()), n.Fallbacks)
}

func transparentDrained(n nodeHarness) {
	b := n.agent()
	n.apply(b, n.transparent("first"))
	n.renew(b, n.Services, time.Minute)
	open := n.sessions(n.Services)
	n.release(b, n.Services, time.Minute)
	for q, c := range open {
		n.expectConn("draining", q, c, Agent)
	}
	n.expect("draining", n.queries(n.Services), Service)
}

// socketsReused queries through the same UDP sockets while leases start and end: the
// kernel's conntrack entry of a flow must not override the rules.
func socketsReused(n nodeHarness) {
	n.reuseSockets("with a fallback")
	if !n.cilium && !n.excluded { // the agent refuses the other mode there
		n.reuseSockets("transparent")
	}
}

func (n nodeHarness) reuseSockets(mode string) {
	n.t.Helper()
	b := n.Open(n.t)
	defer n.close(b)
	r, keys := n.fallingBack("first"), n.asked()
	want := func(q Query) []string { return n.fallbacks(q, r.Fallback) }
	if mode == "transparent" {
		r, keys = n.transparent("second"), n.Services
		want = func(Query) []string { return []string{Service} }
	}
	n.apply(b, r)
	open := map[Query]Conn{}
	for _, q := range n.queries(keys) {
		if q.Network == "udp" {
			open[q] = n.dial(q)
		}
	}
	for range 3 {
		for q, c := range open {
			n.expectConn(mode+", not leased", q, c, want(q)...)
		}
		n.renew(b, keys, time.Minute)
		for q, c := range open {
			n.expectConn(mode+", leased", q, c, Agent)
		}
		n.release(b, keys, 0)
	}
}

// expectConn queries over an open connection. One of the servers in want must answer.
func (n nodeHarness) expectConn(when string, q Query, c Conn, want ...string) {
	n.t.Helper()
	if got := c.Ask(); !slices.Contains(want, got) {
		n.t.Errorf("%s: %s: %s answered, want %s", when, q, got, strings.Join(want, " or "))
	}
}
