// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package server

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/wire"
)

// drainBatches bounds what a stopping reader still takes: a socket's whole
// buffer many times over, and an end under a load that has none.
const drainBatches = 256

// minBusyBatch is the least batch after which the next is asked for at once: while
// so many were answered, more have come, and asking costs a tenth of waiting.
const minBusyBatch = 4

// setReceiveBuffer asks for a receive buffer. More than the system's limit needs a right
// that we may not have; the limit is what we get then.
func setReceiveBuffer(fd, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size)
	}
}

// ignorePathMTU sends answers over IPv4 in one piece whatever path MTU the kernel has learned for a client: anybody may
// forge the ICMP message that lowers it to 552 bytes, and fragments may be forged without knowing ports or IDs (RFC 9715).
// IPv6 has no path MTU that the largest answer of the default listen.udpSize does not fit.
func ignorePathMTU(fd int) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_OMIT)
}

// readBatches answers batch after batch: one system call takes what has
// arrived, one sends what could be answered from memory.
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

// readReady answers batches until the socket is empty, which is not the end,
// or fails, or the reader is stopping and took as many as are left to it.
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

// shouldPoll reports whether to wait for the poller after a batch. It may only where the
// batch was not full: the socket was empty then, so what came since wakes the
// poller. After a few datagrams, asking again would cost a call to hear that there
// are no more. And while replies are due, what upstreams say is read by others who
// wait for the poller, which a reader that never waits keeps from them.
func (s *udpSocket) shouldPoll(b *udpBatch) bool {
	return b.received < minBusyBatch || b.received < batchSize && s.server.repliesDue.Load() > 0
}

// drain answers what the socket still holds after the last wake-up, if nobody else does.
func (s *udpSocket) drain(read func(uintptr) bool) error {
	if s.server.handover.started() {
		return nil
	}
	return s.raw.Control(func(fd uintptr) { read(fd) })
}

// answer takes a batch through the worker and sends what was answered.
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

// answerFrom answers the batch's datagrams from the i-th on and returns the one
// to go on with: the next after one whose handling panicked, or the end.
func (s *udpSocket) answerFrom(ctx context.Context, b *udpBatch, i int, now time.Time) (next int) {
	defer s.recoverPanic(ctx)
	peer := &s.peer // the worker takes its address; here it costs no allocation
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
