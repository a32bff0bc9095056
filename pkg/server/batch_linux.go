// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package server

import (
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// batchSize is the most datagrams of one system call. Above 64 the cost per datagram no longer
	// falls.
	batchSize = 64
	// packetStride is the distance of packets in a batch. It is not a power of two: at 2048 bytes
	// their first cache lines would share two sets of a cache.
	packetStride = maxQuery + 64
	// replyRoom is the buffer size in bytes for a batch's replies. A reply that does not fit is
	// allocated.
	replyRoom = batchSize * 1232
)

// message is the kernel's struct mmsghdr.
type message struct {
	header unix.Msghdr
	length uint32
	_      [4]byte
}

// The kernel depends on these layouts; a wrong size must not compile.
const (
	_ = uint(unsafe.Sizeof(message{}) - 64)
	_ = uint(64 - unsafe.Sizeof(message{}))
	_ = uint(unsafe.Sizeof(unix.Iovec{}) - 16)
	_ = uint(16 - unsafe.Sizeof(unix.Iovec{}))
	_ = uint(unsafe.Sizeof(unix.RawSockaddrInet6{}) - unix.SizeofSockaddrInet6)
)

// A udpBatch is the memory of one reader: datagrams as recvmmsg writes them, and replies as
// sendmmsg reads them. A reply uses the sockaddr of its query, which is not copied.
type udpBatch struct {
	in       [batchSize]message
	inVec    [batchSize]unix.Iovec
	from     [batchSize]unix.RawSockaddrInet6 // an IPv4 address uses the first 16 bytes
	control  [batchSize][controlLen]byte
	packets  [batchSize * packetStride]byte
	out      [batchSize]message
	outVec   [batchSize]unix.Iovec
	replies  [replyRoom]byte
	received int
	pending  int // replies in out
	used     int // bytes of replies in use
	wildcard bool
}

func newUDPBatch(wildcard bool) *udpBatch {
	b := &udpBatch{wildcard: wildcard}
	for i := range b.in {
		b.inVec[i].Base = &b.packets[i*packetStride]
		b.inVec[i].SetLen(maxQuery)
		h := &b.in[i].header
		h.Name = (*byte)(unsafe.Pointer(&b.from[i]))
		h.Iov = &b.inVec[i]
		h.SetIovlen(1)
		b.rearm(i)
		b.out[i].header.Iov = &b.outVec[i]
		b.out[i].header.SetIovlen(1)
	}
	return b
}

// rearm restores the fields of the i-th header that the kernel overwrote.
func (b *udpBatch) rearm(i int) {
	h := &b.in[i].header
	h.Namelen = unix.SizeofSockaddrInet6
	h.Flags = 0
	if b.wildcard {
		h.Control = &b.control[i][0]
		h.SetControllen(controlLen)
	}
}

// receive reads what the socket holds, without waiting.
//
// RawSyscall bypasses the scheduler: the call never blocks, and releasing the processor costs more
// than the call.
func (b *udpBatch) receive(fd uintptr) syscall.Errno {
	for i := range b.received {
		b.rearm(i)
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.in[0])), batchSize, unix.MSG_DONTWAIT, 0, 0)
	b.received, b.pending, b.used = 0, 0, 0
	if errno == 0 {
		b.received = int(n)
	}
	return errno
}

// packet returns the i-th datagram, or nil if it was truncated.
func (b *udpBatch) packet(i int) []byte {
	if b.in[i].header.Flags&unix.MSG_TRUNC != 0 {
		return nil
	}
	start := i * packetStride
	return b.packets[start : start+int(b.in[i].length)]
}

// peer returns the source of the i-th datagram.
func (b *udpBatch) peer(i int) netip.AddrPort {
	sa := &b.from[i]
	if sa.Family == unix.AF_INET {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), bigEndian(v4.Port))
	}
	addr := netip.AddrFrom16(sa.Addr).Unmap()
	if sa.Scope_id != 0 {
		addr = addr.WithZone(strconv.Itoa(int(sa.Scope_id)))
	}
	return netip.AddrPortFrom(addr, bigEndian(sa.Port))
}

// bigEndian converts a port from network byte order.
func bigEndian(port uint16) uint16 {
	p := (*[2]byte)(unsafe.Pointer(&port))
	return uint16(p[0])<<8 | uint16(p[1])
}

// source returns the control message that makes a reply to the i-th datagram leave from the address
// it was sent to; nil if the socket has only one address.
func (b *udpBatch) source(i int) []byte {
	if !b.wildcard {
		return nil
	}
	control := b.control[i][:b.in[i].header.Controllen]
	clearInterface(control)
	return control
}

// reply returns the Replier for the i-th datagram, for an answer that comes after this batch.
func (b *udpBatch) replyBuffer() []byte { return b.replies[b.used:b.used:replyRoom] }

// queueReply adds the reply to the i-th datagram to those that flush sends. reply was appended to
// replyBuffer, which may have reallocated it.
func (b *udpBatch) queueReply(i int, reply []byte) {
	if cap(reply) == replyRoom-b.used {
		b.used += len(reply)
	}
	b.outVec[b.pending].Base = &reply[0]
	b.outVec[b.pending].SetLen(len(reply))
	h := &b.out[b.pending].header
	h.Name, h.Namelen = b.in[i].header.Name, b.in[i].header.Namelen
	h.Control = nil
	h.SetControllen(0)
	if source := b.source(i); len(source) > 0 {
		h.Control = &source[0]
		h.SetControllen(len(source))
	}
	b.pending++
}

// reply is what the i-th datagram's reply is given to if it comes later, when the
// batch is another's.
func (b *udpBatch) reply(i int, s *udpSocket) *pendingReply {
	return &pendingReply{socket: s, to: b.from[i], source: slices.Clone(b.source(i))}
}

// flush sends the queued replies and returns how many the kernel refused.
func (b *udpBatch) flush(fd uintptr) (unsent int) { return sendAll(fd, b.out[:b.pending]) }

// sendAll sends messages and returns how many the kernel refused. A message that cannot be sent,
// for example because the route to its client is gone, does not stop the others.
func sendAll(fd uintptr, out []message) (unsent int) {
	for len(out) > 0 {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&out[0])), uintptr(len(out)), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			out = out[n:]
		case unix.EINTR:
		default:
			out = out[1:]
			unsent++
		}
	}
	return unsent
}
