// SPDX-License-Identifier: Apache-2.0

package resolve

// The outside view answers what the node's own servers are asked, in their place: queries of the node's processes, of pods with
// dnsPolicy Default, and of the cluster's CoreDNS. It knows nothing of the cluster: no zones, hosts, rewrites, block lists or search
// paths, and it never asks the central resolver, which asks those servers itself. Cache, limits and logs are those of all queries.
//
// Its answers have keys of their own in the cache. If both views shared the answers of a route that both have, then what the cluster adds
// to a failed or blocked query would reach the other view: an in-flight query has one outcome for all who wait for it.

// compileOutside returns the plan of the outside view. It takes over what is listed here, so that a new feature of p is none of that view.
func (p *Plan) compileOutside() *Plan {
	o := &Plan{
		Cache:  p.Cache,
		Routes: p.Outside,

		UDPSize:   p.UDPSize,
		Deadline:  p.Deadline,
		Inflight:  p.Inflight,
		Waiting:   p.Waiting,
		PerClient: p.PerClient,

		FailureTTL: p.FailureTTL,
		StaleAfter: p.StaleAfter,
		Cut:        p.Cut,
		Keepalive:  p.Keepalive,

		Self:  p.Self, // for the agent's self-queries, which decide whether it gets these queries at all
		Local: p.Local,
		Loop:  p.Loop,

		QueryLog: p.QueryLog,
		Watchers: p.Watchers,
		Tap:      p.Tap,
		Pods:     p.Pods,
	}
	o.compile()
	o.outside = o
	return o
}

// latest returns the current plan of the view that p belongs to.
func (r *Resolver) latest(p *Plan) *Plan {
	now := r.plan.Load()
	if p.isOutside() {
		return now.outside
	}
	return now
}

// isOutside reports whether p is the plan of the outside view.
func (p *Plan) isOutside() bool { return p.outside == p }

// NewOutsideWorker returns a worker of the outside view.
func (r *Resolver) NewOutsideWorker() *Worker { return &Worker{r: r, outside: true} }
