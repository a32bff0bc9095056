// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// A late query is hedged, long before its timeout.
func TestHedge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		tr := newThreeServers(t, upstream.Sequential, after(20*ms, one("192.0.2.10")), after(3*ms, one("192.0.2.20")))
		tr.asked(t, 100)
		if n := len(tr.servers[1].Queries()); n > 0 {
			t.Fatalf("%d queries to the second, want none while the first is as always", n)
		}
		tr.servers[0].SetScript(upstreamtest.Sequence(upstreamtest.Action{Drop: true}, after(20*ms, one("192.0.2.10"))))
		start := time.Now()
		if got := ask(t, tr.pool); got != "192.0.2.20" {
			t.Errorf("answer %q, want that of the second", got)
		}
		if took := time.Since(start); took < 20*ms || took > 30*ms {
			t.Errorf("it took %v, want 3 ms more than what is usual with the first", took)
		}
		s := tr.pool.Stats().Servers
		if s[0].Hedged != 1 || s[1].Won != 1 || s[0].Failing {
			t.Errorf("hedged %d, won %d, failing %v, want one each and no blame", s[0].Hedged, s[1].Won, s[0].Failing)
		}
		if got, want := tr.asked(t, 3), "A A A"; got != want {
			t.Errorf("asked %q afterwards, want %q", got, want)
		}
	})
}

// A hedge goes only to a better upstream: not to the last resort, and not to the late one.
func TestHedgeLoadOnOthers(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	t.Run("the last resort", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			h := newHarness()
			p := h.pool(t, endpoints(list(addrA), list(addrL)))
			during(t, p, time.Second)
			h.a.SetScript(upstreamtest.Always(after(100*ms, one("192.0.2.10"))))
			if got := ask(t, p); got != "192.0.2.10" || len(h.l.Queries()) > 0 {
				t.Errorf("answer %q, %d queries to the last resort, want none before the timeout", got, len(h.l.Queries()))
			}
		})
	})
	t.Run("an upstream that was asked already", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			tr := newThreeServers(t, upstream.Random, after(6*ms, one("192.0.2.10")), after(6*ms, one("192.0.2.20")))
			tr.asked(t, 100)
			for _, s := range tr.servers {
				s.SetScript(upstreamtest.Always(after(100*ms, one("192.0.2.30"))))
			}
			if got := tr.asked(t, 1); got != "AB" {
				t.Errorf("asked %q, want each once", got)
			}
		})
	})
}
