// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"time"

	"github.com/nodecache/node-cache/pkg/pods"
)

// Top is what the pods of the node have asked.
type Top struct {
	Stale   bool      `json:"stale"`   // the pods were not confirmed for cluster.staleAfter
	Pods    []TopRow  `json:"pods"`    // in order of namespace and name
	Unknown TopCounts `json:"unknown"` // of clients without a pod
}

// TopRow is one pod.
type TopRow struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Workload  string `json:"workload"` // its controller, such as Deployment/web; empty: none
	TopCounts
}

// TopCounts are counts of queries since the agent knows the pod.
type TopCounts struct {
	Queries  uint64 `json:"queries"`
	Upstream uint64 `json:"upstream"` // answered by an upstream, not from memory
	NXDomain uint64 `json:"nxdomain"`
	Search   uint64 `json:"search"` // NXDOMAIN of names in the cluster domain: most are a name with a search suffix
	Failed   uint64 `json:"failed"` // SERVFAIL
	Shed     uint64 `json:"shed"`   // a limit was reached
}

// TopPage returns the handler of /top. current returns the pods in use; nil: they are not known.
func TopPage(current func() *pods.Index) func() (any, error) {
	return func() (any, error) {
		if page := TopOf(current()); page != nil {
			return page, nil
		}
		return nil, errors.New("the pods of the node are not known\nhint: set pods.identity: api")
	}
}

// TopOf returns nil if index is.
func TopOf(index *pods.Index) *Top {
	if index == nil {
		return nil
	}
	rows, unknown, stale := index.Usage(time.Now())
	page := &Top{Stale: stale, Pods: make([]TopRow, 0, len(rows)), Unknown: topCounts(&unknown)}
	for i := range rows {
		r := &rows[i]
		page.Pods = append(page.Pods, TopRow{r.Namespace, r.Name, r.Workload, topCounts(&r.Counts)})
	}
	return page
}

func topCounts(c *pods.Counts) TopCounts {
	return TopCounts{
		Queries: c.Queries(), Upstream: c[pods.FromUpstream], NXDomain: c[pods.Denied], Search: c[pods.Searched],
		Failed: c[pods.Failed], Shed: c[pods.Shed],
	}
}
