// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socketMode lets the user that the agent runs as, and root, ask over the socket.
const socketMode = 0o600

// lockPatience is how long a start waits for others that make a socket in the same
// folder, which takes them no time.
const lockPatience = 3 * time.Second

// What Listen finds at the socket's path.
var (
	ErrSocketTaken = errors.New("another process listens there")
	ErrNoSocket    = errors.New("a file that is no socket is there")
)

// A socketListener is a listening unix socket that takes its file away at the end.
type socketListener struct {
	*net.UnixListener
	path string
	file os.FileInfo // as it was made
	once sync.Once
}

// listenSocket makes a unix socket at path, in place of one that nobody listens on
// any more. Whoever does so holds the folder's lock meanwhile, so that of two who
// find the same remains neither takes away what the other has just made.
func listenSocket(ctx context.Context, path string) (*socketListener, error) {
	folder, err := os.OpenFile(filepath.Dir(path), os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = folder.Close() }()
	if err := lock(ctx, folder); err != nil {
		return nil, fmt.Errorf("locking %s: %w", folder.Name(), err)
	}
	if err := removeRemains(ctx, path); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		// The file takes its mode from the socket: it never has a wider one.
		if e := raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), socketMode) }); e != nil {
			return e
		}
		return err
	}}
	listener, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	l := &socketListener{UnixListener: listener.(*net.UnixListener), path: path}
	l.SetUnlinkOnClose(false)
	if l.file, err = os.Lstat(path); err != nil {
		_ = l.UnixListener.Close()
		return nil, err
	}
	return l, nil
}

// lock locks a folder until it is closed. Whoever may read the folder can hold its lock
// for ever, and is not to keep an agent from starting so: after a while it goes without.
func lock(ctx context.Context, folder *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	again := time.NewTicker(lockPatience / 300)
	defer again.Stop()
	for {
		err := unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// removeRemains removes a socket that nobody listens on. Anything else stays.
func removeRemains(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return ErrNoSocket
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return ErrSocketTaken
	case errors.Is(err, syscall.EAGAIN): // its backlog is full
		return ErrSocketTaken
	case !errors.Is(err, syscall.ECONNREFUSED):
		return err
	}
	return os.Remove(path)
}

// Close stops listening and removes the file, if it is still the one that was made.
// A successor's would look the same after that: only the first call looks.
func (l *socketListener) Close() error {
	l.once.Do(func() {
		if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.file) {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}
