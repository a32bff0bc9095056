// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/pkg/admin"
)

// ended reports whether the far side has closed a connection, once all goroutines are blocked.
func ended(c net.Conn) bool {
	synctest.Wait()
	_ = c.SetReadDeadline(time.Now())
	_, err := c.Read(make([]byte, 1))
	_ = c.SetReadDeadline(time.Time{})
	return err == io.EOF //nolint:errorlint // a pipe's own
}

// served asks for a page over a connection and gives the code, 0 if there is no reply.
func served(t *testing.T, c net.Conn, path string) int {
	t.Helper()
	request(t, c, path)
	code, _, _ := response(c)
	return code
}

// TestConnectionLimit fills the server with idle connections. The next client is still served: one idle connection is closed for it.
func TestConnectionLimit(t *testing.T) {
	t.Parallel()
	const pod, other, node, loopback = "10.244.0.7", "10.244.0.8", "192.0.2.53", "127.0.0.1"
	for _, tc := range []struct {
		name string
		from func(i int) string // the clients of the idle connections
		used []int              // the connections used once all are open
		next string             // the client that connects then
		want int                // the connection that is closed
	}{
		{"all from one pod: the oldest is closed", func(int) string { return pod }, nil, pod, 0},
		{"one that was used is newer", func(int) string { return pod }, []int{0, 1}, node, 2},
		{"the client with more connections before the older one", func(i int) string { return []string{other, pod}[min(i, 1)] }, nil, node, 1},
		{"a client on the node after one elsewhere", func(i int) string { return []string{node, pod}[i/100] }, nil, other, 100},
		{"loopback is on the node", func(i int) string { return []string{loopback, pod}[i/127] }, nil, other, 127},
		{"all are on the node", func(int) string { return node }, nil, pod, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			serve(t, nil, func(l *pipes) {
				var held []net.Conn
				for i := range admin.MaxConns {
					held = append(held, l.dialFrom(tc.from(i)))
				}
				for _, i := range tc.used {
					if code := served(l.T, held[i], "/livez"); code != 200 {
						l.Fatalf("connection %d: %d", i, code)
					}
				}
				if code := served(l.T, l.dialFrom(tc.next), "/readyz"); code != 200 {
					l.Errorf("the last client: %d, want 200", code)
				}
				for i, c := range held {
					if ended(c) != (i == tc.want) {
						l.Errorf("connection %d of %d: closed is %t", i, len(held), ended(c))
					}
				}
				if got := l.server.Stats().Refused; got != 1 {
					l.Errorf("%d connections refused, want 1", got)
				}
			})
		})
	}
}

// TestConnectionBeingServed has the server full of requests for pages under way, none of which is closed for another.
func TestConnectionBeingServed(t *testing.T) {
	t.Parallel()
	var leave chan struct{}
	statusWaits := func(c *admin.Config) {
		leave = make(chan struct{})
		c.Status = func(bool) any { <-leave; return "done" }
	}
	serve(t, statusWaits, func(l *pipes) {
		var working, idle []net.Conn
		for range admin.MaxPages {
			c := l.dialFrom("10.244.0.7")
			request(l.T, c, "/status")
			working = append(working, c)
		}
		for range admin.MaxConns - admin.MaxPages {
			idle = append(idle, l.dialFrom("10.244.0.8"))
		}
		synctest.Wait()
		for range 2 * admin.MaxConns {
			if code := served(l.T, l.dialFrom("10.244.0.9"), "/readyz"); code != 200 {
				l.Fatalf("a probe: %d, want 200", code)
			}
		}
		if !ended(idle[0]) {
			l.Error("an idle connection has outlived so many new ones")
		}
		more := l.dial()
		if code := served(l.T, more, "/status"); code != http.StatusServiceUnavailable {
			l.Errorf("one page more: %d, want 503: none of them is written yet", code)
		}
		close(leave)
		for i, c := range working {
			if code, _, err := response(c); code != 200 {
				l.Errorf("page %d: %d %v", i, code, err)
			}
		}
		if code := served(l.T, more, "/status"); code != 200 {
			l.Errorf("afterwards: %d, want 200", code)
		}
		if got := l.server.Stats().Busy; got != 1 {
			l.Errorf("%d requests found too many pages, want 1", got)
		}
	})
}

// TestSlowReaders has clients that request pages and do not read them: other clients are served.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	largePage := func(c *admin.Config) {
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("a_total 1\n", 10_000))
		})
	}
	serve(t, largePage, func(l *pipes) {
		var slow []net.Conn
		for range admin.MaxPages {
			c := l.dialFrom("10.244.0.7")
			request(l.T, c, "/metrics")
			synctest.Wait()
			slow = append(slow, c)
		}
		for i, path := range []string{"/metrics", "/readyz", "/status"} {
			if code := served(l.T, l.dialFrom("10.244.0.8"), path); code != 200 {
				l.Errorf("request %d: %s: %d, want 200", i, path, code)
			}
			synctest.Wait()
		}
		for i, c := range slow {
			if code, _, err := response(c); (err != nil || code != 200) != (i == 0) {
				l.Errorf("page %d of %d: %d %v, want the first cut, and no other", i, len(slow), code, err)
			}
		}
		if got := l.server.Stats().Busy; got != 1 {
			l.Errorf("%d requests found too many pages, want 1", got)
		}
	})
}

// TestProfilesAtOnce asks for more profiles than there may be, and then for a probe's page.
func TestProfilesAtOnce(t *testing.T) {
	t.Parallel()
	serve(t, nil, func(l *pipes) {
		var profiles []net.Conn
		for range admin.MaxProfiles {
			profiles = append(profiles, l.dialSocket())
			request(l.T, profiles[len(profiles)-1], "/debug/pprof/goroutine?seconds=60")
		}
		synctest.Wait()
		if code := served(l.T, l.dialSocket(), "/debug/pprof/heap"); code != http.StatusServiceUnavailable {
			l.Errorf("one more: %d, want 503", code)
		}
		if code := served(l.T, l.dial(), "/livez"); code != 200 {
			l.Errorf("/livez: %d, want 200", code)
		}
		for i, c := range profiles { // A profile that is larger than the buffers ends once its client reads it.
			if code, _, err := response(c); code != 200 {
				l.Errorf("profile %d: %d %v, want 200", i, code, err)
			}
		}
		synctest.Wait()
		if code := served(l.T, l.dialSocket(), "/debug/pprof/cmdline"); code != 200 {
			l.Errorf("once they are done: %d, want 200", code)
		}
	})
}

// TestCachePagesWaitInTurn has a client wait for a walk through the cache and leave: the walk is not made.
func TestCachePagesWaitInTurn(t *testing.T) {
	t.Parallel()
	var leave chan struct{}
	walks := 0
	walkWaits := func(c *admin.Config) {
		leave = make(chan struct{})
		echoing(c)
		c.Cache.Top = func(int, string) (any, error) { walks++; <-leave; return echo{}, nil }
	}
	serve(t, walkWaits, func(l *pipes) {
		first, second := l.dialSocket(), l.dialSocket()
		request(l.T, first, "/cache/top")
		synctest.Wait()
		request(l.T, second, "/cache/top")
		synctest.Wait()
		_ = second.Close()
		synctest.Wait()
		for _, path := range []string{"/readyz", "/livez", "/status", "/metrics"} {
			if code := served(l.T, l.dial(), path); code != 200 {
				l.Errorf("%s meanwhile: %d, want 200", path, code)
			}
		}
		close(leave)
		if code, _, err := response(first); code != 200 {
			l.Errorf("the first walk: %d %v", code, err)
		}
		synctest.Wait()
		if walks != 1 {
			l.Errorf("%d walks, want 1", walks)
		}
	})
}
