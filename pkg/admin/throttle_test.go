// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin"
)

// TestThrottle has a pod ask for pages without end, over as many connections as there may be, once itself and once through a relay on
// this host: they take a tenth of a CPU, a probe of the same kind of client waits briefly, and other kinds do not wait.
func TestThrottle(t *testing.T) {
	t.Parallel()
	local := func(path string) *http.Request { return get(path) }
	elsewhere := func(path string) *http.Request {
		r := get(path)
		r.RemoteAddr = "10.1.2.3:4567"
		return r
	}
	for name, clients := range map[string][2]func(string) *http.Request{"a pod": {elsewhere, local}, "a relay": {local, elsewhere}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			throttled(t, clients[0], clients[1])
		})
	}
}

// throttled floods the server by one kind of client, and asks it as another.
func throttled(t *testing.T, flood, other func(path string) *http.Request) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		const attack, page = 10 * time.Second, time.Millisecond
		var pages atomic.Int64
		h := server(t, func(c *admin.Config) {
			c.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				pages.Add(1)
				time.Sleep(page)
			})
		}).Handler()
		end := time.Now().Add(attack)
		for range admin.MaxConns - 1 {
			go func() {
				for time.Now().Before(end) {
					ask(h, flood("/metrics"))
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
		assert.Equal(t, "time of a page for another kind of client", page, took(other("/metrics")))
		assert.Equal(t, "time of a page over the socket", page, took(overSocket(flood("/metrics"))))
		if d := took(flood("/readyz")); d > 100*time.Millisecond {
			t.Errorf("a probe took %s, want 0.1 s at most", d)
		}
		if d := took(flood("/metrics")); d > 2*time.Second {
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

// TestPollingBrowsers has many browsers request the page each second, those of pods and more on this host, each over a connection of
// its own as long as the server keeps it. Probes and scrapes of others are served, each over a new connection.
func TestPollingBrowsers(t *testing.T) {
	t.Parallel()
	serve(t, nil, func(l *pipes) {
		const browsers, duration = 2 * admin.MaxConns, 10 * time.Second
		var polls atomic.Int64
		var all sync.WaitGroup
		end := time.Now().Add(duration)
		for i := range browsers {
			from := []string{"127.0.0.1", "10.244.0.7", "10.244.0.8"}[i%3]
			all.Go(func() {
				var c net.Conn
				for time.Now().Before(end) {
					if c == nil {
						c = l.dialFrom(from)
					}
					_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
					code := 0
					if err == nil {
						code, _, err = response(c)
					}
					if err != nil { // closed for another client
						_ = c.Close()
						c = nil
					}
					if code == http.StatusOK {
						polls.Add(1)
					}
					time.Sleep(time.Second)
				}
			})
		}
		for _, other := range []struct {
			from, path string
			limit      time.Duration
		}{
			{"127.0.0.1", "/readyz", time.Millisecond},
			{"127.0.0.1", "/metrics", time.Millisecond},
			{"10.244.0.9", "/readyz", 100 * time.Millisecond},
			{"10.244.0.9", "/metrics", 2 * time.Second},
		} {
			all.Go(func() {
				for time.Now().Before(end) {
					began := time.Now()
					c := l.dialFrom(other.from)
					code := served(l.T, c, other.path)
					if took := time.Since(began); code != http.StatusOK || took > other.limit {
						l.Errorf("%s from %s: %d after %s, want 200 within %s", other.path, other.from, code, took, other.limit)
					}
					_ = c.Close()
					time.Sleep(time.Second)
				}
			})
		}
		all.Wait()
		if got := polls.Load(); got < browsers*2 {
			l.Errorf("%d pages for %d browsers in %s", got, browsers, duration)
		}
		l.Logf("%d pages, %+v", polls.Load(), l.server.Stats())
	})
}
