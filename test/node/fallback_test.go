// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/intercept"
)

// TestFallbackTested has the central DNS of one family dead before the agent starts: the agent names it, and serves as usual.
func TestFallbackTested(t *testing.T) {
	t.Parallel()
	for _, backend := range backends() {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t, options{backend: backend})
			b.centralServers[0].Pause(true)
			b.start(t)
			began := time.Now()
			var s status.Status
			proctest.Eventually(t, time.Minute, "the results are there", func() bool {
				s = status.Status{}
				if json.Unmarshal([]byte(b.adminPage(t, "/status")), &s) != nil || s.Node == nil || len(s.Node.Intercept.Leases) != 2 {
					return false
				}
				return s.Node.Intercept.Leases[0].Fallback == intercept.FallbackBroken && s.Node.Intercept.Leases[1].Fallback == intercept.FallbackWorks
			})
			proctest.Figure(t, "%s: a dead fallback is named %s after the start", backend, time.Since(began).Round(100*time.Millisecond))
			want := fmt.Sprintf("1 of 1 endpoints fail: %s:53: no reply within 2s", b.Upstream.IPv4)
			if got := s.Node.Intercept.Leases[0].FallbackWhy; got != want {
				t.Errorf("reason %q, want %q", got, want)
			}
			if len(s.Problems) != 1 || s.Problems[0].Reason != status.FallbackBroken || !strings.Contains(s.Problems[0].What, want) {
				t.Errorf("problems: %+v", s.Problems)
			}
			if page := b.adminPage(t, "/metrics"); !strings.Contains(page, `nodecache_intercept_fallback_state{family="ipv4",state="broken"} 1`) {
				t.Error("the metric does not say so")
			}
			b.askAll(t, byAgent)
		})
	}
}
