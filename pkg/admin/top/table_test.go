// SPDX-License-Identifier: Apache-2.0

package top

import (
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestAdd sums the pods of two nodes, whose pages are 2 and 4 s apart. On the second one the agent has restarted.
func TestAdd(t *testing.T) {
	t.Parallel()
	page := func(web, other, unknown Counts) *Page {
		return &Page{Pods: []Row{{"shop", "web-1", "Deployment/web", web}, {"tools", "shell", "", other}}, Unknown: unknown}
	}
	table := Table{By: "workload"}
	table.Add(page(Counts{Queries: 100, Failed: 10}, Counts{}, Counts{Queries: 5}), page(Counts{Queries: 300, Failed: 60}, Counts{Queries: 2}, Counts{Queries: 9}), 2)
	restarted := page(Counts{Queries: 40, Search: 40}, Counts{}, Counts{Queries: 4})
	restarted.Stale = true
	table.Add(page(Counts{Queries: 1000, Search: 20}, Counts{}, Counts{Queries: 1000}), restarted, 4)
	assert.Same(t, "table", `The API server has not confirmed the pods recently.
QUERIES/S  UPSTREAM  NXDOMAIN  SEARCH  FAILED   SHED   LATENCY   BYTES/S  WORKLOAD
    110.0       0 %       0 %     9 %    23 %    0 %    0.0 ms         0  shop/Deployment/web
      3.0       0 %       0 %     0 %     0 %    0 %    0.0 ms         0  (no pod)
      1.0       0 %       0 %     0 %     0 %    0 %    0.0 ms         0  tools/shell
`, table.Text("queries", 20))
	assert.Equal(t, "rows", 1, len(table.Lines("queries", 1)))
	// A page that lies counts back: other nodes' queries stay.
	table.Add(page(Counts{Queries: 1, Failed: 1 << 60}, Counts{}, Counts{}), page(Counts{Queries: 1}, Counts{}, Counts{}), 1)
	assert.Equal(t, "failures per second", 25, table.Lines("failed", 1)[0].Rates["failed"])
}

// TestLatency divides by the queries, also where there is less than one a second.
func TestLatency(t *testing.T) {
	t.Parallel()
	for queries, want := range map[uint64]float64{0: 0, 1: 0.125, 32: 0.125 / 32} {
		page := func(c Counts) *Page { return &Page{Pods: []Row{{"shop", "web-1", "", c}}} }
		table := Table{By: "pod"}
		table.Add(page(Counts{}), page(Counts{Queries: queries, Waited: 0.125, Bytes: 1}), 8)
		assert.Equal(t, "average wait in seconds", want, table.Lines("bytes", 1)[0].value("latency"))
	}
}
