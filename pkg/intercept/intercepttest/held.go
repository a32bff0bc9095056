// SPDX-License-Identifier: Apache-2.0

package intercepttest

import (
	"net/netip"
	"time"
)

func noRules(n harness) {
	l := n.Layout()
	n.expect("without rules", n.queries(l.Addresses), Agent)
	n.expect("without rules", n.queries(l.Services), Service)
}

func notLeased(n harness) {
	l := n.Layout()
	n.apply(n.agent(), n.linkLocal("first"))
	n.expectFallback("not leased", n.queries(l.Addresses), l.Fallbacks)
	n.expect("not leased", n.marked(l.Addresses), Agent)
	n.expect("not leased", n.queries(l.Services), Service)
}

func leased(n harness) {
	l := n.Layout()
	b := n.agent()
	n.apply(b, n.linkLocal("first"))
	n.renew(b, l.Addresses, time.Minute)
	n.expect("leased", n.queries(l.Addresses), Agent)
	n.expect("leased", n.marked(l.Addresses), Agent)
	n.untracked("leased", l.Addresses)
	n.expect("leased", n.queries(l.Services), Service)
	for _, a := range l.Addresses {
		for _, from := range []Client{Pod, Host} {
			q := Query{From: from, Network: "tcp", To: netip.AddrPortFrom(a, l.Admin)}
			n.expect("leased", []Query{q}, Admin)
		}
		if got := n.Tracked(n.t, netip.AddrPortFrom(a, l.Admin)); got != 0 {
			n.t.Errorf("%d tracked connections to the admin port of %s, want none", got, a)
		}
	}
}

func oneLeased(n harness) {
	l := n.Layout()
	b := n.agent()
	n.apply(b, n.linkLocal("first"))
	for _, v6 := range []bool{false, true} {
		n.renew(b, family(l.Addresses, v6), time.Minute)
		n.expect("its family leased", n.queries(family(l.Addresses, v6)), Agent)
		n.expectFallback("the other family leased", n.queries(family(l.Addresses, !v6)), l.Fallbacks)
		n.release(b, family(l.Addresses, v6), 0)
	}
}

func lapsed(n harness) {
	l := n.Layout()
	b := n.agent()
	n.apply(b, n.linkLocal("first"))
	n.renew(b, l.Addresses, l.Lease)
	n.expect("leased", n.queries(l.Addresses)[:1], Agent)
	n.waitFor("without a lease", func() bool { return n.ask(n.queries(l.Addresses)[0]) != Agent })
	n.waitFor("without any lease", func() bool { return len(n.state(b).Leases) == 0 })
	n.expectFallback("lapsed", n.queries(l.Addresses), l.Fallbacks)
	n.renew(b, l.Addresses, time.Minute) // of leases that have ended
	n.expect("leased again", n.queries(l.Addresses), Agent)
	n.renew(b, l.Addresses, l.Lease) // shorter than before: the last renewal counts
	n.waitFor("without a lease", func() bool { return n.ask(n.queries(l.Addresses)[0]) != Agent })
}

func released(n harness) {
	l := n.Layout()
	b := n.agent()
	n.apply(b, n.linkLocal("first"))
	n.renew(b, l.Addresses, time.Minute)
	n.release(b, l.Addresses, 0)
	n.expectFallback("released", n.queries(l.Addresses), l.Fallbacks)
	n.release(b, l.Addresses, time.Second) // leases that are not held
	n.expectFallback("released twice", n.queries(l.Addresses), l.Fallbacks)
	n.renew(b, l.Addresses, time.Minute)
	n.expect("leased again", n.queries(l.Addresses), Agent)
}

func transparent(n harness) {
	l := n.Layout()
	b := n.agent()
	n.apply(b, n.transparent("first"))
	n.expect("not leased", n.queries(l.Services), Service)
	n.expect("not leased", n.marked(l.Services), Service)
	n.expect("not leased", n.marked(l.Addresses), Agent)
	n.renew(b, l.Services, time.Minute)
	n.expect("leased", n.queries(l.Services), Agent)
	n.expect("leased", n.marked(l.Services), Service)
	n.expect("leased", n.marked(l.Addresses), Agent)
	n.release(b, l.Services, 0)
	n.expect("released", n.queries(l.Services), Service)
	n.renew(b, l.Services, l.Lease)
	n.expect("leased again", n.queries(l.Services)[:1], Agent)
	n.waitFor("without a lease", func() bool { return n.ask(n.queries(l.Services)[0]) == Service })
	n.waitFor("without any lease", func() bool { return len(n.state(b).Leases) == 0 })
	n.expect("lapsed", n.queries(l.Services), Service)
}

// renewedRepeatedly renews leases while clients query: no query reaches a fallback.
func renewedRepeatedly(n harness) {
	l := n.Layout()
	b := n.agent()
	n.apply(b, n.linkLocal("first"))
	n.renew(b, l.Addresses, time.Minute)
	stop := n.queryLoop(n.queries(l.Addresses), func(Query) []string { return []string{Agent} })
	defer stop()
	for range 500 {
		n.renew(b, l.Addresses, time.Minute)
		n.Elapse(2 * time.Millisecond)
	}
	n.t.Logf("%d queries during 500 renewals", stop())
	n.untracked("leased", l.Addresses)
}

// serviceOnLink puts the Service's addresses on a link of the node, as kube-proxy with IPVS
// does.
func serviceOnLink(n harness) {
	l := n.Layout()
	b := n.agent()
	n.AddToLink(n.t, l.Services)
	n.apply(b, n.transparent("first"))
	n.renew(b, l.Services, time.Minute)
	n.expect("leased", n.queries(l.Services), Agent)
}
