// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

const (
	waitLimit    = 10 * time.Second      // for an expected change
	pollInterval = 50 * time.Millisecond // between two checks
)

// A nodeHarness is a Node under test.
type nodeHarness struct {
	Node
	Layout        // of the Node
	cilium   bool // AddCilium was called
	excluded bool // the agent intercepts the Services, see rules.Rules.Excluded
	t        *testing.T
}

// agent opens a backend. The test closes it in a cleanup.
func (n nodeHarness) agent() intercept.Backend {
	n.t.Helper()
	b := n.Open(n.t)
	n.t.Cleanup(func() { n.close(b) })
	return b
}

// ruled is an agent with rules that have a fallback, which holds no lease.
func (n nodeHarness) ruled() intercept.Backend {
	n.t.Helper()
	b := n.agent()
	n.apply(b, n.fallingBack("first"))
	return b
}

// leased is an agent that holds its leases for a minute.
func (n nodeHarness) leased() intercept.Backend {
	n.t.Helper()
	b := n.ruled()
	n.renew(b, n.asked(), time.Minute)
	return b
}

func (n nodeHarness) close(b intercept.Backend) {
	n.t.Helper()
	if err := b.Close(); err != nil {
		n.t.Errorf("closing backend %s: %v", b, err)
	}
}

// fallingBack returns rules with all fallbacks: link-local ones, or those for an excluded Service.
func (n nodeHarness) fallingBack(owner string) rules.Rules {
	r := rules.Rules{
		Owner: owner, Mode: rules.LinkLocal, Addresses: n.Addresses,
		Port: n.Port, Admin: n.Admin, Fallback: n.Fallbacks, Track: n.cilium, MarkHost: n.cilium,
	}
	if n.excluded {
		r.Mode, r.Services, r.Excluded, r.Track = rules.Transparent, n.Services, true, true
	}
	return r
}

// asked returns the addresses that clients query.
func (n nodeHarness) asked() []netip.Addr {
	if n.excluded {
		return n.Services
	}
	return n.Addresses
}

// direct returns the name of the server that answers there without rules.
func (n nodeHarness) direct() string {
	if n.excluded {
		return Service // on a real node there is none
	}
	return Agent
}

// rewrittenByDNAT reports whether conntrack tracks leased queries: those that iptables rewrites.
func (n nodeHarness) rewrittenByDNAT(b intercept.Backend) bool {
	return n.excluded && strings.HasPrefix(b.String(), "iptables")
}

func (n nodeHarness) transparent(owner string) rules.Rules {
	return rules.Rules{
		Owner: owner, Mode: rules.Transparent, Addresses: n.Addresses, Services: n.Services,
		Port: n.Port, Admin: n.Admin,
	}
}

func (n nodeHarness) apply(b intercept.Backend, r rules.Rules) (changed bool) {
	n.t.Helper()
	changed, err := b.Apply(n.t.Context(), r)
	if err != nil {
		n.t.Fatalf("applying rules by %s: %v", b, err)
	}
	return changed
}

func (n nodeHarness) prepare(b intercept.Backend, r rules.Rules) {
	n.t.Helper()
	if err := b.Prepare(n.t.Context(), r); err != nil {
		n.t.Fatalf("preparing leases by %s: %v", b, err)
	}
}

func (n nodeHarness) renew(b intercept.Backend, keys []netip.Addr, d time.Duration) {
	n.t.Helper()
	if err := b.Renew(n.t.Context(), keys, d); err != nil {
		n.t.Fatalf("renewing leases by %s: %v", b, err)
	}
}

func (n nodeHarness) release(b intercept.Backend, keys []netip.Addr, drain time.Duration) {
	n.t.Helper()
	if err := b.Release(n.t.Context(), keys, drain); err != nil {
		n.t.Fatalf("releasing leases by %s: %v", b, err)
	}
}

func (n nodeHarness) state(b intercept.Backend) rules.State {
	n.t.Helper()
	s, err := b.State(n.t.Context())
	if err != nil {
		n.t.Fatalf("reading the state by %s: %v", b, err)
	}
	return s
}

// queries returns all queries to the addresses: of both clients, over UDP and TCP.
func (n nodeHarness) queries(addrs []netip.Addr) []Query {
	all := make([]Query, 0, 4*len(addrs))
	for _, a := range addrs {
		for _, from := range []Client{Pod, Host} {
			for _, network := range []string{"udp", "tcp"} {
				all = append(all, Query{From: from, Network: network, To: netip.AddrPortFrom(a, n.Port)})
			}
		}
	}
	return all
}

// marked returns all self-queries of an agent to the addresses.
func (n nodeHarness) marked(addrs []netip.Addr) []Query {
	all := slices.DeleteFunc(n.queries(addrs), func(q Query) bool { return q.From != Host })
	for i := range all {
		all[i].Marked = true
	}
	return all
}

// tests returns all queries to the addresses that test the fallback.
func (n nodeHarness) tests(addrs []netip.Addr) []Query {
	all := slices.DeleteFunc(n.queries(addrs), func(q Query) bool { return q.From != Host })
	for i := range all {
		all[i].Test = true
	}
	return all
}

func (n nodeHarness) ask(q Query) string {
	n.t.Helper()
	c := n.Dial(n.t, q)
	defer c.Close()
	return c.Ask()
}

// dial opens a Conn. The test closes it in a cleanup.
func (n nodeHarness) dial(q Query) Conn {
	n.t.Helper()
	c := n.Dial(n.t, q)
	n.t.Cleanup(c.Close)
	return c
}

// expect sends each query a few times from new ports. Each answer must come from server.
func (n nodeHarness) expect(when string, queries []Query, server string) {
	n.t.Helper()
	for _, q := range queries {
		for range 3 {
			if got := n.ask(q); got != server {
				n.t.Errorf("%s: %s: %s answered, want %s", when, q, got, server)
				break
			}
		}
	}
}

// expectFallback sends each query repeatedly from new ports. All fallbacks of its family in
// list must answer, and no other server.
func (n nodeHarness) expectFallback(when string, queries []Query, list []netip.AddrPort) {
	n.t.Helper()
	for _, q := range queries {
		want := n.fallbacks(q, list)
		seen := map[string]bool{}
		for range 40 { // 39 fair draws miss one of two once in 10^11 runs
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

// fallbacks returns the names of the fallbacks in list that may answer q.
func (n nodeHarness) fallbacks(q Query, list []netip.AddrPort) []string {
	var names []string
	for i, f := range n.Fallbacks {
		if slices.Contains(list, f) && f.Addr().Is6() == q.To.Addr().Is6() {
			names = append(names, Fallback(i))
		}
	}
	return names
}

// untracked checks that conntrack has no entry for queries to the addresses.
func (n nodeHarness) untracked(when string, addrs []netip.Addr) {
	n.t.Helper()
	for _, a := range addrs {
		assert.Equal(n.t, fmt.Sprintf("%s: tracked connections of queries to %s", when, a), 0, n.Tracked(n.t, netip.AddrPortFrom(a, n.Port)))
	}
}

// waitFor lets time pass until the condition is true.
func (n nodeHarness) waitFor(what string, condition func() bool) {
	n.t.Helper()
	for range waitLimit / pollInterval {
		if condition() {
			return
		}
		n.Elapse(pollInterval)
	}
	n.t.Fatalf("after %s: not %s", waitLimit, what)
}

// family returns the IPv6 addresses in addrs, or else the IPv4 ones.
func family(addrs []netip.Addr, v6 bool) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return a.Is6() != v6 })
}

// ofFamily returns the endpoints of one family.
func ofFamily(list []netip.AddrPort, v6 bool) []netip.AddrPort {
	return slices.DeleteFunc(slices.Clone(list), func(a netip.AddrPort) bool { return a.Addr().Is6() != v6 })
}
