// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// scratch is what one UDP try works with, kept for the next.
type scratch struct {
	query  []byte
	answer [4096]byte // the largest EDNS size a query may have here
	msg    wire.Message
}

// askUDP sends q once, from a socket and with an ID of its own, and waits for
// the datagram that answers it until ctx ends. Any other datagram is counted
// and dropped: what is not the answer must not end the wait for it. The socket
// is connected, so the kernel has checked the source.
//
// Of a truncated answer nothing but the header is read; TCP brings all of it.
func (e *endpoint) askUDP(ctx context.Context, q []byte) (a answer, truncated bool, err error) {
	s := e.scratch.Get().(*scratch)
	defer e.scratch.Put(s)
	s.query = append(s.query[:0], q...)
	if _, err := io.ReadFull(e.rand, s.query[:2]); err != nil {
		return answer{}, false, fmt.Errorf("drawing an ID: %w", err)
	}
	conn, err := e.dial(ctx, "udp", e.addr)
	if err != nil {
		return answer{}, false, fmt.Errorf("opening a socket: %w", err)
	}
	defer func() { _ = conn.Close() }() // all that matters has been read
	defer context.AfterFunc(ctx, func() {
		_ = conn.SetDeadline(time.Unix(1, 0)) // long past: it wakes the reader
	})()
	if _, err := conn.Write(s.query); err != nil {
		return answer{}, false, fmt.Errorf("sending: %w", err)
	}
	var seen error // the last malformed answer
	for {
		n, err := conn.Read(s.answer[:])
		if err != nil && ctx.Err() != nil {
			return answer{}, false, cmp.Or(seen, fmt.Errorf("waiting for an answer: %w", ctx.Err()))
		}
		if err != nil {
			return answer{}, false, fmt.Errorf("receiving: %w", err)
		}
		r := s.answer[:n]
		if !wire.Answers(s.query, r) {
			e.count.failures[CauseMismatch].Add(1)
			continue
		}
		if isTruncated(r) {
			return answer{}, true, nil
		}
		if err := s.msg.Parse(r); err != nil {
			e.count.failures[CauseMalformed].Add(1)
			seen = fmt.Errorf("%w: %w", errMalformed, err)
			continue
		}
		return answer{
			msg:   append([]byte(nil), s.msg.Raw...),
			rcode: s.msg.Rcode(),
			edns:  s.msg.HasOPT(),
		}, false, nil
	}
}

// isTruncated reads the TC bit of a message that is at least a header.
func isTruncated(r []byte) bool {
	return binary.BigEndian.Uint16(r[2:])&(1<<9) != 0
}
