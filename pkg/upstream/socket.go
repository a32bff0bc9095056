// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A dialer is the default of Config.Dial.
type dialer struct {
	mark   uint32 // SO_MARK of the sockets; 0: none
	log    *slog.Logger
	warned atomic.Bool // that the mark could not be set
}

// dial opens a socket that is connected to addr. The kernel chooses the source port.
func (d *dialer) dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	switch network {
	case "udp":
		// No Control function here: with one, package net formats the address of every socket, a tenth of the cost of
		// a miss. The mark is set after connect, which is before the first packet.
		conn, err := new(net.Dialer).DialUDP(ctx, network, netip.AddrPort{}, addr)
		if err != nil {
			return nil, err
		}
		if d.mark != 0 {
			raw, err := conn.SyscallConn()
			d.setMark(ctx, raw, err)
		}
		return conn, nil
	case "tcp":
		nd := net.Dialer{ControlContext: func(ctx context.Context, _, _ string, raw syscall.RawConn) error {
			if d.mark != 0 {
				d.setMark(ctx, raw, nil)
			}
			return setUserTimeout(raw)
		}}
		return nd.DialTCP(ctx, network, netip.AddrPort{}, addr)
	}
	return nil, fmt.Errorf("network %q: %w", network, net.UnknownNetworkError(network))
}

// setMark sets the mark if it can, and logs the first failure. A query without the mark is better than none: a
// process that may not set marks has not installed rules for them either, as both need NET_ADMIN.
func (d *dialer) setMark(ctx context.Context, raw syscall.RawConn, err error) {
	if err == nil {
		err = setSocketMark(raw, d.mark)
	}
	if err != nil && !d.warned.Swap(true) {
		d.log.ErrorContext(ctx, "cannot mark upstream sockets", "err", err)
	}
}

// rawTCP returns access to a TCP socket; nil: it is another connection, or closed.
func rawTCP(nc net.Conn) syscall.RawConn {
	if tcp, ok := nc.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// userTimeout is how long sent bytes may stay unacknowledged, in milliseconds (RFC 5482). It ends connections over a
// broken path soon; the kernel's default is a quarter of an hour.
const userTimeout = 3000

func setUserTimeout(raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, userTimeout)
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("setting TCP_USER_TIMEOUT: %w", err)
	}
	return nil
}

// A tcpSocket makes system calls that package net has not. Only one goroutine may write.
type tcpSocket struct {
	raw      syscall.RawConn
	sendFunc func(fd uintptr) bool // these are made once, to avoid an allocation per call
	ackFunc  func(fd uintptr)
	out      []byte
	n        int
	errno    syscall.Errno
}

func newTCPSocket(raw syscall.RawConn) *tcpSocket {
	s := &tcpSocket{raw: raw}
	s.sendFunc, s.ackFunc = s.send, quickAck
	return s
}

// ackNow makes the kernel acknowledge at once what has been read. By default it waits up to 40 ms for data to send
// along. A peer without TCP_NODELAY holds its next answers back until then. s may be nil.
func (s *tcpSocket) ackNow() {
	if s != nil {
		_ = s.raw.Control(s.ackFunc)
	}
}

func quickAck(fd uintptr) {
	// TCP_QUICKACK does not last, and a failure only costs a delay.
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
}

// write writes, without blocking, as much of out as the kernel accepts, and returns how much.
func (s *tcpSocket) write(out []byte) (int, error) {
	s.out = out
	err := s.raw.Write(s.sendFunc)
	s.out = nil
	switch {
	case err != nil:
		return 0, err
	case s.errno == syscall.EAGAIN || s.errno == syscall.EINTR:
		return 0, nil
	case s.errno != 0:
		return 0, s.errno
	}
	return s.n, nil
}

// send makes one system call. RawSyscall bypasses the scheduler: the call never blocks.
func (s *tcpSocket) send(fd uintptr) bool {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&s.out[0])), uintptr(len(s.out)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	s.n, s.errno = int(n), errno
	return true
}

// setSocketMark sets SO_MARK on a socket.
func setSocketMark(raw syscall.RawConn, mark uint32) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	})
	switch {
	case err != nil:
		return fmt.Errorf("setting SO_MARK: %w", err)
	case errors.Is(failed, unix.EPERM):
		return fmt.Errorf("setting SO_MARK without the capability NET_ADMIN: %w", failed)
	case failed != nil:
		return fmt.Errorf("setting SO_MARK: %w", failed)
	}
	return nil
}

const (
	// inboxSize is the most answers that one system call receives.
	inboxSize = 32
	// datagramStride is the distance of the datagrams in an inbox. It is not a power of two, so that their first
	// cache lines do not share a few cache sets.
	datagramStride = datagramSize + 192
)

// mmsghdr is the kernel's struct mmsghdr. Go and C pad it alike.
type mmsghdr struct {
	msg    unix.Msghdr
	length uint32
}

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
