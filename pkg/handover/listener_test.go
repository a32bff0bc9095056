// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLongPath listens at the longest path that there can be, and a short name in it.
func TestLongPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(socketPath(t))
	folder := filepath.Join(dir, strings.Repeat("d", maxPath-len(dir)-len("//h.s")))
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "h.s")
	l, err := listen(t.Context(), path, "46c16b2a")
	if err != nil {
		t.Fatalf("%d octets: %v", len(path), err)
	}
	defer l.close()
	if !Alive(t.Context(), path) {
		t.Error("nobody is heard there")
	}
}

// TestAliveAndBusy hears that somebody is there though no connection is accepted any more.
func TestAliveAndBusy(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for i := range 3 { // more than wait to be accepted
		if !Alive(t.Context(), path) {
			t.Errorf("look %d: nobody is there", i)
		}
	}
}

// TestPath follows what happens to the path.
func TestPath(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	if _, err := meet(t, path, "new"); !errors.Is(err, ErrNobody) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(t.Context(), path, "a"); err == nil {
		t.Error("a file that is no socket was replaced")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	first, err := listen(t.Context(), path, "a")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != socketMode {
		t.Errorf("mode %v, %v", info, err)
	}
	if _, err := listen(t.Context(), path, "b"); !errors.Is(err, ErrTaken) {
		t.Errorf("listening beside another: %v", err)
	}
	_ = first.Close() // killed: the file stays
	second, err := listen(t.Context(), path, "b")
	if err != nil {
		t.Fatal(err)
	}
	if first.close(); !second.there() {
		t.Error("the first took the second's file away")
	}
	second.close()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file stays: %v", err)
	}
}

// TestMutePeer gives up on one that says nothing.
func TestMutePeer(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l, err := listen(t.Context(), path, "mute") // accepts, says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Meet(ctx, MeetConfig{Path: path, Agent: "new", Now: time.Now}); err == nil {
		t.Error("met one that is mute")
	}
}
