// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ArrivalTime returns when the kernel received a datagram, in ns of Unix time, from the control messages of a socket
// with SO_TIMESTAMPNS. Without such a message it returns the present time.
func ArrivalTime(oob []byte) int64 {
	for len(oob) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
		if h.Level == unix.SOL_SOCKET && h.Type == unix.SO_TIMESTAMPNS && len(oob) >= unix.CmsgLen(int(unsafe.Sizeof(unix.Timespec{}))) {
			return (*unix.Timespec)(unsafe.Pointer(&oob[unix.CmsgLen(0)])).Nano()
		}
		next := unix.CmsgSpace(int(h.Len) - unix.CmsgLen(0))
		if next <= 0 || next > len(oob) {
			break
		}
		oob = oob[next:]
	}
	return time.Now().UnixNano()
}
