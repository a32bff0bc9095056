// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// readEach is the reader that needs nothing of the system but the net package:
// one system call for a query, another for its reply.
func (s *udpSocket) readEach(ctx context.Context) error {
	in, out := make([]byte, maxQuery), make([]byte, 0, maxUDPReply)
	oob := make([]byte, controlLen)
	for {
		n, oobn, _, from, err := s.conn.ReadMsgUDPAddrPort(in, oob)
		if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		s.server.stats.received.Add(1)
		if n == len(in) {
			s.server.stats.oversize.Add(1)
			continue
		}
		now := time.Now()
		peer := wire.Peer{Addr: netip.AddrPortFrom(from.Addr().Unmap(), from.Port())}
		reply, verdict := s.lane.Fast(in[:n], &peer, now, out[:0])
		switch verdict {
		case wire.Missed:
			s.slow(&peer, from, sourceControl(oob[:oobn]), now)
		case wire.Answered:
			if _, _, err := s.conn.WriteMsgUDPAddrPort(reply, sourceControl(oob[:oobn]), from); err != nil {
				s.server.stats.unsent.Add(1)
			} else {
				s.server.stats.sent.Add(1)
			}
		case wire.Dropped:
		}
		s.lane.Flush(time.Now())
	}
}
