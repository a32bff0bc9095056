// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"errors"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

func newerOwner(n nodeHarness) {
	n.takeOver(n.fallingBack, n.asked())
	n.expect("removed", n.queries(n.asked()), n.direct())
}

func newerOwnerTransparent(n nodeHarness) {
	n.takeOver(n.transparent, n.Services)
}

// takeOver lets a newer agent take over the rules of an older one, which is not notified
// and stops normally. Then the newer one stops too.
func (n nodeHarness) takeOver(of func(owner string) rules.Rules, keys []netip.Addr) {
	n.t.Helper()
	old, newer := n.Open(n.t), n.agent()
	n.apply(old, of("old"))
	n.renew(old, keys, time.Minute)
	n.apply(newer, of("newer"))
	n.expect("taken over", n.queries(keys), Agent)
	owner := n.state(old).Owner
	// If no rules outlive their agent, each agent may have its own.
	apart := owner == "" && len(of("newer").Fallback) == 0
	if owner != "newer" && !apart {
		n.t.Errorf("owner is %q, want newer", owner)
	}
	n.renew(newer, keys, time.Minute)
	n.release(old, keys, time.Second)
	n.expect("after the old agent's Release", n.queries(keys), Agent)
	if err := old.Remove(n.t.Context(), "old"); !errors.Is(err, rules.ErrOwned) && (err != nil || !apart) {
		n.t.Errorf("the old agent's Remove: %v, want ErrOwned", err)
	}
	n.expect("after the old agent's Remove", n.queries(keys), Agent)
	n.close(old)
	n.expect("the old agent gone", n.queries(keys), Agent)
	n.release(newer, keys, 0)
	if want := of("newer").Fallback; len(want) > 0 {
		n.expectFallback("released", n.queries(keys), want)
	} else {
		n.expect("released", n.queries(keys), Service)
	}
	if err := newer.Remove(n.t.Context(), "newer"); err != nil {
		n.t.Errorf("the newer agent's Remove: %v", err)
	}
}

// writesCross lets the old agent write once more after the newer one, which repairs that.
func writesCross(n nodeHarness) {
	old, newer := n.Open(n.t), n.agent()
	n.apply(old, n.fallingBack("old"))
	n.apply(newer, n.fallingBack("newer"))
	n.renew(newer, n.asked(), time.Minute)
	n.apply(old, n.fallingBack("old"))
	assert.Equal(n.t, "owner", "old", n.state(newer).Owner)
	n.expect("written by the old agent", n.queries(n.asked()), Agent)
	if !n.apply(newer, n.fallingBack("newer")) {
		n.t.Error("the newer agent's Apply changed nothing")
	}
	assert.Equal(n.t, "owner", "newer", n.state(old).Owner)
	n.renew(newer, n.asked(), time.Minute)
	n.expect("written by the newer agent", n.queries(n.asked()), Agent)
	n.close(old)
	n.expect("the old agent gone", n.queries(n.asked()), Agent)
	n.release(newer, n.asked(), 0)
	n.expectFallback("released", n.queries(n.asked()), n.Fallbacks)
}

// agentGone checks the state after SIGKILL: no process runs that could remove anything.
func agentGone(n nodeHarness) {
	b := n.Open(n.t)
	n.apply(b, n.fallingBack("gone"))
	n.renew(b, n.asked(), n.Lease)
	n.close(b)
	n.waitFor("without a lease", func() bool { return n.ask(n.queries(n.asked())[0]) != Agent })
	next := n.agent()
	n.waitFor("without any lease", func() bool { return len(n.state(next).Leases) == 0 })
	n.expectFallback("gone", n.queries(n.asked()), n.Fallbacks)
	if s := n.state(next); s.Owner != "gone" || len(s.Fallback) != len(n.Fallbacks) {
		n.t.Errorf("the next agent reads %+v, want the rules of the one that is gone", s)
	}
	n.apply(next, n.fallingBack("next"))
	n.renew(next, n.asked(), time.Minute)
	n.expect("adopted", n.queries(n.asked()), Agent)
	assert.Equal(n.t, "owner", "next", n.state(next).Owner)
}

func removed(n nodeHarness) {
	for _, r := range []rules.Rules{n.fallingBack("first"), n.transparent("first")} {
		b := n.Open(n.t)
		n.apply(b, r)
		n.remove(b, "first")
		n.close(b)
	}
	// The agent is gone, and another process cleans up.
	for _, r := range []rules.Rules{n.fallingBack("gone"), n.transparent("gone")} {
		b := n.Open(n.t)
		n.apply(b, r)
		n.close(b)
		b = n.Open(n.t)
		// A process that another test is starting may hold the closed socket for a moment.
		n.waitFor("the kernel knows that the agent is gone", func() bool { return b.Remove(n.t.Context(), "") == nil })
		n.remove(b, "")
		n.close(b)
	}
}

// remove removes the rules, twice, and checks that nothing is left.
func (n nodeHarness) remove(b intercept.Backend, owner string) {
	n.t.Helper()
	for range 2 { // the second time there is nothing
		if err := b.Remove(n.t.Context(), owner); err != nil {
			n.t.Errorf("removing the rules of %q: %v", owner, err)
		}
	}
	if s := n.state(b); s.Present || s.Owner != "" || s.Count != 0 {
		n.t.Errorf("after removing the rules of %q the state is %+v, want nothing", owner, s)
	}
	n.expect("removed", n.queries(n.Addresses), Agent)
	n.expect("removed", n.queries(n.Services), Service)
}
