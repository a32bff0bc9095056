// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// network is the socket type: it preserves message boundaries.
const network = "unixpacket"

// errOtherUser reports that the peer is a process of another user.
var errOtherUser = errors.New("peer runs as another user")

// A conn is one end of a connection between two agents.
type conn struct {
	*net.UnixConn

	now func() time.Time
}

// newConn checks the user of the peer. It closes c on error.
func newConn(c *net.UnixConn, now func() time.Time) (*conn, error) {
	user, err := peerUID(c)
	if err == nil && user != os.Geteuid() {
		err = fmt.Errorf("user %d: %w", user, errOtherUser)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return &conn{UnixConn: c, now: now}, nil
}

// send sends a message with files. The caller keeps the files.
func (c *conn) send(m *message, files ...*os.File) error {
	text, err := encode(m)
	if err != nil {
		return err
	}
	var control []byte
	if len(files) > 0 {
		numbers := make([]int, len(files))
		for i, f := range files {
			numbers[i] = int(f.Fd())
		}
		control = unix.UnixRights(numbers...)
	}
	if err := c.SetWriteDeadline(c.now().Add(sendTimeout)); err != nil {
		return err
	}
	if _, _, err := c.WriteMsgUnix(text, control, nil); err != nil {
		return fmt.Errorf("sending %s: %w", m.Type, err)
	}
	return nil
}

// receive waits for the next message; a limit of 0 means no time limit. The caller owns the files
// that come with the message, also if the message is unexpected. The error is io.EOF when the peer
// has closed the connection.
func (c *conn) receive(limit time.Duration) (*message, []*os.File, error) {
	deadline := time.Time{}
	if limit > 0 {
		deadline = c.now().Add(limit)
	}
	if err := c.SetReadDeadline(deadline); err != nil {
		return nil, nil, err
	}
	text, control := make([]byte, maxMessage+1), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, controlLen, flags, _, err := c.ReadMsgUnix(text, control)
	files, broken := filesOf(control[:controlLen])
	switch {
	case errors.Is(err, syscall.ECONNRESET): // the peer ended before it had read everything
		err = io.EOF
	case err != nil && !errors.Is(err, io.EOF):
		err = fmt.Errorf("receiving: %w", err)
	case err == nil && n == 0: // end of connection: no message is empty
		err = io.EOF
	case err == nil && (n > maxMessage || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0):
		err = errTooLong
	case err == nil:
		err = broken
	}
	var m *message
	if err == nil {
		m, err = decode(text[:n])
	}
	if err != nil {
		closeAll(files)
		return nil, nil, err
	}
	return m, files, nil
}

// receiveText receives a message without files. It closes those that come nevertheless.
func (c *conn) receiveText(limit time.Duration) (*message, error) {
	m, files, err := c.receive(limit)
	closeAll(files)
	return m, err
}

// receiveType waits for a message of one type, without files.
func (c *conn) receiveType(want string, limit time.Duration) (*message, error) {
	m, err := c.receiveText(limit)
	switch {
	case err != nil:
		return nil, fmt.Errorf("waiting for %s: %w", want, err)
	case m.Type != want:
		return nil, fmt.Errorf("received %q, want %q: %w", m.Type, want, errUnexpected)
	}
	return m, nil
}

// filesOf returns the files that came with a message.
func filesOf(control []byte) (files []*os.File, err error) {
	parts, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, fmt.Errorf("reading control messages: %w", err)
	}
	for i := range parts {
		numbers, e := unix.ParseUnixRights(&parts[i])
		if e != nil {
			err = fmt.Errorf("reading control messages: %w", e)
			continue
		}
		for _, number := range numbers {
			files = append(files, os.NewFile(uintptr(number), "socket"))
		}
	}
	return files, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// duplicate returns another descriptor of the same socket.
func duplicate(raw syscall.RawConn, name string) (*os.File, error) {
	var number int
	var failed error
	err := raw.Control(func(fd uintptr) { number, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err = cmp.Or(err, failed); err != nil {
		return nil, fmt.Errorf("duplicating %s: %w", name, err)
	}
	return os.NewFile(uintptr(number), name), nil
}

// peerUID returns the user that the peer ran as when it connected or listened.
func peerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var user *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { user, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = cmp.Or(err, failed); err != nil {
		return 0, fmt.Errorf("reading peer credentials: %w", err)
	}
	return int(user.Uid), nil
}

// errOtherNamespace reports sockets of another network namespace: they are of no use in this one.
var errOtherNamespace = errors.New("sockets belong to another network namespace")

// checkNamespace returns an error if the socket belongs to another network namespace. Kernels
// before 5.14 cannot tell; checkNamespace then returns nil.
func checkNamespace(f *os.File) error {
	own, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening a socket to compare network namespaces: %w", err)
	}
	defer func() { _ = unix.Close(own) }()
	here, err := unix.GetsockoptUint64(own, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil { // a kernel without SO_NETNS_COOKIE
		return nil
	}
	there, err := unix.GetsockoptUint64(int(f.Fd()), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err == nil && there != here {
		err = errOtherNamespace
	}
	return err
}
