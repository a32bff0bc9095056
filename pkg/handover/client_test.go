// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/unixsock"
)

// TestAliveAndBusy finds the listener alive though its backlog is full.
func TestAliveAndBusy(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	assert.NoError(t, err)
	defer func() { _ = unix.Close(fd) }()
	assert.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	assert.NoError(t, unix.Listen(fd, 0))
	for i := range 3 { // more than wait to be accepted
		if !alive(t.Context(), path) {
			t.Errorf("check %d: not alive", i)
		}
	}
}

// TestConnectNoAgent returns ErrNoAgent where there is no socket file, and where no process listens on it.
func TestConnectNoAgent(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	if _, err := connect(t, path, "new"); !errors.Is(err, ErrNoAgent) {
		t.Errorf("no file: %v", err)
	}
	l, err := unixsock.Listen(t.Context(), network, path)
	assert.NoError(t, err)
	_ = l.UnixListener.Close() // killed: the file stays
	if _, err := os.Lstat(path); err != nil {
		t.Fatal(err)
	}
	if _, err := connect(t, path, "new"); !errors.Is(err, ErrNoAgent) {
		t.Errorf("a file that is left: %v", err)
	}
}

// TestSilentPeer gives up on a peer that sends nothing.
func TestSilentPeer(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l, err := unixsock.Listen(t.Context(), network, path) // accepts, sends nothing
	assert.NoError(t, err)
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Connect(ctx, Config{Path: path, Agent: "new", Now: time.Now}); err == nil {
		t.Error("connected to a silent peer")
	}
}
