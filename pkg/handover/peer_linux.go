// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// peerUID is the user that the other end ran as when it connected, or listened.
func peerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var user *unix.Ucred
	if e := raw.Control(func(fd uintptr) { user, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		return 0, e
	}
	if err != nil {
		return 0, fmt.Errorf("asking who the other end is: %w", err)
	}
	return int(user.Uid), nil
}

// errOtherNamespace says that a socket is of no use here.
var errOtherNamespace = errors.New("the sockets are of another network namespace")

// checkNamespace returns nil if the socket is one of this process's network namespace. A kernel
// before 5.14 cannot tell, and is believed to agree.
func checkNamespace(f *os.File) error {
	own, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("asking for the network namespace: %w", err)
	}
	defer func() { _ = unix.Close(own) }()
	here, err := unix.GetsockoptUint64(own, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil { // it does not know the question
		return nil
	}
	there, err := unix.GetsockoptUint64(int(f.Fd()), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err == nil && there != here {
		err = errOtherNamespace
	}
	return err
}
