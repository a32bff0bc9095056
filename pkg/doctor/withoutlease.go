// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/intercept"
)

// testFallback tests the fallback of each lease, as an agent does all the time. It needs rules in the kernel.
func (f *Facts) testFallback(ctx context.Context, c *Config) {
	if !c.Intercept || len(f.Backends) == 0 || len(f.Missing) > 0 || c.Domain == "" {
		return
	}
	r := c.Rules
	for _, h := range f.Backends {
		r.Fallback = append(r.Fallback, h.Fallback...)
	}
	slices.SortFunc(r.Fallback, netip.AddrPort.Compare)
	r.Fallback = slices.Compact(r.Fallback)
	tester := intercept.Tester{Domain: c.Domain}
	f.WithoutLease = map[netip.Addr]intercept.FallbackResult{}
	for _, l := range r.Leases() {
		if part := r.Family(l.Key.Is6()); !r.FallsBack() || len(part.Fallback) > 0 { // else another line says that there is none
			f.WithoutLease[l.Key] = tester.Test(ctx, &r, l)
		}
	}
}

// checkWithoutLease checks where packets past the lease go. Those of the node are all that can be sent so: what pods' packets need
// besides is not tested.
func checkWithoutLease(e *checker) {
	for _, l := range e.keys() {
		got, tested := e.WithoutLease[l.Key]
		if !tested {
			continue
		}
		doubts := strings.Join(e.DataPlane.Unproven(), "; ")
		e.add("fallback "+l.Key.String(),
			row{got.State == intercept.FallbackBroken, Fail, got.Why, "see docs/runbooks/NodeCacheFallbackBroken.md: pods get no answers without the agent, or not all"},
			row{got.State == intercept.FallbackUnverified, Warn, "not verified: " + got.Why, "make the fallback a DNS server of the cluster"},
			row{doubts != "", Skip, "the fallback answers the node; not verified for pods: " + doubts, "to verify it, stop the agent of one node and query from its pods"},
			row{true, OK, "the fallback answers", ""})
	}
}
