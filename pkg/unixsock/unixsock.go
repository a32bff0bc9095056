// SPDX-License-Identifier: Apache-2.0

// Package unixsock listens on unix sockets with a file: the file comes in place of one that
// nobody listens on any more, is the user's alone, and goes with who has made it, but not
// with a successor's in its place.
package unixsock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Mode lets the user that the process runs as, and root, connect.
const Mode fs.FileMode = 0o600

// MaxPath is how many bytes the kernel has for a path, without the zero at its end.
const MaxPath = 107

// lockTimeout is how long Listen waits for others that make a socket in the same folder,
// which takes them no time.
const lockTimeout = 3 * time.Second

// What Listen finds at the path.
var (
	ErrInUse     = errors.New("another process listens there")
	ErrNotSocket = errors.New("a file that is no socket is there")
)

// A Listener is a listening unix socket with its file.
type Listener struct {
	*net.UnixListener

	path string
	file os.FileInfo // as it was made
	once sync.Once
}

// Listen makes a socket of network unix or unixpacket at path, in one step in place of one
// that nobody listens on any more. The error is [ErrTaken] or [ErrNoSocket] if something
// else is there. Whoever listens holds the folder's lock meanwhile, so that of two who find
// the same remains only one takes their place.
func Listen(ctx context.Context, network, path string) (*Listener, error) {
	unlock, held, err := lock(ctx, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := checkFree(ctx, network, path); err != nil {
		return nil, err
	}
	made := tempPath(path, held)
	if err := os.Remove(made); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := open(ctx, network, made)
	if err != nil {
		return nil, err
	}
	l.path = path
	if l.file, err = os.Lstat(made); err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		_ = l.UnixListener.Close()
		_ = os.Remove(made)
		return nil, err
	}
	return l, nil
}

// tempPath is the path of a socket that is being made. A path that fits has one beside it that
// does. Without the lock the name is drawn: another process may be making one as well, and
// neither is to take the other's for its own.
func tempPath(path string, locked bool) string {
	name := "." + filepath.Base(path) + "~"
	if !locked {
		name = fmt.Sprintf(".%06x", rand.Uint32()>>8)
	}
	made := filepath.Join(filepath.Dir(path), name)
	return made[:min(len(made), max(len(path), MaxPath))]
}

// open opens a socket that keeps its file when it is closed.
func open(ctx context.Context, network, path string) (*Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		// The file takes its mode from the socket: it never has a wider one.
		if e := raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), uint32(Mode)) }); e != nil {
			return e
		}
		return err
	}}
	opened, err := lc.Listen(ctx, network, path)
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = op.Err // the path in the rest is not the caller's
	}
	if err != nil {
		return nil, err
	}
	l := &Listener{UnixListener: opened.(*net.UnixListener)}
	l.SetUnlinkOnClose(false)
	return l, nil
}

// lock locks a folder, and reports whether it did. Whoever may read the folder can hold its lock
// for ever, and is not to keep this process from its socket so: after a while it goes
// without, and so does one that may not read the folder, or whose file system has no locks.
func lock(ctx context.Context, path string) (unlock func(), held bool, err error) {
	folder, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return func() {}, false, nil
	case err != nil:
		return nil, false, err
	}
	unlock = func() { _ = folder.Close() }
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	again := time.NewTicker(lockTimeout / 300)
	defer again.Stop()
	for {
		err := unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return unlock, err == nil, nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return unlock, false, nil
		}
	}
}

// checkFree returns nil if nothing is at path, or a socket that nobody listens on.
func checkFree(ctx context.Context, network, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return ErrNotSocket
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, path)
	switch {
	case err == nil:
		_ = conn.Close()
		return ErrInUse
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EPROTOTYPE): // its backlog is full, or it is of another network
		return ErrInUse
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

// Addr is the path. The kernel knows the socket by the one that it was made at.
func (l *Listener) Addr() net.Addr {
	return &net.UnixAddr{Net: l.UnixListener.Addr().Network(), Name: l.path}
}

// OwnsPath reports whether the file at the path is still the listener's.
func (l *Listener) OwnsPath() bool {
	now, err := os.Lstat(l.path)
	return err == nil && os.SameFile(now, l.file)
}

// Close stops listening and removes the file, if it is still the listener's. A successor's
// would look the same after that: only the first call looks.
func (l *Listener) Close() error {
	l.once.Do(func() {
		if l.OwnsPath() {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}
