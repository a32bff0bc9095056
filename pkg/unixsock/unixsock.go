// SPDX-License-Identifier: Apache-2.0

// Package unixsock listens on unix sockets with a file. Listen replaces the file of a socket that
// no process listens on any more. The file is accessible to its user only. Close removes the file,
// unless a successor has replaced it.
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

// Mode permits the process's user, and root, to connect.
const Mode fs.FileMode = 0o600

// MaxPath is the longest path in bytes that the kernel accepts, without the terminating zero.
const MaxPath = 107

// lockTimeout bounds how long Listen waits for another process that creates a socket in the same
// folder.
const lockTimeout = 3 * time.Second

// Errors of Listen.
var (
	ErrInUse     = errors.New("another process listens there")
	ErrNotSocket = errors.New("a file that is no socket is there")
)

// A Listener is a listening unix socket with its file.
type Listener struct {
	*net.UnixListener

	path string
	file os.FileInfo // the file that Listen created
	once sync.Once
}

// Listen listens on a socket of network unix or unixpacket at path. It atomically replaces a socket
// that no process listens on any more. The error is [ErrInUse] or [ErrNotSocket] if something else
// is at path. Listen holds a lock on the folder, so that only one of two concurrent callers
// replaces an abandoned socket.
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

// tempPath returns the path at which the socket is created before it is renamed. It is never longer
// than path or MaxPath. Without the lock the name is random, because another process may create a
// socket at the same time.
func tempPath(path string, locked bool) string {
	name := "." + filepath.Base(path) + "~"
	if !locked {
		name = fmt.Sprintf(".%06x", rand.Uint32()>>8)
	}
	made := filepath.Join(filepath.Dir(path), name)
	return made[:min(len(made), max(len(path), MaxPath))]
}

// open listens on a socket whose file stays after Close.
func open(ctx context.Context, network, path string) (*Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		// The file inherits its mode from the socket, so it is never wider.
		if e := raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), uint32(Mode)) }); e != nil {
			return e
		}
		return err
	}}
	opened, err := lc.Listen(ctx, network, path)
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = op.Err // the rest names the temporary path
	}
	if err != nil {
		return nil, err
	}
	l := &Listener{UnixListener: opened.(*net.UnixListener)}
	l.SetUnlinkOnClose(false)
	return l, nil
}

// lock locks a folder and reports whether it succeeded. Any process that may read the folder can
// hold its lock forever, and must not block this one: after lockTimeout it continues without. It
// also continues without the lock if it may not read the folder or the file system has no locks.
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

// checkFree returns nil if nothing is at path, or a socket that no process listens on.
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
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EPROTOTYPE): // its backlog is full, or its type differs
		return ErrInUse
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

// Addr returns the path given to Listen. The kernel knows the socket by its temporary path.
func (l *Listener) Addr() net.Addr {
	return &net.UnixAddr{Net: l.UnixListener.Addr().Network(), Name: l.path}
}

// OwnsPath reports whether the file at the path is still the listener's.
func (l *Listener) OwnsPath() bool {
	now, err := os.Lstat(l.path)
	return err == nil && os.SameFile(now, l.file)
}

// Close stops listening and removes the file if it is still the listener's. Only the first call
// checks the file: after it, a successor's file could have the same identity.
func (l *Listener) Close() error {
	l.once.Do(func() {
		if l.OwnsPath() {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}
