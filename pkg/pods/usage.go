// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"cmp"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Count is the index of a number in [Counts].
type Count uint8

// The counts. Each query adds to one of the first four.
const (
	FromMemory   Count = iota // queries answered without an upstream
	FromUpstream              // queries answered by an upstream
	Failed                    // queries answered SERVFAIL
	Shed                      // queries beyond a limit
	Denied                    // replies with NXDOMAIN
	Searched                  // NXDOMAIN for names in the cluster domain: most have a search suffix appended
	Bytes                     // bytes of all replies
	Waited                    // sum of the waiting times for replies not from memory, in microseconds
	countCount                // the number of counts
)

// Counts are the numbers of each [Count].
type Counts [countCount]uint64

// Count adds a number of equal replies. outcome is one of the first four counts, inside says that the name is in the cluster domain,
// and size is the bytes of each reply. The response code and inside decide what counts as denied and as searched.
func (c *Counts) Count(replies uint64, outcome Count, rcode int, inside bool, size int) {
	c[outcome] += replies
	c[Bytes] += replies * uint64(size) //nolint:gosec // not negative
	if rcode == wire.RcodeNXDomain {
		c[Denied] += replies
		if inside {
			c[Searched] += replies
		}
	}
}

// A Usage counts the queries of one client. Its methods are safe for concurrent use. It fills a cache line.
type Usage struct {
	each [countCount]atomic.Uint64
}

// Add adds c to the counters.
func (u *Usage) Add(c *Counts) {
	for i, n := range c {
		if n > 0 {
			u.each[i].Add(n)
		}
	}
}

// Queries returns the number of queries.
func (c *Counts) Queries() uint64 { return c[FromMemory] + c[FromUpstream] + c[Failed] + c[Shed] }

// counts returns the current values of the counters.
func (u *Usage) counts() (c Counts) {
	c.add(u)
	return c
}

// UsageOf returns the pod that has the address, which may be stale, and its counters. If the address has no pod, it returns nil and
// the counters of all clients without a pod. It allocates nothing.
func (x *Index) UsageOf(addr netip.Addr) (*Pod, *Usage) {
	if pod := (*x.byAddr.Load())[addr]; pod != nil {
		return pod, pod.usage
	}
	return nil, &x.unknown
}

// mostNamespaces bounds the namespaces that are counted separately.
const mostNamespaces = 50

// Keys in [Index.Namespaces] for all namespaces beyond mostNamespaces, and for clients without a pod. No namespace can have these names.
const (
	OtherNamespaces = "(other)"
	NoNamespace     = "(no pod)"
)

// namespaceLocked returns the counts of a namespace's ended pods, or those of OtherNamespaces if there are too many namespaces.
func (x *Index) namespaceLocked(name string) *Counts {
	if x.ended[name] == nil && len(x.ended) >= mostNamespaces {
		name = OtherNamespaces
	}
	if x.ended[name] == nil {
		x.ended[name] = new(Counts)
	}
	return x.ended[name]
}

func (c *Counts) add(u *Usage) {
	for i := range c {
		c[i] += u.each[i].Load()
	}
}

// Namespaces returns counts since the index was made, which include ended pods: of each of the first 50 namespaces, of all others, and
// of clients without a pod.
func (x *Index) Namespaces() map[string]*Counts {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := map[string]*Counts{}
	for name, c := range x.ended {
		all[name] = new(*c)
	}
	for _, p := range x.byName {
		c := all[p.Namespace]
		if c == nil {
			c = all[OtherNamespaces]
		}
		c.add(p.usage)
	}
	all[NoNamespace] = new(Counts)
	all[NoNamespace].add(&x.unknown)
	return all
}

// A Row is a pod and the counts of its queries since the index has it.
type Row struct {
	*Pod
	Counts
}

// Usage returns the pods in order of their names, the counts of clients without a pod, and whether the pods are stale.
func (x *Index) Usage(now time.Time) (rows []Row, unknown Counts, stale bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.byName {
		rows = append(rows, Row{p, p.usage.counts()})
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return rows, x.unknown.counts(), x.IsStale(now)
}
