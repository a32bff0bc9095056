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
	"sync"
	"syscall"
	"testing"

	"github.com/nodecache/node-cache/pkg/admin"
)

// socketPath is a path for a socket, short enough for one.
func socketPath(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "admin") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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

// TestSocketRemains shows what becomes of what is already at the path.
func TestSocketRemains(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		make func(t *testing.T, path string)
		want error // nil: it is replaced
	}{
		{"a socket without a listener", func(t *testing.T, path string) {
			t.Helper()
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			_ = l.Close()
		}, nil},
		{"another agent's socket", func(t *testing.T, path string) {
			t.Helper()
			other := listening(t, onSocket(path))
			run(t, other)
		}, admin.ErrSocketTaken},
		{"a socket whose owner accepts nothing", func(t *testing.T, path string) {
			t.Helper()
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = syscall.Close(fd) })
			if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 0)); err != nil {
				t.Fatal(err)
			}
			for range 2 { // fills the backlog, so that a third would wait
				c, err := net.Dial("unix", path)
				if err != nil {
					break
				}
				t.Cleanup(func() { _ = c.Close() })
			}
		}, admin.ErrSocketTaken},
		{"a file", func(t *testing.T, path string) {
			t.Helper()
			if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, admin.ErrNoSocket},
		{"a folder", func(t *testing.T, path string) {
			t.Helper()
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, admin.ErrNoSocket},
		{"a link to nowhere", func(t *testing.T, path string) {
			t.Helper()
			if err := os.Symlink("nowhere", path); err != nil {
				t.Fatal(err)
			}
		}, admin.ErrNoSocket},
		{"no folder", func(t *testing.T, path string) {
			t.Helper()
			if err := os.Remove(filepath.Dir(path)); err != nil {
				t.Fatal(err)
			}
		}, fs.ErrNotExist},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path := socketPath(t)
			tc.make(t, path)
			before, _ := os.Lstat(path)
			s := server(t, onSocket(path))
			err := s.Listen(t.Context())
			if tc.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				stop := run(t, s)
				if code, _, err := over(t, path, "GET", "/readyz"); code != 200 {
					t.Errorf("/readyz: %d, %v", code, err)
				}
				stop()
				return
			}
			if !errors.Is(err, tc.want) || !strings.HasPrefix(err.Error(), "listening on unix socket "+path+": ") {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if code, _, err := over(t, path, "GET", "/readyz"); tc.name == "another agent's socket" && code != 200 {
				t.Errorf("its /readyz: %d, %v", code, err)
			}
			if after, _ := os.Lstat(path); before != nil && (after == nil || !os.SameFile(before, after)) {
				t.Error("what was there is not there any more")
			}
		})
	}
}

// TestSocketOfSuccessor checks that a server removes only its own socket.
func TestSocketOfSuccessor(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	first := listening(t, onSocket(path))
	if err := os.Remove(path); err != nil { // by another process
		t.Fatal(err)
	}
	second := listening(t, onSocket(path))
	stop := run(t, second)
	first.Close()
	first.Close()
	if code, _, err := over(t, path, "GET", "/readyz"); code != 200 {
		t.Errorf("/readyz after the first has gone: %d, %v", code, err)
	}
	stop()
}

// TestSocketRace has many take over the same remains at once: one gets it.
func TestSocketRace(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	for range 10 {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		_ = l.Close()
		const many = 8
		var all sync.WaitGroup
		servers, errs := make([]*admin.Server, many), make([]error, many)
		for i := range many {
			servers[i] = server(t, onSocket(path))
			all.Go(func() { errs[i] = servers[i].Listen(t.Context()) })
		}
		all.Wait()
		got := 0
		for i, err := range errs {
			switch {
			case err == nil:
				got++
				servers[i].Close()
			case !errors.Is(err, admin.ErrSocketTaken):
				t.Error(err)
			}
		}
		if got != 1 {
			t.Fatalf("%d of %d listen, want one", got, many)
		}
	}
}

// TestSocketLocked has another process hold the folder's lock, as any that may read it can: the server listens nevertheless.
func TestSocketLocked(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = folder.Close() }()
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	s := listening(t, onSocket(path))
	stop := run(t, s)
	if code, _, err := over(t, path, "GET", "/readyz"); code != 200 {
		t.Errorf("/readyz: %d, %v", code, err)
	}
	stop()
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
