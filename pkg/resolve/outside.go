// SPDX-License-Identifier: Apache-2.0

package resolve

// The outside view answers what the node's own servers are asked, in their place: queries of the node's processes, of pods with
// dnsPolicy Default, and of the cluster's CoreDNS. It knows nothing of the cluster: no zones, hosts, rewrites, block lists or search
// paths, and it never asks the central resolver, which asks those servers itself. Cache, limits and logs are those of all queries.
//
// Its answers have keys of their own in the cache. If both views shared the answers of a route that both have, then what the cluster adds
// to a failed or blocked query would reach the other view: an in-flight query has one outcome for all who wait for it.

// NewOutsideWorker returns a worker of the outside view.
func (r *Resolver) NewOutsideWorker() *Worker { return &Worker{r: r, outside: true} }
