// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/wire"
)

// readPortable is the reader that needs only the net package: one system call for a query, another
// for its reply.
func (s *udpSocket) readPortable(ctx context.Context) error {
	in, out := make([]byte, maxQuery), make([]byte, 0, maxUDPReply)
	oob := make([]byte, controlLen)
	for {
		n, oobn, _, from, err := s.conn.ReadMsgUDPAddrPort(in, oob)
		if err == nil {
			s.answerOne(ctx, in[:n], oob[:oobn], from, out)
			continue
		}
		stopping := errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil
		if stopping {
			return nil // woken by Run
		}
		if err := s.pauseAfterError(ctx, err); err != nil {
			return err
		}
	}
}

// answerOne answers one datagram. out is the buffer for the reply.
func (s *udpSocket) answerOne(ctx context.Context, pkt, oob []byte, from netip.AddrPort, out []byte) {
	defer s.recoverPanic(ctx)
	stats := &s.server.stats
	stats.received.Add(1)
	if len(pkt) == maxQuery {
		stats.oversize.Add(1)
		return
	}
	now := time.Now()
	s.busy.begin(s.server.clock(now))
	defer s.busy.end()
	s.peer.Addr = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	reply, verdict := s.worker.AnswerFromMemory(pkt, &s.peer, now, out[:0])
	switch verdict {
	case wire.Missed:
		s.resolve(&s.peer, &udpReply{socket: s, to: from, oob: sourceControl(oob)}, now)
	case wire.Answered:
		if _, _, err := s.conn.WriteMsgUDPAddrPort(reply, sourceControl(oob), from); err != nil {
			stats.unsent.Add(1)
		} else {
			stats.sent.Add(1)
		}
	case wire.Dropped:
	}
	s.flushWorker(ctx)
}

// pauseAfterError waits briefly after a transient socket error, such as a lack of kernel memory, so
// that the reader does not spin. It returns err if the socket is closed.
func (s *udpSocket) pauseAfterError(ctx context.Context, err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, unix.EBADF) {
		return err
	}
	s.server.cfg.Log.WarnContext(ctx, "udp read failed", "err", err)
	timer := time.NewTimer(10 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	return nil
}

// A udpReply replies to one query of the portable reader that missed the cache.
type udpReply struct {
	socket   *udpSocket
	to       netip.AddrPort
	oob      []byte // control message with the source address, for a wildcard socket
	finished atomic.Bool
}

// Reply implements [wire.Replier].
func (r *udpReply) Reply(msg []byte, _ *wire.SendBatch) {
	if r.finished.Swap(true) {
		return
	}
	stats := &r.socket.server.stats
	if len(msg) > 0 {
		if _, _, err := r.socket.conn.WriteMsgUDPAddrPort(msg, r.oob, r.to); err != nil {
			stats.unsent.Add(1)
		} else {
			stats.sent.Add(1)
		}
	}
	r.socket.server.repliesDue.Add(-1)
}
