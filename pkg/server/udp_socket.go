// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/listen"
	"github.com/nodecache/node-cache/pkg/mmsg"
	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/retry"
	"github.com/nodecache/node-cache/pkg/wire"
)

// drainBatches bounds the batches that a stopping reader still answers, so that it ends under constant load. It is many
// times what a socket's buffer holds.
const drainBatches = 256

// minBusyBatch is the smallest batch after which the reader asks for the next one at once. More queries have usually
// arrived while it answered so many, and a system call costs a tenth of waiting for the poller.
const minBusyBatch = 4

// A udpSocket is one of the sockets, with the state of its reader.
type udpSocket struct {
	server     *UDP
	conn       *net.UDPConn
	raw        syscall.RawConn // access to conn
	wildcard   bool            // replies must set their source address
	v6         bool            // its address is an IPv6 address
	worker     Worker
	batchStart atomic.Int64 // when the reader began its current batch, by UDP.clock; 0: it waits for packets
	peer       wire.Peer    // client of the current query
	resolving  wire.Replier // the Replier passed to Resolve, while it runs

	mu      sync.Mutex  // guards replies
	replies *replyBatch // gathered replies of resolved queries; nil: none. While there are any, a flush is pending
}

func (u *UDP) newSocket(addr netip.AddrPort) *udpSocket {
	return &udpSocket{server: u, wildcard: addr.Addr().IsUnspecified(), v6: addr.Addr().Is6()}
}

// setConn makes s read from conn. It closes conn on error.
func (s *udpSocket) setConn(conn *net.UDPConn) (err error) {
	s.conn = conn
	if s.raw, err = s.conn.SyscallConn(); err != nil {
		_ = conn.Close()
		return err
	}
	s.worker = s.server.cfg.Handler.NewWorker()
	return nil
}

func (s *udpSocket) setOptions(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return err
	}
	if s.server.cfg.FreeBind {
		if err := listen.FreeBind(fd, s.server.cfg.Addr.Addr()); err != nil {
			return err
		}
	}
	setReceiveBuffer(fd, s.server.cfg.ReceiveBuffer)
	ignorePathMTU(fd)
	if !s.wildcard {
		return nil
	}
	if s.v6 { // also for IPv4 clients of [::], as mapped addresses
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
}

// readBatches answers batches: one system call receives what has arrived, one sends what was
// answered from memory.
func (s *udpSocket) readBatches(ctx context.Context) error {
	b := newUDPBatch(s.wildcard)
	left := drainBatches
	var failed error
	read := func(fd uintptr) (done bool) {
		done, failed = s.readReady(ctx, b, fd, &left)
		return done
	}
	for {
		err := s.raw.Read(read)
		switch {
		case failed != nil && ctx.Err() == nil:
			failed = s.pauseAfterError(ctx, failed)
		case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
			return s.drain(read)
		default:
			return err
		}
		if failed != nil {
			return failed
		}
	}
}

// readReady answers batches. done is false if the reader is to wait for the poller, as the socket is empty or shouldPoll
// says so. It is true after an error, when a stopping reader has used up left, or when another process takes over.
func (s *udpSocket) readReady(ctx context.Context, b *udpBatch, fd uintptr, left *int) (done bool, failed error) {
	for *left > 0 {
		switch errno := b.receive(fd); errno {
		case 0:
			s.answer(ctx, b, fd)
		case unix.EAGAIN:
			return false, nil
		default:
			return true, errno
		}
		if ctx.Err() != nil {
			if s.server.handover.started() {
				return true, nil
			}
			*left--
		} else if s.shouldPoll(b) {
			return false, nil
		}
	}
	return true, nil
}

// shouldPoll reports whether to wait for the poller after a batch. After a full batch it must not: only if the socket was
// emptied do later packets wake the poller. After fewer than minBusyBatch datagrams another system call would probably
// find none. While replies are outstanding, the goroutines that read from upstreams need the poller, which a reader that
// never waits would keep from them.
func (s *udpSocket) shouldPoll(b *udpBatch) bool {
	return b.received < minBusyBatch || b.received < batchSize && s.server.repliesDue.Load() > 0
}

// drain answers what the socket still holds after the last wake-up, unless another process reads
// it.
func (s *udpSocket) drain(read func(uintptr) bool) error {
	if s.server.handover.started() {
		return nil
	}
	return s.raw.Control(func(fd uintptr) { read(fd) })
}

// answer passes a batch to the worker and sends the answers.
func (s *udpSocket) answer(ctx context.Context, b *udpBatch, fd uintptr) {
	now := time.Now()
	s.batchStart.Store(s.server.clock(now))
	for i := 0; i < b.received; {
		i = s.answerFrom(ctx, b, i, now)
	}
	stats := &s.server.stats
	atomic.AddUint64(&stats.Received, uint64(b.received))
	if b.out.Len() > 0 {
		stats.send(fd, b.out)
	}
	s.flushWorker(ctx)
	s.batchStart.Store(0)
}

// answerFrom answers the batch's datagrams from the i-th on. It returns the next index to continue
// at: after a panic the one after the packet that caused it, else the end.
func (s *udpSocket) answerFrom(ctx context.Context, b *udpBatch, i int, now time.Time) (next int) {
	defer s.recoverPanic(ctx)
	peer := &s.peer // the worker takes its address; a field does not allocate
	for next = i; next < b.received; {
		i, next = next, next+1
		if b.in.Truncated(i) {
			atomic.AddUint64(&s.server.stats.Oversize, 1)
			continue
		}
		peer.Addr = b.peer(i)
		reply, verdict := s.worker.AnswerFromMemory(b.in.Datagram(i), peer, now, b.out.Buffer())
		switch verdict {
		case wire.Answered:
			address(b.out.Add(reply), &b.from[i], b.source(i))
		case wire.Missed:
			s.resolving = b.reply(i, s)
			s.server.repliesDue.Add(1)
			s.worker.Resolve(peer, now, s.resolving)
			s.resolving = nil
		case wire.Dropped:
		}
	}
	return next
}

// pauseAfterError waits briefly after a transient socket error, such as a lack of kernel memory, so
// that the reader does not spin. It returns err if the socket is closed.
func (s *udpSocket) pauseAfterError(ctx context.Context, err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, unix.EBADF) {
		return err
	}
	s.server.cfg.Log.WarnContext(ctx, "udp read failed", "err", err)
	_ = retry.Sleep(ctx, 10*time.Millisecond)
	return nil
}

// flushWorker makes the worker send what it queued for the end of the batch.
func (s *udpSocket) flushWorker(ctx context.Context) {
	defer s.recoverPanic(ctx)
	s.worker.Flush(time.Now())
}

// recoverPanic, deferred while packets are handled, keeps a panic from ending the process: the
// packet gets no answer, and the reader continues with a new worker.
func (s *udpSocket) recoverPanic(ctx context.Context) {
	defect := recover()
	if defect == nil {
		return
	}
	atomic.AddUint64(&s.server.stats.Panics, 1)
	panics.Log(ctx, s.server.cfg.Log, "udp", defect)
	if s.resolving != nil {
		s.resolving.Reply(nil, new(wire.SendBatch)) // no effect if Reply was called before
		s.resolving = nil
	}
	broken := s.worker
	s.worker = s.server.cfg.Handler.NewWorker()
	flushAfterPanic(broken)
}

// BusyFor returns the longest time that any reader has been inside one batch, or zero if all wait
// for packets. A batch takes some microseconds, unless the worker blocks: a blocked reader answers
// no client.
func (u *UDP) BusyFor(now time.Time) time.Duration {
	var longest int64
	for _, s := range u.sockets() {
		if since := s.batchStart.Load(); since > 0 {
			longest = max(longest, u.clock(now)-since)
		}
	}
	return time.Duration(longest)
}

// clock returns now as nanoseconds since the server was created, starting at 1.
func (u *UDP) clock(now time.Time) int64 { return int64(now.Sub(u.born)) + 1 }

const (
	// batchSize is the most datagrams of one system call. Above 64 the cost per datagram no longer
	// falls.
	batchSize = 64
	// replyRoom is the buffer size in bytes for a batch's replies. A reply that does not fit is
	// allocated.
	replyRoom = batchSize * 1232
)

// controlLen is the buffer size in bytes for one packet-info control message of either family.
const controlLen = 64

// A udpBatch is the memory of one reader: datagrams, and the replies from memory. A reply uses the
// sockaddr of its query, which is not copied.
type udpBatch struct {
	in       *mmsg.Inbox
	out      *mmsg.Outbox
	from     [batchSize]unix.RawSockaddrInet6 // an IPv4 address uses the first 16 bytes
	control  [batchSize][controlLen]byte
	received int
	wildcard bool
}

func newUDPBatch(wildcard bool) *udpBatch {
	b := &udpBatch{wildcard: wildcard, in: mmsg.NewInbox(batchSize, maxQuery), out: mmsg.NewOutbox(batchSize, replyRoom)}
	for i := range b.from {
		b.in.Messages[i].Header.Name = (*byte)(unsafe.Pointer(&b.from[i]))
		b.rearm(i)
	}
	return b
}

// rearm restores the fields of the i-th header that the kernel overwrote.
func (b *udpBatch) rearm(i int) {
	h := &b.in.Messages[i].Header
	h.Namelen = unix.SizeofSockaddrInet6
	h.Flags = 0
	if b.wildcard {
		h.Control = &b.control[i][0]
		h.SetControllen(controlLen)
	}
}

// receive reads what the socket holds, without waiting.
func (b *udpBatch) receive(fd uintptr) (errno syscall.Errno) {
	for i := range b.received {
		b.rearm(i)
	}
	b.out.Reset()
	b.received, errno = b.in.Receive(fd)
	return errno
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
	control := b.control[i][:b.in.Messages[i].Header.Controllen]
	clearInterface(control)
	return control
}

// reply returns the Replier of the i-th datagram, for an answer that comes after this batch.
func (b *udpBatch) reply(i int, s *udpSocket) *pendingReply {
	return &pendingReply{socket: s, to: b.from[i], source: slices.Clone(b.source(i))}
}

// address makes a message leave to a client, from the address that the control message source names
// if there is one.
func address(m *mmsg.Message, to *unix.RawSockaddrInet6, source []byte) {
	h := &m.Header
	h.Name, h.Namelen = (*byte)(unsafe.Pointer(to)), unix.SizeofSockaddrInet6
	if to.Family == unix.AF_INET {
		h.Namelen = unix.SizeofSockaddrInet4
	}
	if len(source) > 0 {
		h.Control = &source[0]
		h.SetControllen(len(source))
	}
}

// send sends replies and counts them. A reply that cannot be sent, for example because the route to
// its client is gone, does not stop the others.
func (u *UDPStats) send(fd uintptr, out *mmsg.Outbox) {
	unsent := 0
	for i, errno := out.Send(fd, 0); errno != 0; i, errno = out.Send(fd, i+1) {
		unsent++
	}
	atomic.AddUint64(&u.Sent, uint64(out.Len()-unsent))
	if unsent > 0 {
		atomic.AddUint64(&u.Unsent, uint64(unsent))
	}
}

// clearInterface turns a received packet-info message into one to send. It keeps the address and
// clears the interface, so that the reply follows the route to its client. A link-local IPv6
// address keeps its interface, which it needs.
func clearInterface(control []byte) {
	const header = unix.SizeofCmsghdr
	if len(control) < header+unix.SizeofInet4Pktinfo {
		return
	}
	level := binary.NativeEndian.Uint32(control[header-8:])
	data := control[header:]
	switch {
	case level == unix.IPPROTO_IP:
		clear(data[:4])
	case level == unix.IPPROTO_IPV6 && len(data) >= unix.SizeofInet6Pktinfo && (data[0] != 0xfe || data[1]&0xc0 != 0x80):
		clear(data[16:20])
	}
}
