// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/admin/top"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TopPage returns the handler of /top. current returns the pods in use; nil: they are not known.
func TopPage(current func() *pods.Index, recent func() *top.Recent) func(by string) (any, error) {
	return func(by string) (any, error) {
		if by == "recent" {
			return recent(), nil
		}
		if by != "" && by != "pod" && by != "name" {
			return nil, fmt.Errorf("by %q: neither pod, name nor recent", by)
		}
		if page := TopOf(current(), by == "name"); page != nil {
			return page, nil
		}
		return nil, errNoPods
	}
}

// errNoPods is the error of pages that need the pods of the node.
var errNoPods = errors.New("the pods of the node are not known\nhint: set pods.identity")

// TopOf returns what the pods have asked, also by name if names is set; nil if index is nil.
func TopOf(index *pods.Index, names bool) *top.Page {
	if index == nil {
		return nil
	}
	rows, unknown, stale := index.Usage(time.Now())
	page := &top.Page{Stale: stale, Pods: make([]top.Row, 0, len(rows)), Unknown: topCounts(&unknown)}
	for i := range rows {
		r := &rows[i]
		page.Pods = append(page.Pods, top.Row{Namespace: r.Namespace, Pod: r.Name, Workload: r.Workload, Counts: topCounts(&r.Counts)})
	}
	if names {
		for _, r := range index.Names() {
			page.Names = append(page.Names, top.Name{Name: string(wire.AppendText(nil, r.Name)), Counts: topCounts(&r.Counts)})
		}
	}
	return page
}

func topCounts(c *pods.Counts) top.Counts {
	return top.Counts{
		Queries: c.Queries(), Upstream: c[pods.FromUpstream], NXDomain: c[pods.Denied], Search: c[pods.Searched],
		Failed: c[pods.Failed], Shed: c[pods.Shed], Bytes: c[pods.Bytes], Waited: float64(c[pods.Waited]) / 1e6,
	}
}

// RecentOf returns what clients have asked in the last ten minutes. They have the names of their pods if index is not nil.
func RecentOf(index *pods.Index, r *resolve.Resolver, now time.Time) *top.Recent {
	named := func(addr netip.Addr) (client, workload string) {
		if index != nil {
			if pod, _ := index.UsageOf(addr); pod != nil {
				return pod.String(), pod.Workload
			}
		}
		return addr.String(), ""
	}
	list := func(rows []resolve.RecentRow) []top.RecentRow {
		shown := make([]top.RecentRow, 0, len(rows))
		for i := range rows {
			r := &rows[i]
			row := top.RecentRow{Queries: r.Queries, Upstream: r.Upstream, Search: r.Search, Failed: r.Failed, Slowest: *Seconds(time.Duration(r.Slowest) * time.Microsecond)}
			if r.Client.IsValid() {
				row.Client, row.Workload = named(r.Client)
			}
			if r.Name != nil {
				row.Name = string(wire.AppendText(nil, r.Name))
			}
			shown = append(shown, row)
		}
		return shown
	}
	clients, names, pairs := r.Recent()
	recent := &top.Recent{Stale: index != nil && index.IsStale(now), Clients: list(clients), Names: list(names), Pairs: list(pairs), Slow: []top.SlowReply{}}
	for _, s := range r.SlowReplies() {
		client, _ := named(s.Client)
		recent.Slow = append(recent.Slow, top.SlowReply{
			Time: s.At.UTC().Format(time.RFC3339), Took: *Seconds(s.Took), Client: client, Name: string(wire.AppendText(nil, s.Name)),
			Failed: s.Rcode == wire.RcodeServFail,
		})
	}
	return recent
}
