// SPDX-License-Identifier: Apache-2.0

package intercepttest

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/rules"
)

const (
	patience = 10 * time.Second      // until something that must come has come
	moment   = 50 * time.Millisecond // between two looks whether it has
)

// A node is a World under test.
type node struct {
	World
	t *testing.T
}

// agent opens a backend that is closed with the test.
func (n node) agent() intercept.Backend {
	n.t.Helper()
	b := n.Open(n.t)
	n.t.Cleanup(func() { n.close(b) })
	return b
}

func (n node) close(b intercept.Backend) {
	n.t.Helper()
	if err := b.Close(); err != nil {
		n.t.Errorf("closing backend %s: %v", b, err)
	}
}

// linkLocal are rules of the first two fallbacks of each family.
func (n node) linkLocal(owner string) rules.Rules {
	l := n.Layout()
	return rules.Rules{
		Owner: owner, Mode: rules.LinkLocal, Addresses: l.Addresses,
		Port: l.Port, Admin: l.Admin, Fallback: l.Fallbacks,
	}
}

func (n node) transparent(owner string) rules.Rules {
	l := n.Layout()
	return rules.Rules{
		Owner: owner, Mode: rules.Transparent, Addresses: l.Addresses, Services: l.Services,
		Port: l.Port, Admin: l.Admin,
	}
}

func (n node) apply(b intercept.Backend, r rules.Rules) (changed bool) {
	n.t.Helper()
	changed, err := b.Apply(n.t.Context(), r)
	if err != nil {
		n.t.Fatalf("applying rules by %s: %v", b, err)
	}
	return changed
}

func (n node) prepare(b intercept.Backend, r rules.Rules) {
	n.t.Helper()
	if err := b.Prepare(n.t.Context(), r); err != nil {
		n.t.Fatalf("preparing leases by %s: %v", b, err)
	}
}

func (n node) renew(b intercept.Backend, keys []netip.Addr, d time.Duration) {
	n.t.Helper()
	if err := b.Renew(n.t.Context(), keys, d); err != nil {
		n.t.Fatalf("renewing leases by %s: %v", b, err)
	}
}

func (n node) release(b intercept.Backend, keys []netip.Addr, drain time.Duration) {
	n.t.Helper()
	if err := b.Release(n.t.Context(), keys, drain); err != nil {
		n.t.Fatalf("releasing leases by %s: %v", b, err)
	}
}

func (n node) state(b intercept.Backend) rules.State {
	n.t.Helper()
	s, err := b.State(n.t.Context())
	if err != nil {
		n.t.Fatalf("reading the state by %s: %v", b, err)
	}
	return s
}

// queries are all ways to ask at the addresses: both clients, UDP and TCP.
func (n node) queries(addrs []netip.Addr) []Query {
	all := make([]Query, 0, 4*len(addrs))
	for _, a := range addrs {
		for _, from := range []Client{Pod, Host} {
			for _, network := range []string{"udp", "tcp"} {
				all = append(all, Query{From: from, Network: network, To: netip.AddrPortFrom(a, n.Layout().Port)})
			}
		}
	}
	return all
}

// marked are all ways in which an agent asks there.
func (n node) marked(addrs []netip.Addr) []Query {
	all := slices.DeleteFunc(n.queries(addrs), func(q Query) bool { return q.From != Host })
	for i := range all {
		all[i].Marked = true
	}
	return all
}

func (n node) ask(q Query) string {
	n.t.Helper()
	c := n.Dial(n.t, q)
	defer c.Close()
	return c.Ask()
}

// dial is Dial for the length of the test.
func (n node) dial(q Query) Conn {
	n.t.Helper()
	c := n.Dial(n.t, q)
	n.t.Cleanup(c.Close)
	return c
}

// expect asks each query a few times from new ports; each answer must come from who.
func (n node) expect(when string, queries []Query, who string) {
	n.t.Helper()
	for _, q := range queries {
		for range 3 {
			if got := n.ask(q); got != who {
				n.t.Errorf("%s: %s: %s answered, want %s", when, q, got, who)
				break
			}
		}
	}
}

// expectFallback asks each query from new ports: those fallbacks of its family must
// answer, each of them at least once and nobody else.
func (n node) expectFallback(when string, queries []Query, list []netip.AddrPort) {
	n.t.Helper()
	for _, q := range queries {
		want := n.fallbacks(q, list)
		seen := map[string]bool{}
		for range 40 { // one of two is missed by 39 fair draws once in 10^11 runs
			got := n.ask(q)
			if !slices.Contains(want, got) {
				n.t.Errorf("%s: %s: %s answered, want one of %s", when, q, got, strings.Join(want, ", "))
				break
			}
			if seen[got] = true; len(seen) == len(want) {
				break
			}
		}
		if len(seen) != len(want) {
			n.t.Errorf("%s: %s: only %v of %v answered", when, q, seen, want)
		}
	}
}

// fallbacks are the names of those in list that a query of q's family may meet.
func (n node) fallbacks(q Query, list []netip.AddrPort) []string {
	var names []string
	for i, f := range n.Layout().Fallbacks {
		if slices.Contains(list, f) && f.Addr().Is6() == q.To.Addr().Is6() {
			names = append(names, Fallback(i))
		}
	}
	return names
}

// untracked checks that no query to the addresses has a tracked connection.
func (n node) untracked(when string, addrs []netip.Addr) {
	n.t.Helper()
	for _, a := range addrs {
		if got := n.Tracked(n.t, netip.AddrPortFrom(a, n.Layout().Port)); got != 0 {
			n.t.Errorf("%s: %d tracked connections of queries to %s, want none", when, got, a)
		}
	}
}

// await lets the time pass until the condition holds.
func (n node) await(what string, condition func() bool) {
	n.t.Helper()
	for range patience / moment {
		if condition() {
			return
		}
		n.Elapse(moment)
	}
	n.t.Fatalf("after %s: not %s", patience, what)
}

// family are those of addrs that are IPv6, or IPv4.
func family(addrs []netip.Addr, v6 bool) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return a.Is6() != v6 })
}

// only are the endpoints of one family.
func only(list []netip.AddrPort, v6 bool) []netip.AddrPort {
	return slices.DeleteFunc(slices.Clone(list), func(a netip.AddrPort) bool { return a.Addr().Is6() != v6 })
}
