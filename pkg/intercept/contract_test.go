// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"strings"
	"testing"
)

// runContract runs all cases in parallel, each on its own Node. Those of mode link-local run on Cilium too, and for a Service that no data
// plane serves.
func runContract(t *testing.T, open func(t *testing.T) Node) {
	t.Helper()
	t.Parallel()
	for _, c := range []struct {
		name string
		run  func(n nodeHarness)
	}{
		{"no rules", noRules},
		{"rules without a lease", notLeased},
		{"lease held", leased},
		{"lease of one address", oneLeased},
		{"lease lapsed", lapsed},
		{"lease renewed repeatedly", renewedRepeatedly},
		{"lease released", released},
		{"fallback tested", fallbackTested},
		{"session drained", drained},
		{"UDP sockets reused", socketsReused},
		{"fallback changed", fallbackChanged},
		{"fallback of one family", fallbackOfOneFamily},
		{"no fallback", noFallback},
		{"no gap while rules change", noGap},
		{"lease before rules", leaseBeforeRules},
		{"lease before rules, transparent", leaseBeforeRulesTransparent},
		{"lease before rules, other agent's rules", leaseBeforeRulesOfOther},
		{"lease before rules, released", leaseBeforeRulesReleased},
		{"transparent", transparent},
		{"transparent session drained", transparentDrained},
		{"transparent, service on a link", serviceOnLink},
		{"other servers", redirected},
		{"other servers, sessions drained", redirectedDrained},
		{"other servers, UDP sockets reused", redirectedReused},
		{"other servers, fallback changed", redirectedFallbackChanged},
		{"rules applied again", applyRepeated},
		{"state", stateRead},
		{"leases without rules", withoutRules},
		{"newer owner", newerOwner},
		{"newer owner, transparent", newerOwnerTransparent},
		{"writes cross", writesCross},
		{"agent gone", agentGone},
		{"removed", removed},
		{"flushed", flushed},
	} {
		for _, on := range []struct {
			name             string
			cilium, excluded bool
		}{{}, {name: "on Cilium, ", cilium: true}, {name: "excluded, ", excluded: true}} {
			if on.name != "" && strings.Contains(c.name, "transparent") || on.cilium && c.name == "no gap while rules change" {
				continue // the agent refuses that mode on Cilium, and answers of a removed target are lost there
			}
			t.Run(on.name+c.name, func(t *testing.T) {
				t.Parallel()
				node := open(t)
				n := nodeHarness{Node: node, Layout: node.Layout(), cilium: on.cilium, excluded: on.excluded, t: t}
				if on.cilium {
					n.AddCilium(t)
				}
				c.run(n)
			})
		}
	}
}
