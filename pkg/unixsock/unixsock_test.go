// SPDX-License-Identifier: Apache-2.0

package unixsock_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/unixsock"
)

// networks are those that are listened on here.
func networks() []string { return []string{"unix", "unixpacket"} }

// folder is one with a path short enough for sockets.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sock") //nolint:usetesting // a socket's path has to be short
	assert.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func mustListen(t *testing.T, network, path string) *unixsock.Listener {
	t.Helper()
	l, err := unixsock.Listen(t.Context(), network, path)
	if err != nil {
		t.Fatalf("%s, %d bytes: %v", network, len(path), err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// listens reports whether a process listens at path.
func listens(network, path string) bool {
	c, err := net.Dial(network, path)
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

// names are of the files in a folder.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	assert.NoError(t, err)
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

// TestPath follows what happens to the path from one process to the next.
func TestPath(t *testing.T) {
	t.Parallel()
	for _, network := range networks() {
		dir := folder(t)
		path := filepath.Join(dir, "s")
		first := mustListen(t, network, path)
		if info, err := os.Lstat(path); err != nil || info.Mode() != fs.ModeSocket|unixsock.Mode {
			t.Errorf("%s: the file is %v, %v", network, info, err)
		}
		if got := first.Addr(); got.String() != path || got.Network() != network {
			t.Errorf("%s: address %s %s", network, got.Network(), got)
		}
		for _, other := range networks() {
			if _, err := unixsock.Listen(t.Context(), other, path); !errors.Is(err, unixsock.ErrInUse) {
				t.Errorf("%s beside %s: %v", other, network, err)
			}
		}
		_ = first.UnixListener.Close() // killed: the file stays
		second := mustListen(t, network, path)
		if first.OwnsPath() || !second.OwnsPath() {
			t.Errorf("%s: the file is the first one's: %t, the second one's: %t", network, first.OwnsPath(), second.OwnsPath())
		}
		if _ = first.Close(); !second.OwnsPath() || !listens(network, path) {
			t.Errorf("%s: the first took the second's file away", network)
		}
		if _ = second.Close(); names(t, dir) != "" {
			t.Errorf("%s: files stay: %s", network, names(t, dir))
		}
		third := mustListen(t, network, path)
		if _ = second.Close(); !third.OwnsPath() {
			t.Errorf("%s: closing again took a successor's file away", network)
		}
	}
}

// TestPathTaken refuses paths whose file must not be replaced.
func TestPathTaken(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		make func(path string) error
		want error
	}{
		{name: "a file", make: func(path string) error { return os.WriteFile(path, nil, 0o600) }, want: unixsock.ErrNotSocket},
		{name: "a folder", make: func(path string) error { return os.Mkdir(path, 0o700) }, want: unixsock.ErrNotSocket},
		{name: "a link to nowhere", make: func(path string) error { return os.Symlink("nowhere", path) }, want: unixsock.ErrNotSocket},
		{name: "a socket whose owner accepts nothing", make: fullBacklog, want: unixsock.ErrInUse},
		{name: "no folder", make: func(path string) error { return os.Remove(filepath.Dir(path)) }, want: fs.ErrNotExist},
	} {
		dir := folder(t)
		path := filepath.Join(dir, "s")
		assert.NoError(t, tt.make(path))
		before, _ := os.Lstat(path)
		if _, err := unixsock.Listen(t.Context(), "unix", path); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
		if after, _ := os.Lstat(path); before != nil && !os.SameFile(before, after) {
			t.Errorf("%s: it was removed", tt.name)
		}
	}
}

// fullBacklog makes a socket whose backlog is full, so that another connection would wait.
func fullBacklog(path string) error {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	err = errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 0))
	for range 2 {
		if _, dialErr := net.Dial("unix", path); dialErr != nil {
			break
		}
	}
	return err
}

// TestStaleTemporary removes the remains of a process that was killed between the creation of its socket and the rename.
func TestStaleTemporary(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, ".s~")})
	assert.NoError(t, err)
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	mustListen(t, "unix", path)
	if got := names(t, dir); got != "s" {
		t.Errorf("files %q", got)
	}
}

// TestLongPath listens at the longest path that there can be, with a short name in it and a long one.
func TestLongPath(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	deep := filepath.Join(dir, strings.Repeat("d", unixsock.MaxPath-len(dir)-len("//h.s")))
	assert.NoError(t, os.Mkdir(deep, 0o700))
	for _, path := range []string{filepath.Join(deep, "h.s"), filepath.Join(dir, strings.Repeat("s", unixsock.MaxPath-len(dir)-1))} {
		mustListen(t, "unixpacket", path)
		if !listens("unixpacket", path) {
			t.Errorf("%d bytes: no server listens there", len(path))
		}
	}
	if _, err := unixsock.Listen(t.Context(), "unix", filepath.Join(deep, "h.sock")); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a path that is too long: %v", err)
	}
}

// TestRace replaces the same stale socket from many goroutines at once: one succeeds.
func TestRace(t *testing.T) {
	t.Parallel()
	path := filepath.Join(folder(t), "s")
	for range 10 {
		_ = mustListen(t, "unixpacket", path).UnixListener.Close()
		var all sync.WaitGroup
		got := make([]*unixsock.Listener, 8)
		errs := make([]error, len(got))
		for i := range got {
			all.Go(func() { got[i], errs[i] = unixsock.Listen(t.Context(), "unixpacket", path) })
		}
		all.Wait()
		listen := 0
		for i, l := range got {
			switch {
			case l != nil:
				listen++
				_ = l.Close()
			case !errors.Is(errs[i], unixsock.ErrInUse):
				t.Error(errs[i])
			}
		}
		if listen != 1 {
			t.Fatalf("%d of %d listen, want one", listen, len(got))
		}
	}
}

// TestNoLock makes the socket from many goroutines at once while another process holds the folder's lock. Several may
// listen, but the path belongs to one of them.
func TestNoLock(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	held, err := os.Open(dir)
	assert.NoError(t, err)
	defer func() { _ = held.Close() }()
	assert.NoError(t, syscall.Flock(int(held.Fd()), syscall.LOCK_EX))
	path := filepath.Join(dir, "s")
	var all sync.WaitGroup
	got := make([]*unixsock.Listener, 64)
	for i := range got {
		all.Go(func() {
			l, err := unixsock.Listen(t.Context(), "unixpacket", path)
			if err != nil && !errors.Is(err, unixsock.ErrInUse) {
				t.Error(err)
			}
			got[i] = l
		})
	}
	all.Wait()
	owners := 0
	for _, l := range got {
		if l != nil && l.OwnsPath() {
			owners++
		}
		if l != nil && l.UnixListener.Addr().String() == filepath.Join(dir, ".s~") {
			t.Error("it was made at the path that only the holder of the lock may use")
		}
	}
	if owners != 1 || !listens("unixpacket", path) || names(t, dir) != "s" {
		t.Errorf("%d listeners own the path, a process listens there: %t, files %s", owners, listens("unixpacket", path), names(t, dir))
	}
	for _, l := range got {
		if l != nil {
			_ = l.Close()
		}
	}
}
