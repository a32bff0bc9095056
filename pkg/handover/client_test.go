// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/unixsock"
)

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

// TestNobody meets nobody where no file is, and where one is that nobody listens on.
func TestNobody(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	if _, err := meet(t, path, "new"); !errors.Is(err, ErrNoAgent) {
		t.Errorf("no file: %v", err)
	}
	l, err := unixsock.Listen(t.Context(), network, path)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.UnixListener.Close() // killed: the file stays
	if _, err := os.Lstat(path); err != nil {
		t.Fatal(err)
	}
	if _, err := meet(t, path, "new"); !errors.Is(err, ErrNoAgent) {
		t.Errorf("a file that is left: %v", err)
	}
}

// TestMutePeer gives up on one that says nothing.
func TestMutePeer(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l, err := unixsock.Listen(t.Context(), network, path) // accepts, says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Connect(ctx, ClientConfig{Path: path, Agent: "new", Now: time.Now}); err == nil {
		t.Error("met one that is mute")
	}
}
