// SPDX-License-Identifier: Apache-2.0

package intercepttest

import "testing"

// Test runs all cases, each in a World of its own and in parallel.
func Test(t *testing.T, open func(t *testing.T) World) {
	t.Helper()
	t.Parallel()
	for _, c := range []struct {
		name string
		run  func(n node)
	}{
		{"no rules", noRules},
		{"rules without a lease", notLeased},
		{"lease held", leased},
		{"lease of one address", oneLeased},
		{"lease lapsed", lapsed},
		{"lease released", released},
		{"session drained", drained},
		{"one socket through it all", oneSocket},
		{"fallback changed", fallbackChanged},
		{"fallback of one family", fallbackOfOneFamily},
		{"no fallback", noFallback},
		{"no gap while rules change", noGap},
		{"lease before rules", leaseFirst},
		{"lease before rules, transparent", leaseFirstTransparent},
		{"lease before rules, another's", leaseFirstAnothers},
		{"lease before rules, given up", leaseFirstReleased},
		{"transparent", transparent},
		{"transparent session drained", transparentDrained},
		{"rules applied again", appliedAgain},
		{"state", stateRead},
		{"leases without rules", withoutRules},
		{"newer owner", newerOwner},
		{"newer owner, transparent", newerOwnerTransparent},
		{"owners cross", crossed},
		{"agent gone", agentGone},
		{"removed", removed},
		{"flushed", flushed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(node{World: open(t), t: t})
		})
	}
}
