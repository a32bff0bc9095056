// SPDX-License-Identifier: Apache-2.0

package subscribe_test

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/subscribe"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// watching has sessions subscribe to a name, and counts its reports in changed.
func watching(t *testing.T, name string, changed *int) func(*subscribe.Config) {
	t.Helper()
	return func(cfg *subscribe.Config) {
		cfg.Watched, cfg.Changed = wireName(t, name), func() { *changed++ }
	}
}

// TestWatched has every session subscribe to a name that no client asks for.
func TestWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newResolver(t)
		var conns []net.Conn
		changed := 0
		h := newHarness(t, func(conn net.Conn, session int) {
			conns = append(conns, conn)
			r.serve(conn, session)
		}, watching(t, web, &changed))
		time.Sleep(3 * time.Second)
		assert.Same(t, "reports after the session began", 1, changed)
		assert.Same(t, "reported", true, h.Reports())

		time.Sleep(15 * time.Minute) // as long as no other subscription without a query
		assert.Same(t, "sessions", 1, len(h.opened))
		assert.Same(t, "reports while nothing changes", 1, changed)
		reported := func(what string) { // once at least: a server may report a change twice
			t.Helper()
			if changed == 0 {
				t.Errorf("no report after %s", what)
			}
			changed = 0
		}
		for _, addr := range []string{"10.96.0.7", "10.96.0.8"} {
			changed = 0
			r.put(addr)
			time.Sleep(time.Millisecond)
			synctest.Wait()
			reported("a change")
		}

		assert.Same(t, "an answer to a client that asks for the name", "10.96.0.8", h.lookup())
		assert.Same(t, "another", "hit", h.lookup())
		_ = conns[0].Close()
		synctest.Wait()
		reported("the session has ended")
		assert.Same(t, "reported without a session", false, h.Reports())
		time.Sleep(10 * time.Second)
		reported("the next one began")
		assert.Same(t, "reported by the next one", true, h.Reports())
	})
}

// TestWatchedRefused has a server refuse the subscription: the agent must go on asking by TTL.
func TestWatchedRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		changed := 0
		h := newHarness(t, newResolver(t).serve, watching(t, "www.example.com", &changed)) // not in the zone
		time.Sleep(3 * time.Second)
		assert.Same(t, "a session", true, h.Stats().Server != "")
		assert.Same(t, "reported", false, h.Reports())
		assert.Same(t, "refused", uint64(1), h.Stats().Refused)
	})
}

// TestServerLeaves ends a session whose server is no endpoint any more, though that server goes on.
func TestServerLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newResolver(t)
		r.put("10.96.0.7")
		gone := netip.AddrPort{}
		h := newHarness(t, r.serve, func(cfg *subscribe.Config) {
			cfg.Serves = func(addr netip.AddrPort) bool { return addr != gone }
		})
		time.Sleep(3 * time.Second)
		assert.Same(t, "answer", "10.96.0.7", h.lookup())
		next := netip.MustParseAddrPort("192.0.2.2:53")
		gone = h.servers[0].Addr
		h.servers = []upstream.Server{{Addr: next}}
		time.Sleep(2100 * time.Millisecond) // until the next View
		synctest.Wait()
		if h.Stats().Server == "push://"+gone.String() {
			t.Error("the session goes on")
		}
		time.Sleep(8 * time.Second)
		assert.Same(t, "next session", "push://"+next.String(), h.Stats().Server)
	})
}
