// SPDX-License-Identifier: Apache-2.0

//go:build linux

package upstream

import (
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A peer with Nagle's algorithm (RFC 896) sends an answer only after the previous one was acknowledged. It must not
// wait for delayed acknowledgments of 40 ms.
func TestConnPoolQuickAck(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	defer func() { _ = ln.Close() }()
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_ = conn.(*net.TCPConn).SetNoDelay(false)
		for {
			q, err := readFrameOf(conn)
			if err != nil {
				return
			}
			r := upstreamtest.Forged(q)
			_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(r))), r...))
		}
	}()
	h := newHarness(t, Target{Network: "tcp", Addr: ln.Addr().(*net.TCPAddr).AddrPort()}, 1, nil)
	h.ask(t)
	const rounds = 50
	slow := 0 // some rounds are slow on a busy machine
	for range rounds {
		start := time.Now()
		var all []*pendingAnswer
		var batch wire.SendBatch
		for range 10 {
			all = append(all, h.queryInBatch(t, "www.example.", &batch))
		}
		batch.Flush()
		for _, p := range all {
			if got := p.wait(10e9); got != "192.0.2.66" {
				t.Fatalf("got %q, want 192.0.2.66", got)
			}
		}
		if time.Since(start) > 35*time.Millisecond {
			slow++
		}
	}
	t.Logf("%d of %d rounds took as long as a delayed acknowledgement", slow, rounds)
	if slow > rounds/2 {
		t.Errorf("%d of %d rounds took as long as a delayed acknowledgement, 40ms, want few", slow, rounds)
	}
}
