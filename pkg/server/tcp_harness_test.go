// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
)

// testTimeout bounds the wait of a test for an event that must come. No expected value depends on it.
const testTimeout = 20 * time.Second

// A tcpHarness is a running server with the handler behind it.
type tcpHarness struct {
	*server.TCP
	tls     *tls.Config // of clients; nil: plain TCP
	t       *testing.T
	handler *servertest.Handler
	pipes   *servertest.Listener // nil: a loopback socket
	stop    func()               // ends the server and waits for it; may be called twice
}

// newTCP makes a server, by default on a free port of 127.0.0.1.
func newTCP(tb testing.TB, cfg server.TCPConfig) *server.TCP {
	tb.Helper()
	if !cfg.Addr.IsValid() {
		cfg.Addr = netip.MustParseAddrPort("127.0.0.1:0")
	}
	s, err := server.NewTCP(cfg)
	assert.NoError(tb, err)
	return s
}

// listenTCP makes a server that has its socket.
func listenTCP(tb testing.TB, cfg server.TCPConfig) *server.TCP {
	tb.Helper()
	s := newTCP(tb, cfg)
	assert.NoError(tb, s.Listen(tb.Context()))
	return s
}

// serveTCP starts a server of cfg on a loopback socket.
func serveTCP(t *testing.T, cfg server.TCPConfig, rules map[string]servertest.Rule) *tcpHarness {
	t.Helper()
	return startTCP(t, cfg, rules, nil)
}

// servePipes starts a server of cfg on connections in memory, for virtual time.
func servePipes(t *testing.T, cfg server.TCPConfig, rules map[string]servertest.Rule) *tcpHarness {
	t.Helper()
	pipes := servertest.NewListener()
	cfg.Listener = pipes
	return startTCP(t, cfg, rules, pipes)
}

func startTCP(t *testing.T, cfg server.TCPConfig, rules map[string]servertest.Rule, pipes *servertest.Listener) *tcpHarness {
	t.Helper()
	w := &tcpHarness{t: t, handler: servertest.New(rules), pipes: pipes}
	cfg.Handler = w.handler
	if strings.HasPrefix(t.Name(), "TestOverTLS/") {
		cfg.TLS, w.tls = tlsPair(t, pipes != nil)
	}
	w.TCP = listenTCP(t, cfg)
	end := run(t, w)
	w.stop = sync.OnceFunc(func() {
		end()
		if open := w.Stats().Open; open != 0 {
			t.Errorf("%d sessions are open after Run", open)
		}
		assert.Same(t, "violations of the Worker's contract", []string(nil), w.handler.Violations())
	})
	t.Cleanup(w.stop)
	return w
}

// eventually waits until cond holds.
func (h *tcpHarness) eventually(what string, cond func(server.TCPStats) bool) {
	h.t.Helper()
	proctest.Eventually(h.t, testTimeout, what, func() bool { return cond(h.Stats()) }, func() string { return fmt.Sprintf("%+v", h.Stats()) })
}

// A tcpClient is the far side of a session.
type tcpClient struct {
	net.Conn
	socket net.Conn // below TLS; without TLS the same
	t      *testing.T
}

// dial opens a session from 127.0.0.2, or from 192.0.2.1 over a pipe.
func (h *tcpHarness) dial() *tcpClient {
	h.t.Helper()
	return h.dialFrom("")
}

// dialFrom opens a session from an address.
func (h *tcpHarness) dialFrom(addr string) *tcpClient {
	h.t.Helper()
	var conn net.Conn
	var err error
	if h.pipes != nil {
		from := netip.MustParseAddr("192.0.2.1")
		if addr != "" {
			from = netip.MustParseAddr(addr)
		}
		conn, err = h.pipes.Dial(netip.AddrPortFrom(from, 4000))
	} else {
		d := net.Dialer{Timeout: testTimeout}
		if addr == "" && h.Addr().Addr().Is4() {
			addr = "127.0.0.2" // not the served address itself, which has a place always
		}
		if addr != "" {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 0))
		}
		conn, err = d.DialContext(h.t.Context(), "tcp", h.Addr().String())
	}
	assert.NoError(h.t, err)
	h.t.Cleanup(func() { _ = conn.Close() })
	if h.pipes == nil {
		assert.NoError(h.t, conn.SetDeadline(time.Now().Add(testTimeout)))
	}
	if h.tls != nil {
		secured := tls.Client(conn, h.tls)
		assert.NoError(h.t, secured.HandshakeContext(h.t.Context()))
		return &tcpClient{Conn: secured, socket: conn, t: h.t}
	}
	return &tcpClient{Conn: conn, socket: conn, t: h.t}
}

// queries returns framed queries for names, with IDs counted from id.
func queries(id uint16, names ...string) []byte {
	out := make([]byte, 0, 64*len(names))
	for i, name := range names {
		out = append(out, servertest.Frame(servertest.Query(id+uint16(i), name))...)
	}
	return out
}

// send writes b in one call.
func (c *tcpClient) send(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil {
		c.t.Fatalf("sending: %v", err)
	}
}

// ask sends queries for names with IDs counted from id.
func (c *tcpClient) ask(id uint16, names ...string) {
	c.t.Helper()
	c.send(queries(id, names...))
}

// receive reads one framed message.
func (c *tcpClient) receive() []byte {
	c.t.Helper()
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		c.t.Fatalf("receiving a length: %v", err)
	}
	msg := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, msg); err != nil {
		c.t.Fatalf("receiving a message of %d bytes: %v", len(msg), err)
	}
	return msg
}

// An answered query, as a test wants it.
type reply struct {
	ID   uint16
	Name string
}

// wantReplies reads as many replies as wanted and compares them in order.
func (c *tcpClient) wantReplies(want ...reply) {
	c.t.Helper()
	got := make([]reply, len(want))
	for i := range want {
		msg := c.receive()
		got[i] = reply{ID: servertest.ID(msg), Name: servertest.Name(msg)}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		c.t.Fatalf("replies (-want +got):\n%s", diff)
	}
}

// wantEnd reads on and wants the server to have closed, with nothing more sent.
func (c *tcpClient) wantEnd() {
	c.t.Helper()
	rest, err := io.ReadAll(c)
	if err != nil || len(rest) > 0 {
		c.t.Fatalf("wanted the end, got %d bytes and error %v", len(rest), err)
	}
}

// wantClosed is wantEnd for a close that may lose data: a reset is as good.
func (c *tcpClient) wantClosed() {
	c.t.Helper()
	if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		c.t.Fatalf("wanted the connection closed, got error %v", err)
	}
}

// closeWrite sends FIN, over TLS after close_notify.
func (c *tcpClient) closeWrite() {
	c.t.Helper()
	if secured, ok := c.Conn.(*tls.Conn); ok {
		assert.NoError(c.t, secured.CloseWrite())
	}
	assert.NoError(c.t, c.socket.(*net.TCPConn).CloseWrite())
}

// wantStats compares the counts, with those of no interest taken out by the test.
func (h *tcpHarness) wantStats(want server.TCPStats) {
	h.t.Helper()
	assert.Same(h.t, "stats", want, h.Stats())
}
