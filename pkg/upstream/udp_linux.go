// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package upstream

import (
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	// inboxSize is the most answers that one system call receives.
	inboxSize = 32
	// datagramStride is the distance of the datagrams in an inbox. It is not a power of two, so that their first
	// cache lines do not share a few cache sets.
	datagramStride = datagramSize + 192
)

// mmsghdr is the kernel's struct mmsghdr.
type mmsghdr struct {
	msg    unix.Msghdr
	length uint32
	_      [4]byte
}

// The kernel relies on the layout: a wrong size must not compile.
const (
	_ = uint(unsafe.Sizeof(mmsghdr{}) - 64)
	_ = uint(64 - unsafe.Sizeof(mmsghdr{}))
	_ = uint(unsafe.Sizeof(unix.Iovec{}) - 16)
	_ = uint(16 - unsafe.Sizeof(unix.Iovec{}))
)

// batchConn returns access to a socket for batched system calls; nil: there is none.
func batchConn(conn net.Conn) syscall.RawConn {
	if udp, ok := conn.(*net.UDPConn); ok {
		if raw, err := udp.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// An inbox is the memory of a socket while it is read. An idle socket holds none.
type inbox struct {
	headers   [inboxSize]mmsghdr
	vecs      [inboxSize]unix.Iovec
	datagrams [inboxSize * datagramStride]byte
	msg       wire.Message
	batch     wire.SendBatch
	at        func(i int) []byte
}

func newInbox() *inbox {
	b := &inbox{}
	for i := range b.headers {
		b.vecs[i].Base = &b.datagrams[i*datagramStride]
		b.vecs[i].SetLen(datagramSize)
		b.headers[i].msg.Iov = &b.vecs[i]
		b.headers[i].msg.SetIovlen(1)
	}
	b.at = func(i int) []byte {
		return b.datagrams[i*datagramStride:][:b.headers[i].length]
	}
	return b
}

// readBatches reads batches until the socket is ended or fails.
func (s *socket) readBatches() error {
	var failed error
	err := s.raw.Read(func(fd uintptr) bool {
		failed = s.drainSocket(fd)
		return failed != nil
	})
	if failed != nil {
		return failed
	}
	return err
}

// drainSocket receives all pending datagrams. Nil means to wait for more.
func (s *socket) drainSocket(fd uintptr) error {
	s.pool.readers <- struct{}{}
	defer func() { <-s.pool.readers }()
	b := s.pool.inboxes.Get().(*inbox)
	err := s.recvInto(b, fd)
	s.pool.inboxes.Put(b) // not after a panic
	return err
}

// recvInto receives into the inbox until the socket is empty.
//
// RawSyscall bypasses the scheduler: the call never blocks, and a hand-over of the processor costs more than the
// call.
func (s *socket) recvInto(b *inbox, fd uintptr) error {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.headers[0])), inboxSize, unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			s.deliver(int(n), b.at, &b.msg, &b.batch)
		case unix.EAGAIN:
			return nil
		case unix.EINTR:
			continue
		default:
			return errno
		}
		if n < inboxSize {
			return nil // it was empty then; later datagrams wake the poller
		}
	}
}

// An mmsgBatch is an outbox in the kernel's layout.
type mmsgBatch struct {
	headers [outboxSize]mmsghdr
	vecs    [outboxSize]unix.Iovec
	write   func(fd uintptr) // made once, to avoid an allocation per call
	failed  error            // why the socket is unusable
}

func (b *mmsgBatch) init(o *outbox) {
	for i := range b.headers {
		b.headers[i].msg.Iov = &b.vecs[i]
		b.headers[i].msg.SetIovlen(1)
	}
	b.write = func(fd uintptr) { b.failed = o.write(fd) }
}

// sendBatch sends the queries. An error means that the socket is unusable.
func (o *outbox) sendBatch(raw syscall.RawConn) error {
	for i := range o.n {
		msg := o.message(i)
		o.mmsg.vecs[i].Base = &msg[0]
		o.mmsg.vecs[i].SetLen(len(msg))
	}
	if err := raw.Control(o.mmsg.write); err != nil {
		return err
	}
	return o.mmsg.failed
}

// write sends the queries without blocking. A rejected query does not stop those after it.
func (o *outbox) write(fd uintptr) error {
	for sent := 0; sent < o.n; {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&o.mmsg.headers[sent])), uintptr(o.n-sent), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			sent += int(n)
		case unix.EINTR:
		default:
			if err := o.classifySendError(sent, errno); err != nil {
				return err
			}
			sent++
		}
	}
	return nil
}
