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
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/task"
	"github.com/nodecache/node-cache/pkg/wire"
)

// drainBatches bounds the batches that a stopping reader still answers: many times a socket's
// buffer, but finite under constant load.
const drainBatches = 256

// minBusyBatch is the smallest batch after which the reader asks for the next one at once. After so
// many queries more have arrived, and a system call costs a tenth of waiting.
const minBusyBatch = 4

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

// readReady answers batches until the socket is empty (done is false), it fails, or a stopping
// reader has used up left.
func (s *udpSocket) readReady(ctx context.Context, b *udpBatch, fd uintptr, left *int) (done bool, failed error) {
	for *left > 0 {
		switch errno := b.receive(fd); errno {
		case 0:
			s.answer(ctx, b, fd)
		case unix.EAGAIN:
			return false, nil
		case unix.EINTR:
			continue
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

// shouldPoll reports whether to wait for the poller after a batch. It may only after a batch that
// was not full: the socket was empty then, so later packets wake the poller. After a few datagrams
// another system call would find none. While replies are outstanding, the goroutines that read from
// upstreams need the poller, which a reader that never waits would keep from them.
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
	s.busy.begin(s.server.clock(now))
	for i := 0; i < b.received; {
		i = s.answerFrom(ctx, b, i, now)
	}
	stats := &s.server.stats
	stats.received.Add(uint64(b.received))
	if b.pending > 0 {
		unsent := b.flush(fd)
		stats.sent.Add(uint64(b.pending - unsent))
		if unsent > 0 {
			stats.unsent.Add(uint64(unsent))
		}
	}
	s.flushWorker(ctx)
	s.busy.end()
}

// answerFrom answers the batch's datagrams from the i-th on. It returns the next index to continue
// at: after a panic the one after the packet that caused it, else the end.
func (s *udpSocket) answerFrom(ctx context.Context, b *udpBatch, i int, now time.Time) (next int) {
	defer s.recoverPanic(ctx)
	peer := &s.peer // the worker takes its address; a field does not allocate
	for next = i; next < b.received; {
		i, next = next, next+1
		pkt := b.packet(i)
		if pkt == nil {
			s.server.stats.oversize.Add(1)
			continue
		}
		peer.Addr = b.peer(i)
		reply, verdict := s.worker.AnswerFromMemory(pkt, peer, now, b.replyBuffer())
		switch verdict {
		case wire.Answered:
			b.queueReply(i, reply)
		case wire.Missed:
			s.resolve(peer, b.reply(i, s), now)
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
	_ = task.Sleep(ctx, 10*time.Millisecond)
	return nil
}

// flushWorker ends a batch.
func (s *udpSocket) flushWorker(ctx context.Context) {
	defer s.recoverPanic(ctx)
	s.worker.Flush(time.Now())
}

// resolve passes the query that the worker just missed to Resolve.
func (s *udpSocket) resolve(peer *wire.Peer, to wire.Replier, now time.Time) {
	s.server.repliesDue.Add(1)
	s.resolving = to
	s.worker.Resolve(peer, now, to)
	s.resolving = nil
}

// recoverPanic, deferred while packets are handled, keeps a panic from ending the process: the
// packet gets no answer, and the reader continues with a new worker.
func (s *udpSocket) recoverPanic(ctx context.Context) {
	defect := recover()
	if defect == nil {
		return
	}
	s.server.stats.panics.Add(1)
	logPanic(ctx, s.server.cfg.Log, "udp", defect)
	if s.resolving != nil {
		s.resolving.Reply(nil, new(wire.SendBatch)) // no effect if Reply was called before
		s.resolving = nil
	}
	broken := s.worker
	s.worker = s.server.cfg.Handler.NewWorker()
	flushAfterPanic(broken)
}

// A batchStart records when a reader began its current batch. It costs the reader one atomic store
// at each end of the batch.
type batchStart struct{ at atomic.Int64 } // by UDP.clock; 0: waiting for packets

func (b *batchStart) begin(at int64) { b.at.Store(at) }

func (b *batchStart) end() { b.at.Store(0) }

// BusyFor returns the longest time that any reader has been inside one batch, or zero if all wait
// for packets. A batch takes some microseconds, unless the worker blocks: a blocked reader answers
// no client.
func (u *UDP) BusyFor(now time.Time) time.Duration {
	var longest int64
	for _, s := range u.sockets.all() {
		if since := s.busy.at.Load(); since > 0 {
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

// replyBuffer returns the free part of the buffer for replies.
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

// reply returns the Replier of the i-th datagram, for an answer that comes after this batch.
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

// controlLen is the buffer size in bytes for one packet-info control message of either family.
const controlLen = 64

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
