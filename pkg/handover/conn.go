// SPDX-License-Identifier: Apache-2.0

package handover

import (
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
	var rights []byte
	if len(files) > 0 {
		numbers := make([]int, len(files))
		for i, f := range files {
			numbers[i] = int(f.Fd())
		}
		rights = unix.UnixRights(numbers...)
	}
	if err := c.SetWriteDeadline(c.now().Add(sendTimeout)); err != nil {
		return err
	}
	if _, _, err := c.WriteMsgUnix(text, rights, nil); err != nil {
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
	text, rights := make([]byte, maxMessage+1), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, rightsLen, flags, _, err := c.ReadMsgUnix(text, rights)
	files, broken := filesOf(rights[:rightsLen])
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

// filesOf returns the files that came with a message.
func filesOf(rights []byte) (files []*os.File, err error) {
	if len(rights) == 0 {
		return nil, nil
	}
	parts, err := unix.ParseSocketControlMessage(rights)
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
	number := -1
	var err error
	if e := raw.Control(func(fd uintptr) { number, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, fmt.Errorf("duplicating %s: %w", name, err)
	}
	return os.NewFile(uintptr(number), name), nil
}
