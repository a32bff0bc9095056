// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
)

func noRules(n nodeHarness) {
	n.expect("without rules", n.queries(n.Addresses), Agent)
	n.expect("without rules", n.queries(n.Services), Service)
}

func notLeased(n nodeHarness) {
	n.apply(n.agent(), n.fallingBack("first"))
	n.expectFallback("not leased", n.queries(n.asked()), n.Fallbacks)
	n.expect("not leased", n.marked(n.Addresses), Agent)
	if n.excluded {
		n.expect("not leased", n.marked(n.Services), Service)
	} else {
		n.expect("not leased", n.queries(n.Services), Service)
	}
}

func leased(n nodeHarness) {
	b := n.leased()
	n.expect("leased", n.queries(n.asked()), Agent)
	n.expect("leased", n.marked(n.Addresses), Agent)
	if !n.rewrittenByDNAT(b) {
		n.untracked("leased", n.asked())
	}
	if n.excluded {
		n.expect("leased", n.marked(n.Services), Service)
	} else {
		n.expect("leased", n.queries(n.Services), Service)
	}
	for _, a := range n.Addresses {
		for _, from := range []Client{Pod, Host} {
			q := Query{From: from, Network: "tcp", To: netip.AddrPortFrom(a, n.Admin)}
			n.expect("leased", []Query{q}, Admin)
		}
		assert.Equal(n.t, fmt.Sprintf("tracked connections to the admin port of %s", a), 0, n.Tracked(n.t, netip.AddrPortFrom(a, n.Admin)))
	}
}

func oneLeased(n nodeHarness) {
	b := n.ruled()
	for _, v6 := range []bool{false, true} {
		n.renew(b, family(n.asked(), v6), time.Minute)
		n.expect("its family leased", n.queries(family(n.asked(), v6)), Agent)
		n.expectFallback("the other family leased", n.queries(family(n.asked(), !v6)), n.Fallbacks)
		n.release(b, family(n.asked(), v6), 0)
	}
}

func lapsed(n nodeHarness) {
	b := n.ruled()
	n.renew(b, n.asked(), n.Lease)
	n.expect("leased", n.queries(n.asked())[:1], Agent)
	n.waitFor("without a lease", func() bool { return n.ask(n.queries(n.asked())[0]) != Agent })
	n.waitFor("without any lease", func() bool { return len(n.state(b).Leases) == 0 })
	n.expectFallback("lapsed", n.queries(n.asked()), n.Fallbacks)
	n.renew(b, n.asked(), time.Minute) // of leases that have ended
	n.expect("leased again", n.queries(n.asked()), Agent)
	n.renew(b, n.asked(), n.Lease) // shorter than before: the last renewal counts
	n.waitFor("without a lease", func() bool { return n.ask(n.queries(n.asked())[0]) != Agent })
}

func released(n nodeHarness) {
	b := n.leased()
	n.release(b, n.asked(), 0)
	n.expectFallback("released", n.queries(n.asked()), n.Fallbacks)
	n.release(b, n.asked(), time.Second) // leases that are not held
	n.expectFallback("released twice", n.queries(n.asked()), n.Fallbacks)
	n.renew(b, n.asked(), time.Minute)
	n.expect("leased again", n.queries(n.asked()), Agent)
}

func transparent(n nodeHarness) {
	b := n.agent()
	n.apply(b, n.transparent("first"))
	n.expect("not leased", n.queries(n.Services), Service)
	n.expect("not leased", n.marked(n.Services), Service)
	n.expect("not leased", n.marked(n.Addresses), Agent)
	n.renew(b, n.Services, time.Minute)
	n.expect("leased", n.queries(n.Services), Agent)
	n.expect("leased", n.marked(n.Services), Service)
	n.expect("leased", n.marked(n.Addresses), Agent)
	n.release(b, n.Services, 0)
	n.expect("released", n.queries(n.Services), Service)
	n.renew(b, n.Services, n.Lease)
	n.expect("leased again", n.queries(n.Services)[:1], Agent)
	n.waitFor("without a lease", func() bool { return n.ask(n.queries(n.Services)[0]) == Service })
	n.waitFor("without any lease", func() bool { return len(n.state(b).Leases) == 0 })
	n.expect("lapsed", n.queries(n.Services), Service)
}

// renewedRepeatedly renews leases while clients query: no query reaches a fallback.
func renewedRepeatedly(n nodeHarness) {
	b := n.leased()
	stop := n.queryLoop(n.queries(n.asked()), func(Query) []string { return []string{Agent} })
	defer stop()
	for range 500 {
		n.renew(b, n.asked(), time.Minute)
		n.Elapse(2 * time.Millisecond)
	}
	n.t.Logf("%d queries during 500 renewals", stop())
	if !n.rewrittenByDNAT(b) {
		n.untracked("leased", n.asked())
	}
}

// serviceOnLink puts the Service's addresses on a link of the node, as kube-proxy with IPVS
// does.
func serviceOnLink(n nodeHarness) {
	b := n.agent()
	n.AddToLink(n.t, n.Services)
	n.apply(b, n.transparent("first"))
	n.renew(b, n.Services, time.Minute)
	n.expect("leased", n.queries(n.Services), Agent)
}

// fallbackTested sends tests of the fallback. They always go there, and change nothing for other queries.
func fallbackTested(n nodeHarness) {
	b := n.ruled()
	n.expectFallback("not leased", n.tests(n.asked()), n.Fallbacks)
	n.renew(b, n.asked(), time.Minute)
	n.expectFallback("leased", n.tests(n.asked()), n.Fallbacks)
	n.expect("leased, tested", n.queries(n.asked()), Agent)
	n.expect("leased, tested", n.marked(n.Addresses), Agent)
	session := n.dial(Query{From: Host, Network: "tcp", To: netip.AddrPortFrom(n.asked()[0], n.Port), Test: true})
	first := session.Ask()
	n.MarkArriving(n.t)
	marked := n.queries(n.asked())
	for i := range marked {
		marked[i].Test = marked[i].From == Pod
	}
	n.expect("leased, pods' packets marked", marked, Agent)
	n.release(b, n.asked(), 0)
	n.expectFallback("released", n.tests(n.asked()), n.Fallbacks)
	assert.Equal(n.t, "server of a session that began as a test with the lease held", first, session.Ask())
	n.renew(b, n.asked(), n.Lease)
	n.waitFor("without any lease", func() bool { return len(n.state(b).Leases) == 0 })
	n.expectFallback("lapsed", n.tests(n.asked()), n.Fallbacks)
	n.expectFallback("lapsed, pods' packets marked", marked, n.Fallbacks)
	r := n.fallingBack("first")
	r.Fallback = nil
	n.apply(b, r)
	n.renew(b, n.asked(), time.Minute)
	n.expect("no fallback", n.tests(n.asked()), n.direct())
}
