// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// outages returns the timeline without the panics of other tests, which are counted for the whole process, and without notices.
func outages(s *status.Status) []status.TimelineEntry {
	return slices.DeleteFunc(slices.Clone(s.Timeline), func(e status.TimelineEntry) bool {
		return e.Reason == status.Panicked || e.Reason.IsNotice()
	})
}

// TestOutage has both upstreams fail and recover. Status, log, metrics and page report it, and afterwards still whom it hit.
func TestOutage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		fault  upstreamtest.Action
		reason status.Reason // of each upstream
		state  string
	}{
		{"they refuse", upstreamtest.Action{Rcode: dns.RcodeRefused}, status.UpstreamErrors, "errors (refused)"},
		{"they are silent", upstreamtest.Action{Drop: true}, status.UpstreamDown, "down (timeout)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			good := func(q upstreamtest.Query) upstreamtest.Action {
				return upstreamtest.Action{Records: []string{q.Name + " 1 IN A 192.0.2.1"}}
			}
			one, two := upstreamtest.New(good), upstreamtest.New(good)
			addr := one.Listen(t)
			cfg := local(t, addr)
			cfg.Forward[0].To = append(cfg.Forward[0].To, config.Target{Kind: config.Plain, Addr: two.Listen(t)})
			var log journal
			a, _ := start(t, agent.Options{Config: &cfg, Log: &log})
			if r := ask(t, a, "udp", "www.test."); r.Rcode != dns.RcodeSuccess {
				t.Fatalf("before: %v", r)
			}
			for _, s := range []*upstreamtest.Server{one, two} {
				s.SetScript(upstreamtest.Always(tt.fault))
			}
			asked := 0
			var s status.Status
			proctest.Eventually(t, time.Minute, "no line says that the route is down", func() bool {
				asked++
				_ = ask(t, a, "udp", fmt.Sprintf("n%d.test.", asked)) // of each name once: no cached failure
				s = statusOf(t, a)
				list := outages(&s)
				return strings.Contains(log.String(), `"reason":"RouteDown"`) && len(s.Problems) == 3 && len(list) == 3 && list[2].Failed > 0
			})
			if p := s.Problems; p[0].Reason != status.RouteDown || p[0].Where != "forward ." || strings.Count(p[0].What, tt.state) != 2 || p[1].Reason != tt.reason || p[2].Reason != tt.reason {
				t.Errorf("problems: %+v", p)
			}
			_, series := page(t, a, "/metrics")
			if !holds(series, []string{`nodecache_problems{reason="RouteDown"} 1`, fmt.Sprintf(`nodecache_problems{reason=%q} 2`, tt.reason)}) {
				t.Errorf("metrics have no problem")
			}
			_, front := page(t, a, "/")
			if !holds(front, []string{"<title>! ", "forward .: no upstream gives a good answer: udp://" + addr.String(), " queries failed"}) || holds(front, []string{"127.0.0.1 ("}) {
				t.Errorf("the page has no verdict, or names clients without the token:\n%s", front)
			}
			for _, s := range []*upstreamtest.Server{one, two} {
				s.SetScript(good)
			}
			proctest.Eventually(t, time.Minute, "the timeline does not say that it ended", func() bool {
				asked++
				_ = ask(t, a, "udp", fmt.Sprintf("n%d.test.", asked)) // enough queries that each upstream is asked
				s = a.Status()
				list := outages(&s)
				return len(s.Problems) == 0 && len(list) == 3 && list[0].Until != "" && list[2].Until != ""
			})
			for _, e := range outages(&s) {
				if e.Failed == 0 || len(e.Clients) != 1 || e.Clients[0].Client != "127.0.0.1" || !strings.HasPrefix(e.Clients[0].Name, "n") {
					t.Errorf("%s: %d failed queries of %v, want those of this client", e.Reason, e.Failed, e.Clients)
				}
			}
			for _, e := range statusOf(t, a).Timeline {
				if len(e.Clients) > 0 {
					t.Errorf("%s: clients are named without the token", e.Reason)
				}
			}
		})
	}
}
