// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"net"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/nodelab"
)

// setChecksums is ETHTOOL_STXCSUM: whether a link leaves checksums to who comes next.
const setChecksums = 0x17

// checksums has a host compute all checksums itself. Between namespaces the kernel
// leaves them out otherwise, and looks at none.
func checksums(t *testing.T, h *nodelab.Host) {
	t.Helper()
	err := h.Do(func() error {
		links, err := net.Interfaces()
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		for _, l := range links {
			if l.Flags&net.FlagLoopback != 0 {
				continue // has nothing to set: its packets never leave
			}
			value := struct{ cmd, data uint32 }{cmd: setChecksums}
			var request struct {
				name [unix.IFNAMSIZ]byte
				data unsafe.Pointer
				_    [16]byte
			}
			copy(request.name[:], l.Name)
			request.data = unsafe.Pointer(&value)
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
				return errno
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("having %s compute checksums: %v", h.Name, err)
	}
}
