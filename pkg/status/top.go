// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"time"

	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/top"
)

// TopPage returns the handler of /top. current returns the pods in use; nil: they are not known.
func TopPage(current func() *pods.Index) func() (any, error) {
	return func() (any, error) {
		index := current()
		if index == nil {
			return nil, errors.New("the pods of the node are not known\nhint: set pods.identity: api")
		}
		rows, unknown, stale := index.Usage(time.Now())
		page := &top.Page{Stale: stale, Pods: make([]top.Row, 0, len(rows)), Unknown: topCounts(&unknown)}
		for i := range rows {
			r := &rows[i]
			page.Pods = append(page.Pods, top.Row{Namespace: r.Namespace, Pod: r.Name, Workload: r.Workload, Counts: topCounts(&r.Counts)})
		}
		return page, nil
	}
}

func topCounts(c *pods.Counts) top.Counts {
	return top.Counts{
		Queries: c.Queries(), Upstream: c[pods.FromUpstream], NXDomain: c[pods.Denied], Search: c[pods.Searched],
		Failed: c[pods.Failed], Shed: c[pods.Shed],
	}
}
