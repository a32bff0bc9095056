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

// drainBatches bounds the batches that a stopping reader still answers: many times a socket's
// buffer, but finite under constant load.
const drainBatches = 256

// minBusyBatch is the smallest batch after which the reader asks for the next one at once. After so
// many queries more have arrived, and a system call costs a tenth of waiting.
const minBusyBatch = 4

// setReceiveBuffer requests a receive buffer. More than the system's limit needs CAP_NET_ADMIN;
// without it the limit applies.
func setReceiveBuffer(fd, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size)
	}
}

// ignorePathMTU sends IPv4 answers unfragmented whatever path MTU the kernel has learned for a
// client. An attacker can forge the ICMP message that lowers the path MTU to 552 bytes, and can
// forge fragments without knowing ports or IDs (RFC 9715). With IPv6, the largest answer of the
// default listen.udpSize fits every path MTU.
func ignorePathMTU(fd int) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_OMIT)
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
