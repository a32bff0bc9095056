// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
)

// dialNarrow opens a session whose client's kernel takes little that the client does not read.
func (h *tcpHarness) dialNarrow(addr string) *tcpClient {
	h.t.Helper()
	d := net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)),
		Control: func(_, _ string, c syscall.RawConn) (err error) {
			if failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10) }); failed != nil {
				return failed
			}
			return err
		},
	}
	conn, err := d.DialContext(h.t.Context(), "tcp", h.Addr().String())
	assert.NoError(h.t, err)
	h.t.Cleanup(func() { _ = conn.Close() })
	return &tcpClient{Conn: conn, t: h.t}
}

// Four addresses hold what they can. The sessions that hold most are closed, and not that of
// a client which reads its answers.
func TestTCPMemory(t *testing.T) {
	t.Parallel()
	const most, size = 3 << 20, 60_000
	for _, tt := range []struct {
		name  string
		asked []byte
	}{
		{"answers from memory not read", queries(0, "hit.example")},
		{"answers of misses not read", queries(0, "miss.example")},
		{"many small answers not read", queries(0, slices.Repeat([]string{"a.example"}, 3000)...)},
		{"large frames not finished", append([]byte{0xff, 0xff}, make([]byte, size)...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := serveTCP(t, server.TCPConfig{MaxMemory: most, WriteTimeout: time.Minute, FrameTimeout: time.Minute}, map[string]servertest.Rule{
				"hit.example": {Size: size}, "miss.example": {Action: servertest.Inline, Size: size},
			})
			reader := w.dial()
			const sessions = 128
			for i := range sessions {
				c := w.dialNarrow(fmt.Sprintf("127.0.1.%d", i%4))
				_, _ = c.Write(tt.asked) // cut short where the session is closed
				if i%16 == 0 {
					reader.ask(uint16(i), "hit.example", "miss.example")
					reader.wantReplies(reply{uint16(i), "hit.example"}, reply{uint16(i) + 1, "miss.example"})
				}
			}
			w.eventually("there is memory for those that are left", func(s server.TCPStats) bool {
				return s.ShedMemory+uint64(s.Open) == sessions+1 && s.Open <= most/size
			})
			reader.ask(1, "hit.example")
			reader.wantReplies(reply{1, "hit.example"})
		})
	}
}
