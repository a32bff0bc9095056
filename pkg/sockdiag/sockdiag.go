// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Socket is a socket that accepts packets or connections from any client.
type Socket struct {
	TCP     bool
	Local   netip.AddrPort // the address may be unspecified
	UID     int            // user ID of the process that made the socket
	Inode   uint64
	PID     int    // process that has the socket open; 0: unknown
	Program string // name of process PID, at most 15 bytes
}

// Accepts reports whether the socket gets packets to a, unless a socket with a more specific
// address does.
func (s *Socket) Accepts(a netip.Addr) bool {
	local := s.Local.Addr()
	return local == a || local.IsUnspecified() && (local.Is6() || a.Is4())
}

// Owner describes the process that owns the socket.
func (s *Socket) Owner() string {
	if s.PID == 0 {
		return fmt.Sprintf("a process of user %d", s.UID)
	}
	return fmt.Sprintf("%s (process %d)", s.Program, s.PID)
}

// maxDescriptors bounds the descriptors of other processes that one call reads: a process may have a million.
const maxDescriptors = 1 << 20

// AddProcesses sets PID and Program of each socket, as far as the folder proc shows them. It reads the processes of this
// network namespace first: those of pods, which may be many, hardly ever have one of its sockets.
func AddProcesses(list []Socket, proc string) {
	of := map[string][]*Socket{}
	for i := range list {
		link := "socket:[" + strconv.FormatUint(list[i].Inode, 10) + "]"
		of[link] = append(of[link], &list[i])
	}
	processes, err := os.ReadDir(proc)
	if err != nil {
		return
	}
	own, _ := os.Readlink(filepath.Join(proc, "thread-self/ns/net"))
	var near, far []int
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		if namespace, _ := os.Readlink(filepath.Join(proc, p.Name(), "ns/net")); namespace == own {
			near = append(near, pid)
		} else {
			far = append(far, pid)
		}
	}
	left := maxDescriptors
	for _, pid := range append(near, far...) {
		if len(of) == 0 {
			return
		}
		dir := filepath.Join(proc, strconv.Itoa(pid))
		for link := range links(filepath.Join(dir, "fd"), &left) {
			for _, s := range of[link] {
				s.PID, s.Program = pid, program(dir)
			}
			delete(of, link)
		}
	}
}

// links yields the targets of the links in a folder, as far as it can be read. It reads at most left links and reduces left.
func links(folder string, left *int) iter.Seq[string] {
	return func(yield func(string) bool) {
		f, err := os.Open(folder)
		if err != nil {
			return
		}
		defer func() { _ = f.Close() }()
		for *left > 0 {
			names, err := f.Readdirnames(min(1024, *left))
			if err != nil {
				return
			}
			*left -= len(names)
			for _, name := range names {
				if link, err := os.Readlink(filepath.Join(folder, name)); err == nil && !yield(link) {
					return
				}
			}
		}
	}
}

// program returns the name of a process, at most 15 bytes, or "" if the process has ended.
func program(dir string) string {
	text, err := os.ReadFile(filepath.Join(dir, "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

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

// Inode returns the inode number of a socket, which identifies it in the list of [ListBound].
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
	addr, _ := netip.AddrFromSlice(from) // no error: from has 4 or 16 bytes
	return Socket{
		TCP:   r.protocol == unix.IPPROTO_TCP,
		Local: netip.AddrPortFrom(addr, binary.BigEndian.Uint16(msg[4:])),
		UID:   int(binary.NativeEndian.Uint32(msg[64:])),
		Inode: uint64(binary.NativeEndian.Uint32(msg[68:])),
	}, true
}
