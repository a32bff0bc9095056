// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// peerUID returns the user that the peer ran as when it connected or listened.
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
		return 0, fmt.Errorf("reading peer credentials: %w", err)
	}
	return int(user.Uid), nil
}

// errOtherNamespace reports sockets that are of no use in this network namespace.
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
