// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin"
)

// run starts s and returns what stops it and checks that Run had no error.
func run(t *testing.T, s *admin.Server) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run ended with %v, want nil", err)
		}
	}()
	return func() { cancel(); <-ended }
}

// listening is a server whose sockets are open.
func listening(t *testing.T, change func(*admin.Config)) *admin.Server {
	t.Helper()
	s := server(t, change)
	assert.NoError(t, s.Listen(t.Context()))
	return s
}

// fetch gets a page of a server on a socket.
func fetch(t *testing.T, s *admin.Server, path string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get("http://" + s.Addr().String() + path)
	assert.NoError(t, err)
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	assert.NoError(t, err)
	return r.StatusCode, string(body)
}

func TestServe(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0"} {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			s := server(t, func(c *admin.Config) { c.Addr = netip.MustParseAddrPort(addr) })
			err := s.Listen(t.Context())
			if errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EADDRNOTAVAIL) {
				t.Skipf("this machine lacks the IP family: %v", err)
			}
			assert.NoError(t, err)
			if s.Addr().Port() == 0 {
				t.Errorf("address %s, want the port that the kernel chose", s.Addr())
			}
			stop := run(t, s)
			if code, body := fetch(t, s, "/readyz"); code != 200 || body != "ok\n" {
				t.Errorf("/readyz: %d %q, want 200 ok", code, body)
			}
			stop()
			if conn, err := net.Dial("tcp", s.Addr().String()); err == nil {
				_ = conn.Close()
				t.Error("the port still takes connections after Run")
			}
		})
	}
}

// TestTwoListen shows that a successor can listen before its predecessor stops.
func TestTwoListen(t *testing.T) {
	t.Parallel()
	first := listening(t, nil)
	second := listening(t, func(c *admin.Config) { c.Addr = first.Addr() })
	first.Close()
	stop := run(t, second)
	if code, _ := fetch(t, second, "/livez"); code != 200 {
		t.Errorf("/livez of the second: %d, want 200", code)
	}
	stop()
}

func TestListenError(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp4", "127.0.0.1:0") // without SO_REUSEPORT
	assert.NoError(t, err)
	defer func() { _ = taken.Close() }()
	addr := taken.Addr().(*net.TCPAddr).AddrPort()
	s := server(t, func(c *admin.Config) { c.Addr = addr })
	err = s.Listen(t.Context())
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.HasPrefix(err.Error(), "listening on tcp "+addr.String()+": ") {
		t.Errorf("got %v, want that %s is taken", err, addr)
	}
	s.Close() // has nothing to close
}

func TestRunError(t *testing.T) {
	t.Parallel()
	s := listening(t, nil)
	s.Close()
	if err := s.Run(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want that the socket is closed", err)
	}
}
