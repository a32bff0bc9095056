// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"io"
	"net/http"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin"
)

// descriptor is another one of the TCP socket of s, as another process would get it.
func descriptor(t *testing.T, s *admin.Server) *os.File {
	t.Helper()
	return duplicate(t, s.Raw())
}

func duplicate(t *testing.T, raw syscall.RawConn) (f *os.File) {
	t.Helper()
	assert.NoError(t, raw.Control(func(fd uintptr) {
		n, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
		}
		f = os.NewFile(uintptr(n), "socket")
	}))
	return f
}

// notReady makes a server that is not ready for a reason, which identifies the server.
func notReady(t *testing.T, addr netip.AddrPort, socket string, reason error) *admin.Server {
	t.Helper()
	return server(t, func(c *admin.Config) {
		c.Addr, c.Socket = addr, socket
		c.Ready = func() error { return reason }
	})
}

type name string

func (n name) Error() string { return string(n) }

// TestHandOver has one server serve on the socket of another, which goes on to serve on its own unix socket.
func TestHandOver(t *testing.T) {
	t.Parallel()
	firstSocket, secondSocket := socketPath(t), socketPath(t)
	first := notReady(t, netip.MustParseAddrPort("127.0.0.1:0"), firstSocket, name("first"))
	assert.NoError(t, first.Listen(t.Context()))
	stopFirst := run(t, first)
	second := notReady(t, first.Addr(), secondSocket, name("second"))
	assert.NoError(t, second.Adopt(first.Addr(), descriptor(t, first)))
	assert.NoError(t, second.Listen(t.Context()))
	stopSecond := run(t, second)

	expect := func(get func() string, want, when string) {
		t.Helper()
		for range 5 {
			if got := get(); got != want+"\n" {
				t.Errorf("%s: %q answers, want %q", when, got, want)
			}
		}
	}
	overTCP := func() string {
		_, body := fetch(t, second, "/readyz")
		return body
	}
	overUnix := func(path string) func() string {
		return func() string {
			_, body, err := over(t, path, "GET", "/readyz")
			if err != nil {
				t.Error(err)
			}
			return body
		}
	}
	kept := &http.Client{Transport: new(http.Transport)} // one that keeps its connection
	overKept := func() string {
		r, err := kept.Get("http://" + first.Addr().String() + "/readyz")
		assert.NoError(t, err)
		defer func() { _ = r.Body.Close() }()
		body, _ := io.ReadAll(r.Body)
		return string(body)
	}
	expect(overTCP, "first", "before")
	expect(overKept, "first", "before")
	expect(overUnix(secondSocket), "second", "before")
	second.Open()
	first.Give()
	expect(overTCP, "second", "after")
	_ = overKept() // may be the last on the old connection
	expect(overKept, "second", "after, over a connection that was kept")
	expect(overUnix(firstSocket), "first", "after")
	stopFirst()
	expect(overTCP, "second", "when the first has ended")
	stopSecond()
}

// TestAdoptUnopened ends a server that has adopted a socket and never accepted from it.
func TestAdoptUnopened(t *testing.T) {
	t.Parallel()
	first := notReady(t, netip.MustParseAddrPort("127.0.0.1:0"), "", name("first"))
	assert.NoError(t, first.Listen(t.Context()))
	stopFirst := run(t, first)
	second := notReady(t, first.Addr(), "", name("second"))
	assert.NoError(t, second.Adopt(first.Addr(), descriptor(t, first)))
	stopSecond := run(t, second)
	time.Sleep(10 * time.Millisecond)
	stopSecond()
	if _, body := fetch(t, first, "/readyz"); body != "first\n" {
		t.Errorf("%q answers, want the first", body)
	}
	stopFirst()
	pipe, _, err := os.Pipe()
	assert.NoError(t, err)
	if err := second.Adopt(first.Addr(), pipe); err == nil {
		t.Error("a pipe was adopted")
	}
}
