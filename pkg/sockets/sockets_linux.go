// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ListBound lists the sockets bound to port at any address: listening TCP sockets and unconnected
// UDP sockets. The kernel filters by state and port, so other sockets cost nothing. It needs no
// capability.
func ListBound(port uint16) ([]Socket, error) {
	var list []Socket
	for _, r := range []request{
		{unix.AF_INET, unix.IPPROTO_UDP, closed, port},
		{unix.AF_INET6, unix.IPPROTO_UDP, closed, port},
		{unix.AF_INET, unix.IPPROTO_TCP, listen, port},
		{unix.AF_INET6, unix.IPPROTO_TCP, listen, port},
	} {
		query := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		query.AddData(r)
		err := query.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(msg []byte) bool {
			if s, ok := parse(msg, r); ok {
				list = append(list, s)
			}
			return true
		})
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("listing sockets: %w", err)
		}
	}
	return list, nil
}

// Inode returns the inode number of a socket, which identifies it in the list.
func Inode(raw syscall.RawConn) (uint64, error) {
	var st unix.Stat_t
	var failed error
	err := raw.Control(func(fd uintptr) { failed = unix.Fstat(int(fd), &st) })
	return st.Ino, errors.Join(err, failed)
}

// States TCP_CLOSE and TCP_LISTEN of net/tcp_states.h. An unconnected UDP socket is in
// state TCP_CLOSE.
const (
	closed = 7
	listen = 10
)

// A request is an inet_diag_req_v2 of linux/inet_diag.h: it asks for the sockets of one family,
// protocol, state and port.
type request struct {
	family, protocol, state uint8
	port                    uint16
}

// Len returns the length of the result of Serialize.
func (request) Len() int { return 56 }

// Serialize encodes the request for the kernel.
func (r request) Serialize() []byte {
	b := make([]byte, r.Len())
	b[0], b[1] = r.family, r.protocol
	binary.NativeEndian.PutUint32(b[4:], 1<<r.state)
	binary.BigEndian.PutUint16(b[8:], r.port)
	return b
}

// parse decodes an inet_diag_msg.
func parse(msg []byte, r request) (Socket, bool) {
	const size = 72
	if len(msg) < size {
		return Socket{}, false
	}
	from := msg[8:24]
	if r.family == unix.AF_INET {
		from = from[:4]
	}
	addr, _ := netip.AddrFromSlice(from) // of 4 or 16 bytes
	return Socket{
		TCP:   r.protocol == unix.IPPROTO_TCP,
		Local: netip.AddrPortFrom(addr, binary.BigEndian.Uint16(msg[4:])),
		UID:   int(binary.NativeEndian.Uint32(msg[64:])),
		Inode: uint64(binary.NativeEndian.Uint32(msg[68:])),
	}, true
}
