// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/server/servertest"
)

// pipes is a listener in memory, so that time can be virtual.
type pipes struct {
	*testing.T
	*servertest.Listener

	server *admin.Server
	stop   func() // ends the server
}

func (p *pipes) dial() net.Conn {
	p.Helper()
	return p.dialFrom("127.0.0.1")
}

func (p *pipes) dialFrom(client string) net.Conn {
	p.Helper()
	near, err := p.Dial(netip.AddrPortFrom(netip.MustParseAddr(client), 40000))
	assert.NoError(p.T, err)
	p.Cleanup(func() { _ = near.Close() })
	return near
}

// A socketConn is a pipe with the addresses of a unix socket.
type socketConn struct{ net.Conn }

func (socketConn) LocalAddr() net.Addr  { return &net.UnixAddr{Name: "/run/s", Net: "unix"} }
func (socketConn) RemoteAddr() net.Addr { return &net.UnixAddr{Name: "@", Net: "unix"} }

// dialSocket connects over the unix socket.
func (p *pipes) dialSocket() net.Conn {
	p.Helper()
	near, far := net.Pipe()
	assert.NoError(p.T, p.Deliver(p.Context(), socketConn{far}, nil))
	p.Cleanup(func() { _ = near.Close() })
	return near
}

// request writes a request and leaves the reply to be read.
func request(t *testing.T, c net.Conn, path string) {
	t.Helper()
	if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
}

// response reads a whole reply.
func response(c net.Conn) (code int, body []byte, err error) {
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = r.Body.Close() }()
	body, err = io.ReadAll(r.Body)
	return r.StatusCode, body, err
}

// closedAfter reads until the far side closes and returns how long that took.
func closedAfter(t *testing.T, c net.Conn) time.Duration {
	t.Helper()
	start := time.Now()
	_, _ = io.Copy(io.Discard, c)
	return time.Since(start)
}

// serve runs test beside a server with virtual time, which test reaches over l.
func serve(t *testing.T, change func(*admin.Config), test func(l *pipes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &pipes{T: t, Listener: servertest.NewListener(), server: server(t, change)}
		l.server.Use(l)
		l.stop = run(t, l.server)
		test(l)
		l.stop()
	})
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		sent string
		want time.Duration
	}{
		{"nothing sent", "", admin.HeaderTimeout},
		{"a header unfinished", "GET / HTTP/1.1\r\nHost:", admin.HeaderTimeout},
		{"nothing after a reply", "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", admin.IdleTimeout},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			serve(t, nil, func(l *pipes) {
				c := l.dial()
				if _, err := io.WriteString(c, tc.sent); err != nil {
					l.Fatal(err)
				}
				if got := closedAfter(l.T, c); got != tc.want {
					l.Errorf("closed after %s, want %s", got, tc.want)
				}
			})
		})
	}
}

func TestLongHeader(t *testing.T) {
	t.Parallel()
	serve(t, nil, func(l *pipes) {
		c := l.dial()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", 2*admin.MaxHeader)+"\r\n\r\n")
		}()
		if code, _, err := response(c); err != nil || code != http.StatusRequestHeaderFieldsTooLarge {
			l.Errorf("got %d, %v, want 431", code, err)
		}
		_ = c.Close()
		<-sent
	})
}

// TestLongProfile asks for a profile that takes longer than any other page may.
func TestLongProfile(t *testing.T) {
	t.Parallel()
	serve(t, nil, func(l *pipes) {
		c := l.dialSocket()
		start := time.Now()
		request(l.T, c, "/debug/pprof/goroutine?seconds=120")
		code, body, err := response(c)
		if err != nil || code != 200 || len(body) == 0 {
			l.Errorf("got %d, %v with %d bytes, want a profile", code, err, len(body))
		}
		if got := time.Since(start); got != 2*time.Minute || got < admin.WriteTimeout {
			l.Errorf("it took %s, want 2m0s", got)
		}
	})
}

func TestRunWaitsForRequests(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		takes time.Duration
		want  int // 0: cut
	}{
		{"a request that ends in time", admin.DrainTimeout - time.Second, 200},
		{"a request that does not", admin.DrainTimeout + time.Second, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			slow := func(c *admin.Config) {
				c.Ready = func() error { time.Sleep(tc.takes); return nil }
			}
			serve(t, slow, func(l *pipes) {
				c := l.dial()
				request(l.T, c, "/readyz")
				synctest.Wait()
				got := make(chan int, 1)
				go func() {
					code, _, _ := response(c)
					got <- code
				}()
				start := time.Now()
				l.stop()
				if took := time.Since(start); took > admin.DrainTimeout {
					l.Errorf("stopped after %s, want %s at most", took, admin.DrainTimeout)
				}
				if code := <-got; code != tc.want {
					l.Errorf("the reply is %d, want %d", code, tc.want)
				}
				time.Sleep(tc.takes) // Run does not wait for a handler that takes too long, the test does
				synctest.Wait()
			})
		})
	}
}

// TestStopEndsLongRequests has a page that works until its request's context
// ends, as the profiles of net/http/pprof do, which send what they have by then.
func TestStopEndsLongRequests(t *testing.T) {
	t.Parallel()
	long := func(c *admin.Config) {
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			_, _ = io.WriteString(w, "so far")
		})
	}
	serve(t, long, func(l *pipes) {
		c := l.dial()
		time.AfterFunc(10*time.Second, l.stop)
		start := time.Now()
		request(l.T, c, "/metrics")
		if code, body, err := response(c); err != nil || code != 200 || string(body) != "so far" {
			l.Errorf("got %d %q, %v, want 200 and what there is", code, body, err)
		}
		if got := time.Since(start); got != 10*time.Second {
			l.Errorf("it took %s, want the 10s until the stop", got)
		}
	})
}
