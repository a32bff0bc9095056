// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync/atomic"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
)

// traffic knows what the data plane does with packets to the DNS service.
type traffic struct {
	config *config.Intercept
	found  *dataplane.Found // set by Node.Open

	// excluded means that the rules have a fallback for the service, because no data plane serves it. They keep it until the agent
	// ends: without it no server might answer.
	excluded atomic.Bool
}

// bypassed reports whether the data plane rewrites packets to the service's address before netfilter rules see them, unless the service
// is excluded.
func (t *traffic) bypassed() bool {
	return t.found.Early && t.config.Mode == config.ModeTransparent
}

// mayIntercept reports whether the rules see pods' queries, or may come to see them. Cilium cannot leave a service alone: it has a Local
// Redirect Policy instead.
func (t *traffic) mayIntercept() bool {
	return !t.bypassed() || t.found.Proxy != dataplane.Cilium && (t.config.ServiceExcluded || t.found.Proxy == dataplane.Calico)
}

// isExcluded reports whether the data plane leaves the service alone. Calico's annotation means nothing to the others.
func (t *traffic) isExcluded(now *Target) bool {
	return t.config.Mode == config.ModeTransparent && t.mayIntercept() &&
		(t.config.ServiceExcluded || now.Excluded && t.found.Proxy == dataplane.Calico)
}

// fallsBack reports whether the rules have a fallback, which gets the queries without a lease.
func (t *traffic) fallsBack() bool { return t.config.Mode == config.ModeLinkLocal || t.excluded.Load() }
