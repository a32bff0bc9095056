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
	// inboxSize is the most answers that one system call takes.
	inboxSize = 32
	// datagramStride sets the datagrams of a batch apart. It is not a power of two, or their first lines would share
	// a few of a cache's sets.
	datagramStride = datagramSize + 192
)

// header is the kernel's struct mmsghdr.
type mmsghdr struct {
	msg    unix.Msghdr
	length uint32
	_      [4]byte
}

// The kernel reads these by layout; a wrong size must not compile.
const (
	_ = uint(unsafe.Sizeof(mmsghdr{}) - 64)
	_ = uint(64 - unsafe.Sizeof(mmsghdr{}))
	_ = uint(unsafe.Sizeof(unix.Iovec{}) - 16)
	_ = uint(16 - unsafe.Sizeof(unix.Iovec{}))
)

// rawOf gives access to a socket that can be used in batches; nil: it cannot.
func batchConn(conn net.Conn) syscall.RawConn {
	if udp, ok := conn.(*net.UDPConn); ok {
		if raw, err := udp.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// An inbox is the memory of a socket that is being read. Sockets borrow it: one that waits holds none.
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

// readBatches reads batch after batch until the socket is ended or fails.
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

// takeBatches takes what the socket holds. Nil says that it is to be waited for more.
func (s *socket) drainSocket(fd uintptr) error {
	s.pool.readers <- struct{}{}
	defer func() { <-s.pool.readers }()
	b := s.pool.inboxes.Get().(*inbox)
	err := s.recvInto(b, fd)
	s.pool.inboxes.Put(b) // unless it panicked
	return err
}

// takeInto reads into the inbox until the socket is empty.
//
// RawSyscall keeps the scheduler out: the call never blocks, and handing the processor over and back costs more than
// it does.
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
			return nil // it was empty then; what came since wakes the poller
		}
	}
}

// An outbatch is an outbox as the kernel reads it.
type mmsgBatch struct {
	headers [outboxSize]mmsghdr
	vecs    [outboxSize]unix.Iovec
	write   func(fd uintptr) // made once: it would be allocated for each call
	failed  error            // why the socket is of no use any more
}

func (b *mmsgBatch) init(o *outbox) {
	for i := range b.headers {
		b.headers[i].msg.Iov = &b.vecs[i]
		b.headers[i].msg.SetIovlen(1)
	}
	b.write = func(fd uintptr) { b.failed = o.write(fd) }
}

// sendBatch sends the queries. An error says that the socket is of no use any more.
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

// write has the kernel take the queries, without waiting. One that it refuses does not hold back those behind it.
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
