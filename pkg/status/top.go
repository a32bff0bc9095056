// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"time"

	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Top is what the pods of the node have asked.
type Top struct {
	Stale   bool      `json:"stale"`           // the pods were not confirmed for cluster.staleAfter
	Pods    []TopRow  `json:"pods"`            // in order of namespace and name
	Unknown TopCounts `json:"unknown"`         // of clients without a pod
	Names   []TopName `json:"names,omitempty"` // at most 2,048, those with the most queries first; only with by=name
}

// TopRow is one pod.
type TopRow struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Workload  string `json:"workload"` // its controller, such as Deployment/web; empty: none
	TopCounts
}

// TopName is one name.
type TopName struct {
	Name string `json:"name"` // with a final dot
	TopCounts
}

// TopCounts are counts of queries since the agent knows the pod, or counts the name.
type TopCounts struct {
	Queries  uint64 `json:"queries"`
	Upstream uint64 `json:"upstream"` // answered by an upstream, not from memory
	NXDomain uint64 `json:"nxdomain"`
	Search   uint64 `json:"search"`    // NXDOMAIN of names in the cluster domain: most are a name with a search suffix
	Failed   uint64 `json:"failed"`    // SERVFAIL
	Shed     uint64 `json:"shed"`      // a limit was reached
	Bytes    uint64 `json:"bytes"`     // of the replies
	WaitedUS uint64 `json:"waited_us"` // microseconds until the replies, which is 0 for those from memory
}

// TopPage returns the handler of /top. current returns the pods in use; nil: they are not known.
func TopPage(current func() *pods.Index) func(by string) (any, error) {
	return func(by string) (any, error) {
		index := current()
		switch {
		case index == nil:
			return nil, errNoPods
		case by != "" && by != "pod" && by != "name":
			return nil, fmt.Errorf("by %q: neither pod nor name", by)
		}
		rows, unknown, stale := index.Usage(time.Now())
		page := &Top{Stale: stale, Pods: make([]TopRow, 0, len(rows)), Unknown: topCounts(&unknown)}
		for i := range rows {
			r := &rows[i]
			page.Pods = append(page.Pods, TopRow{r.Namespace, r.Name, r.Workload, topCounts(&r.Counts)})
		}
		if by == "name" {
			for _, r := range index.Names() {
				page.Names = append(page.Names, TopName{string(wire.AppendText(nil, r.Name)), topCounts(&r.Counts)})
			}
		}
		return page, nil
	}
}

// errNoPods is the error of pages that need the pods of the node.
var errNoPods = errors.New("the pods of the node are not known\nhint: set pods.identity: api")

func topCounts(c *pods.Counts) TopCounts {
	return TopCounts{
		Queries: c.Queries(), Upstream: c[pods.FromUpstream], NXDomain: c[pods.Denied], Search: c[pods.Searched],
		Failed: c[pods.Failed], Shed: c[pods.Shed], Bytes: c[pods.Bytes], WaitedUS: c[pods.Waited],
	}
}
