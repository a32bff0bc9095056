// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin"
)

// TestThrottle has a pod ask for pages without end, over as many connections as there may be: they take a tenth of a CPU, a
// probe from the pod's network waits briefly, and one from this machine does not wait.
func TestThrottle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const attack, page = 10 * time.Second, time.Millisecond
		var pages atomic.Int64
		h := server(t, func(c *admin.Config) {
			c.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				pages.Add(1)
				time.Sleep(page)
			})
		}).Handler()
		elsewhere := func(path string) *http.Request {
			r := get(path)
			r.RemoteAddr = "10.1.2.3:4567"
			return r
		}
		end := time.Now().Add(attack)
		for range admin.MaxConns - 1 {
			go func() {
				for time.Now().Before(end) {
					ask(h, elsewhere("/metrics"))
					time.Sleep(page / 10) // until the client asks again
				}
			}()
		}
		took := func(r *http.Request) time.Duration {
			began := time.Now()
			if got := ask(h, r); got.Code != http.StatusOK {
				t.Errorf("%s: %d", r.URL.Path, got.Code)
			}
			return time.Since(began)
		}
		time.Sleep(attack / 2)
		assert.Equal(t, "time of a page for a client on this machine", page, took(get("/metrics")))
		if d := took(elsewhere("/readyz")); d > 100*time.Millisecond {
			t.Errorf("a probe from elsewhere took %s, want 0.1 s at most", d)
		}
		if d := took(elsewhere("/metrics")); d > 2*time.Second {
			t.Errorf("a scrape took %s, want 2 s at most", d)
		}
		time.Sleep(time.Until(end))
		if share := time.Duration(pages.Load()) * page * 100 / attack; share > 12 || share < 9 {
			t.Errorf("pages took %d %% of a CPU, want some 10 %%", share)
		}
		synctest.Wait()
		time.Sleep(time.Minute) // the last of them end
	})
}
