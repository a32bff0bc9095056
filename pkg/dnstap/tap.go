// SPDX-License-Identifier: Apache-2.0

package dnstap

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	framestream "github.com/farsightsec/golang-framestream"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nodecache/node-cache/pkg/retry"
	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	// maxBuffer bounds each of the two buffers in bytes. It lasts for 100 ms at 100,000 queries a second.
	maxBuffer = 4 << 20
	// gather is how long messages are collected for one write: each write takes processor time from the readers of queries.
	gather = time.Millisecond
	// ioTimeout bounds a handshake, and a write of one buffer.
	ioTimeout = 10 * time.Second
	// closeTimeout bounds the last write and the collector's confirmation when the agent stops.
	closeTimeout = time.Second
)

// contentType is the content type of dnstap in the handshake of Frame Streams.
const contentType = "protobuf:dnstap.Dnstap"

// An address is the network and the address of a collector.
type address struct{ network, addr string }

func (a address) String() string { return a.network + "://" + a.addr }

// A Tap sends messages to a collector. Its methods are safe for concurrent use, and allocate nothing once the buffers are large.
type Tap struct {
	log  *slog.Logger
	head []byte                  // fields that all messages share
	to   atomic.Pointer[address] // nil: no collector
	sent atomic.Uint64           // messages written to a collector

	wake chan struct{} // the buffer has messages, or the address has changed

	mu       sync.Mutex // guards the fields below
	buffer   []byte     // frames to be written
	messages uint64     // number of messages in buffer
	dropped  uint64     // messages not written to a collector
}

// New returns a tap without a collector. identity and version are those of the messages.
func New(identity, version string, log *slog.Logger) *Tap {
	t := &Tap{log: cmp.Or(log, slog.New(slog.DiscardHandler)), wake: make(chan struct{}, 1)}
	t.head = protowire.AppendString(protowire.AppendTag(t.head, dnstapIdentity, protowire.BytesType), identity)
	t.head = protowire.AppendString(protowire.AppendTag(t.head, dnstapVersion, protowire.BytesType), version)
	t.head = appendUint(t.head, dnstapType, typeMessage)
	return t
}

// Send sends messages to a collector from now on: unix:// and a path, or tcp:// and an IP address with a port. Empty: to none.
func (t *Tap) Send(to string) {
	network, addr, on := strings.Cut(to, "://")
	switch old := t.to.Load(); {
	case !on:
		t.to.Store(nil)
	case old == nil || *old != address{network, addr}:
		t.to.Store(&address{network, addr})
	}
	t.signal()
}

// ClientQuery sends a query of a client.
func (t *Tap) ClientQuery(from *wire.Peer, at time.Time, query []byte) {
	t.add(&message{kind: clientQuery, protocol: clientProtocol(from), client: from.Addr, asked: at, query: query})
}

// ClientResponse sends the reply to a client. extra, which may be empty, says more of it as text.
func (t *Tap) ClientResponse(from *wire.Peer, extra []byte, asked, at time.Time, response []byte) {
	t.add(&message{kind: clientResponse, protocol: clientProtocol(from), client: from.Addr, extra: extra, asked: asked, answered: at, response: response, id: wire.ID(response)})
}

// ForwarderQuery sends a query to an upstream, whose network is udp, tcp, tls or https.
func (t *Tap) ForwarderQuery(network string, server netip.AddrPort, at time.Time, query []byte) {
	t.add(&message{kind: forwarderQuery, protocol: protocolOf(network), server: server, asked: at, query: query})
}

// ForwarderResponse sends the answer of an upstream, with the ID of the query.
func (t *Tap) ForwarderResponse(network string, server netip.AddrPort, asked, at time.Time, query, response []byte) {
	t.add(&message{kind: forwarderResponse, protocol: protocolOf(network), server: server, asked: asked, answered: at, response: response, id: wire.ID(query)})
}

func clientProtocol(from *wire.Peer) uint64 {
	if from.Stream {
		return protocolTCP
	}
	return protocolUDP
}

// add appends a message to the buffer, or drops it.
func (t *Tap) add(m *message) {
	t.mu.Lock()
	if len(t.buffer)+len(m.query)+len(m.response)+len(m.extra) > maxBuffer {
		t.dropped++
		t.mu.Unlock()
		return
	}
	first := t.messages == 0
	t.buffer = m.append(t.buffer, t.head)
	t.messages++
	t.mu.Unlock()
	if first {
		t.signal()
	}
}

func (t *Tap) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// take returns the buffered frames and their number, and makes spare the buffer.
func (t *Tap) take(spare []byte) (frames []byte, messages uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	frames, messages = t.buffer, t.messages
	t.buffer, t.messages = spare[:0], 0
	return frames, messages
}

func (t *Tap) drop(messages uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropped += messages
}

// Run sends messages until ctx ends. Then it sends those in the buffer if there is a connection, and drops them otherwise.
func (t *Tap) Run(ctx context.Context) error {
	backoff := retry.Backoff{First: 100 * time.Millisecond, Last: 10 * time.Second}
	lost := false // a warning was logged since the last connection
	for ctx.Err() == nil {
		to := t.to.Load()
		if to == nil {
			_, left := t.take(nil)
			t.drop(left)
			t.wait(ctx)
			continue
		}
		backoff.Begin()
		connected, err := t.connect(ctx, to)
		lost = lost && !connected
		if err == nil || ctx.Err() != nil {
			continue
		}
		if !lost {
			lost = true
			t.log.WarnContext(ctx, "dnstap collector not reachable", "collector", to.String(), "err", err)
		}
		_ = retry.Sleep(ctx, backoff.Next())
	}
	_, left := t.take(nil)
	t.drop(left)
	return nil
}

// wait waits for messages, another collector address, or the end of ctx.
func (t *Tap) wait(ctx context.Context) {
	select {
	case <-t.wake:
	case <-ctx.Done():
	}
}

// connect sends over one connection until the address changes, ctx ends, or there is an error. It reports whether the
// collector has accepted the connection.
func (t *Tap) connect(ctx context.Context, to *address) (connected bool, err error) {
	dialer := net.Dialer{Timeout: ioTimeout}
	conn, err := dialer.DialContext(ctx, to.network, to.addr)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(closeTimeout, func() { _ = conn.Close() }) })()
	stream, err := framestream.NewWriter(conn, &framestream.WriterOptions{
		ContentTypes: [][]byte{[]byte(contentType)}, Bidirectional: true, Timeout: ioTimeout,
	})
	if err != nil {
		return false, fmt.Errorf("handshake: %w", err)
	}
	t.log.InfoContext(ctx, "dnstap collector connected", "collector", to.String())
	var spare []byte
	for t.to.Load() == to {
		frames, messages := t.take(spare)
		spare = frames
		switch {
		case messages > 0:
			_ = conn.SetWriteDeadline(time.Now().Add(ioTimeout)) //nolint:forbidigo // of a socket
			if _, err := conn.Write(frames); err != nil {
				t.drop(messages)
				return true, err
			}
			t.sent.Add(messages)
		case ctx.Err() != nil:
			return true, stream.Close()
		default:
			t.wait(ctx)
			_ = retry.Sleep(ctx, gather)
		}
	}
	return true, stream.Close()
}

// Stats are counts of messages since the start.
type Stats struct {
	Sent    uint64 // written to the collector
	Dropped uint64 // not written: there was no collector, or it was away or too slow
}

// Stats returns the counters. It may be called at any time.
func (t *Tap) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Stats{Sent: t.sent.Load(), Dropped: t.dropped}
}
