// SPDX-License-Identifier: Apache-2.0

package dnstap_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	collector "github.com/dnstap/golang-dnstap"
	"google.golang.org/protobuf/proto"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/dnstap"
	"github.com/nodecache/node-cache/pkg/wire"
)

var (
	client = wire.Peer{Addr: netip.MustParseAddrPort("10.1.2.3:4000")}
	stream = wire.Peer{Addr: netip.MustParseAddrPort("[fd00::1]:4001"), Stream: true}
	server = netip.MustParseAddrPort("192.0.2.53:53")
	asked  = time.Unix(1700000000, 5)
	query  = []byte("\x12\x34 the query")
	reply  = []byte("\x56\x78 the reply")
)

// collect listens at an address and returns what dnstap's own library reads there.
func collect(t *testing.T, network, addr string) (<-chan []byte, net.Listener) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), network, addr)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	frames := make(chan []byte, 1000)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			in, err := collector.NewFrameStreamInput(conn, true)
			if err != nil {
				continue
			}
			go in.ReadInto(frames)
		}
	}()
	return frames, l
}

// start runs a tap to an address and returns what stops it.
func start(t *testing.T, to string) (tap *dnstap.Tap, stop func()) {
	t.Helper()
	tap = dnstap.New("node1", "v1", nil)
	tap.Send(to)
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = tap.Run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		run.Wait()
	})
	t.Cleanup(stop)
	return tap, stop
}

// TestMessages sends each type of message and reads it with dnstap's own library.
func TestMessages(t *testing.T) {
	t.Parallel()
	frames, l := collect(t, "tcp", "127.0.0.1:0")
	tap, stop := start(t, "tcp://"+l.Addr().String())
	answered := asked.Add(1500 * time.Millisecond)
	tap.ClientQuery(&client, asked, query)
	tap.ClientResponse(&client, []byte("pod=shop/web upstream=udp://192.0.2.53:53"), asked, answered, reply)
	tap.ClientResponse(&stream, nil, asked, answered, []byte(strings.Repeat("x", 65535)))
	for _, network := range []string{"udp", "tcp", "tls", "https"} {
		tap.ForwarderQuery(network, server, asked, query)
	}
	tap.ForwarderResponse("udp", server, asked, answered, query, reply)
	for i, want := range []string{
		`CLIENT_QUERY INET UDP 10.1.2.3:4000  1700000000.5 0.0 "\x124 the query" ""`,
		`CLIENT_RESPONSE INET UDP 10.1.2.3:4000  1700000000.5 1700000001.500000005 "" "Vx the reply" pod=shop/web upstream=udp://192.0.2.53:53`,
		`CLIENT_RESPONSE INET6 TCP [fd00::1]:4001  1700000000.5 1700000001.500000005 "" "` + strings.Repeat("x", 65535) + `"`,
		`FORWARDER_QUERY INET UDP  192.0.2.53:53 1700000000.5 0.0 "\x124 the query" ""`,
		`FORWARDER_QUERY INET TCP  192.0.2.53:53 1700000000.5 0.0 "\x124 the query" ""`,
		`FORWARDER_QUERY INET DOT  192.0.2.53:53 1700000000.5 0.0 "\x124 the query" ""`,
		`FORWARDER_QUERY INET DOH  192.0.2.53:53 1700000000.5 0.0 "\x124 the query" ""`,
		`FORWARDER_RESPONSE INET UDP  192.0.2.53:53 1700000000.5 1700000001.500000005 "" "\x124 the reply"`,
	} {
		assert.Equal(t, fmt.Sprint("message ", i), strings.TrimSpace(want), text(t, <-frames))
	}
	stop()
	assert.Same(t, "stats", dnstap.Stats{Sent: 8}, tap.Stats())
}

// text formats a message.
func text(t *testing.T, frame []byte) string {
	t.Helper()
	var d collector.Dnstap
	assert.NoError(t, proto.Unmarshal(frame, &d))
	m := d.Message
	assert.Equal(t, "sender", "node1 v1 MESSAGE", fmt.Sprint(string(d.Identity), " ", string(d.Version), " ", d.GetType()))
	at := func(addr []byte, port uint32) string {
		if ip, ok := netip.AddrFromSlice(addr); ok {
			return netip.AddrPortFrom(ip, uint16(port)).String()
		}
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s %d.%d %d.%d %q %q %s", m.GetType(), m.GetSocketFamily(), m.GetSocketProtocol(),
		at(m.QueryAddress, m.GetQueryPort()), at(m.ResponseAddress, m.GetResponsePort()), m.GetQueryTimeSec(), m.GetQueryTimeNsec(),
		m.GetResponseTimeSec(), m.GetResponseTimeNsec(), m.QueryMessage, m.ResponseMessage, d.Extra))
}

// TestCollector has collectors that are away, come back, send rubbish, or do not read. A message is sent or counted as
// dropped, and no call waits.
func TestCollector(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "dnstap.sock")
	tap, stop := start(t, "unix://"+path)
	send := func(n int) {
		for range n {
			tap.ClientQuery(&client, asked, query)
		}
	}
	send(3)
	rubbish, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	assert.NoError(t, err)
	conn, err := rubbish.Accept()
	assert.NoError(t, err)
	_, _ = io.WriteString(conn, strings.Repeat("\xff", 100))
	_, _ = io.Copy(io.Discard, conn) // until the tap closes it
	_ = rubbish.Close()

	frames, _ := collect(t, "unix", path)
	for range 3 {
		<-frames
	}
	send(1)
	<-frames

	others, other := collect(t, "tcp", "127.0.0.1:0")
	tap.Send("tcp://" + other.Addr().String())
	send(1)
	<-others
	_ = other.Close()
	tap.Send("")
	stop()
	assert.Same(t, "at the end", dnstap.Stats{Sent: 5}, tap.Stats())
}

// heap returns the bytes in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestFull fills the buffer of a tap whose collector does not read.
func TestFull(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	defer func() { _ = l.Close() }()
	tap, stop := start(t, "tcp://"+l.Addr().String())
	large := make([]byte, 65535)
	before := heap()
	for range 1000 {
		tap.ClientResponse(&client, nil, asked, asked, large)
	}
	if grown := heap() - before; grown > 12<<20 {
		t.Errorf("64 MB of messages take %d bytes, want two buffers of 4 MiB at most", grown)
	}
	stop()
	assert.Same(t, "stats", dnstap.Stats{Dropped: 1000}, tap.Stats())
	extra := []byte("pod=shop/web")
	assert.Equal(t, "allocations", 0, testing.AllocsPerRun(1000, func() { tap.ClientResponse(&client, extra, asked, asked, reply) }))
}

// TestHangUp has a collector end each connection after the handshake: the pauses grow, as with one that is away.
func TestHangUp(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	tap, _ := start(t, "tcp://"+l.Addr().String())
	ctx := t.Context()
	go func() { // a connection that is gone is noticed by a write
		for tick := time.NewTicker(time.Millisecond); ctx.Err() == nil; <-tick.C {
			tap.ClientQuery(&client, asked, query)
		}
	}()
	var began time.Time
	for i := range 5 {
		conn, err := l.Accept()
		assert.NoError(t, err)
		if i == 0 {
			began = time.Now()
		}
		_, err = collector.NewFrameStreamInput(conn, true)
		assert.NoError(t, err)
		_ = conn.Close()
	}
	if took := time.Since(began); took < 1500*time.Millisecond { // 100 + 200 + 400 + 800 ms
		t.Errorf("five connections within %s", took)
	}
}
