// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// socketMode lets the user that the agent runs as, and root, connect.
const socketMode = 0o600

// maxPath is how many octets the kernel has for a path, without the zero at its end.
const maxPath = 107

// What is found at the path.
var (
	ErrTaken  = errors.New("another agent listens there")
	ErrNobody = errors.New("nobody listens there")
)

// A listener is a listening unix socket with its file.
type listener struct {
	*net.UnixListener

	path string
	file os.FileInfo // as it was made
}

// listen makes a unix socket at path, in one step in place of one that nobody listens on
// any more.
func listen(ctx context.Context, path, name string) (*listener, error) {
	if err := vacant(ctx, path); err != nil {
		return nil, err
	}
	made := filepath.Join(filepath.Dir(path), "."+name)
	made = made[:min(len(made), max(len(path), maxPath))] // a path that fits has one beside it that does
	if err := os.Remove(made); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
	opened, err := lc.Listen(ctx, network, made)
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	l := &listener{UnixListener: opened.(*net.UnixListener), path: path}
	l.SetUnlinkOnClose(false)
	if l.file, err = os.Lstat(made); err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		_ = l.Close()
		_ = os.Remove(made)
		return nil, err
	}
	return l, nil
}

// vacant returns nil if there is no socket at path, or one that nobody listens on.
func vacant(ctx context.Context, path string) error {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("looking at %s: a file that is no socket is there", path)
	}
	c, err := dial(ctx, path)
	switch {
	case err == nil:
		_ = c.Close()
		return ErrTaken
	case errors.Is(err, ErrNobody):
		return nil
	}
	return err
}

// dial connects to whoever listens at path.
func dial(ctx context.Context, path string) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, saying)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, network, path)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil, ErrNobody
	case err != nil:
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// there tells whether the file at the path is still the listener's.
func (l *listener) there() bool {
	now, err := os.Lstat(l.path)
	return err == nil && os.SameFile(now, l.file)
}

// close stops listening. The file goes with it, unless it is another's by now.
func (l *listener) close() {
	if l.there() {
		_ = os.Remove(l.path)
	}
	_ = l.Close()
}

// Alive tells whether an agent listens at the path, if only one that is asked more than it
// can hear.
func Alive(ctx context.Context, path string) bool {
	c, err := dial(ctx, path)
	if err == nil {
		_ = c.Close()
	}
	return err == nil || errors.Is(err, syscall.EAGAIN)
}
