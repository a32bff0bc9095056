// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin"
)

// socketPath is a path for a socket, short enough for one.
func socketPath(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "admin") //nolint:usetesting // a socket's path has to be short
	assert.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return filepath.Join(folder, "s")
}

// onSocket gives a server on a unix socket a path, without an address.
func onSocket(path string) func(*admin.Config) {
	return func(c *admin.Config) {
		echoing(c)
		c.Addr, c.Socket = netip.AddrPort{}, path
	}
}

// over asks for a page over a unix socket.
func over(t *testing.T, path, method, page string) (int, string, error) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
	}}
	r, err := http.NewRequestWithContext(t.Context(), method, "http://whatever"+page, nil)
	assert.NoError(t, err)
	got, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = got.Body.Close() }()
	body, err := io.ReadAll(got.Body)
	return got.StatusCode, string(body), err
}

func TestSocket(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	for _, tc := range []struct {
		name   string
		change func(*admin.Config)
	}{
		{"alone", onSocket(path)},
		{"beside an address", func(c *admin.Config) { echoing(c); c.Socket = path }},
	} {
		s := listening(t, tc.change)
		if info, err := os.Lstat(path); err != nil || info.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("%s: the file is %v, %v; want a socket of mode 0600", tc.name, info.Mode(), err)
		}
		if hasAddr := s.Addr().IsValid(); hasAddr == (tc.name == "alone") {
			t.Errorf("%s: address %s", tc.name, s.Addr())
		}
		stop := run(t, s)
		for _, page := range []struct{ method, path string }{
			{"GET", "/"},
			{"GET", "/readyz"},
			{"GET", "/status"},
			{"GET", "/metrics"},
			{"GET", "/debug/pprof/cmdline"},
			{"GET", "/cache/top"},
			{"POST", "/cache/flush?all=1"},
		} {
			if code, body, err := over(t, path, page.method, page.path); err != nil || code != 200 || body == "" {
				t.Errorf("%s: %s: %d %q %v, want a page", tc.name, page.path, code, body, err)
			}
		}
		if s.Addr().IsValid() {
			if code, _ := fetch(t, s, "/readyz"); code != 200 {
				t.Errorf("%s: /readyz over TCP: %d", tc.name, code)
			}
		}
		stop()
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: after Run: %v, want that the socket is gone", tc.name, err)
		}
		s.Close() // again
	}
}

// TestSocketTaken refuses a path that another agent or a file has. The tests of unixsock tell more of what may be there.
func TestSocketTaken(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	run(t, listening(t, onSocket(path)))
	file := socketPath(t)
	assert.NoError(t, os.WriteFile(file, []byte("precious"), 0o600))
	for path, want := range map[string]error{path: admin.ErrSocketTaken, file: admin.ErrNoSocket} {
		err := server(t, onSocket(path)).Listen(t.Context())
		if !errors.Is(err, want) || !strings.HasPrefix(err.Error(), "listening on unix socket "+path+": ") {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if code, _, err := over(t, path, "GET", "/readyz"); code != 200 {
		t.Errorf("/readyz of the first: %d, %v", code, err)
	}
}

// TestSocketKeepsNoAddress shows that nothing stays open after an error.
func TestSocketKeepsNoAddress(t *testing.T) {
	t.Parallel()
	s := server(t, func(c *admin.Config) { c.Socket = "/none/such/folder/s" })
	if err := s.Listen(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("got %v, want that the folder is missing", err)
	}
	if conn, err := net.Dial("tcp", s.Addr().String()); err == nil {
		_ = conn.Close()
		t.Errorf("%s still takes connections", s.Addr())
	}
}
