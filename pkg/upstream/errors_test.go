// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// TestErrorState has an upstream whose answers are errors. It counts as such if they are for several names and last.
func TestErrorState(t *testing.T) {
	t.Parallel()
	refuses := upstreamtest.Action{Rcode: dns.RcodeRefused}
	for _, tt := range []struct {
		name    string
		names   int // different ones
		queries int
		pause   time.Duration
		want    upstream.State
		after   upstream.State // after half a minute and one more error
	}{
		{"all names for long", 5, 20, 250 * time.Millisecond, upstream.StateErrors, upstream.StateErrors},
		{"one broken name", 1, 40, 250 * time.Millisecond, upstream.StateGood, upstream.StateGood},
		{"too few answers", 5, 4, time.Second, upstream.StateGood, upstream.StateGood},
		{"for a moment", 5, 20, 10 * time.Millisecond, upstream.StateGood, upstream.StateErrors},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := upstreamtest.New(upstreamtest.Always(refuses))
				p := newPool(t, upstream.Config{
					Targets: []upstream.Target{target("udp", addrA)}, Dial: upstreamtest.Network{addrA: a}.Dial,
				})
				run(t, p)
				for i := range tt.queries {
					_ = askName(t, p, fmt.Sprintf("n%d.example.", i%tt.names))
					time.Sleep(tt.pause)
				}
				got := p.Stats().Servers[0]
				if got.State() != tt.want {
					t.Errorf("state %s, want %s", got.State(), tt.want)
				}
				if got.State() == upstream.StateErrors && got.Cause != upstream.CauseRefused {
					t.Errorf("cause %s", got.Cause)
				}
				time.Sleep(31 * time.Second)
				if got := p.Stats().Servers[0].State(); got != upstream.StateGood {
					t.Errorf("state %s after half a minute without an answer", got)
				}
				_ = askName(t, p, "again.example.")
				if got := p.Stats().Servers[0].State(); got != tt.after {
					t.Errorf("state %s after one more error, want %s", got, tt.after)
				}
				a.SetScript(healthy("192.0.2.10"))
				ask(t, p)
				if got := p.Stats().Servers[0].State(); got != upstream.StateGood {
					t.Errorf("state %s after a good answer", got)
				}
			})
		})
	}
}
