// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// A Proxy carries TCP connections to one address and counts their bytes.
type Proxy struct {
	target   netip.AddrPort
	listener net.Listener
	ctx      context.Context //nolint:containedctx // ends with Close, and every connection with it
	cancel   context.CancelFunc
	tasks    sync.WaitGroup

	toServer, toClient atomic.Int64
	first, last        atomic.Int64 // Unix time in ns of the client's first bytes after a handshake, and of its last
}

// Traffic is what a proxy has carried, in bytes of TCP payload.
type Traffic struct{ ToServer, ToClient int64 }

// Handshake is more bytes than a TLS handshake brings to a client.
const Handshake = 8 << 10

// NewProxy listens on a loopback address and carries what it accepts to target until Close. ctx bounds the start only.
func NewProxy(ctx context.Context, target netip.AddrPort) (*Proxy, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	p := &Proxy{target: target, listener: listener}
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	p.tasks.Go(p.accept)
	return p, nil
}

// Addr returns where the proxy listens.
func (p *Proxy) Addr() netip.AddrPort { return p.listener.Addr().(*net.TCPAddr).AddrPort() }

// Traffic returns what the proxy has carried so far.
func (p *Proxy) Traffic() Traffic {
	return Traffic{ToServer: p.toServer.Load(), ToClient: p.toClient.Load()}
}

// Times returns when the first bytes after a handshake were brought to the client, and when the last so far.
func (p *Proxy) Times() (first, last time.Time) {
	return time.Unix(0, p.first.Load()), time.Unix(0, p.last.Load())
}

// Close ends every connection and waits until all is gone.
func (p *Proxy) Close() {
	p.cancel()
	_ = p.listener.Close()
	p.tasks.Wait()
}

// accept runs until Close and has a task for each connection, which Close waits for.
func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.tasks.Go(func() { p.relay(client) })
	}
}

// relay joins a client with the server until either ends the connection, or Close does.
func (p *Proxy) relay(client net.Conn) {
	defer func() { _ = client.Close() }()
	var d net.Dialer
	server, err := d.DialContext(p.ctx, "tcp4", p.target.String())
	if err != nil {
		return // the client sees its connection end
	}
	end := func() { _, _ = client.Close(), server.Close() }
	defer context.AfterFunc(p.ctx, end)()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(counter{client, &p.toClient, p.note}, server)
		end()
	})
	_, _ = io.Copy(counter{server, &p.toServer, func(int64) {}}, client)
	end()
	back.Wait()
}

// A counter counts the bytes that it writes.
type counter struct {
	to    io.Writer
	bytes *atomic.Int64
	note  func(total int64) // called after each write
}

func (c counter) Write(b []byte) (int, error) {
	n, err := c.to.Write(b)
	c.note(c.bytes.Add(int64(n)))
	return n, err
}

// note notes the time of bytes for the client.
func (p *Proxy) note(total int64) {
	now := time.Now().UnixNano() //nolint:forbidigo // of real programs
	p.last.Store(now)
	if total >= Handshake {
		p.first.CompareAndSwap(0, now)
	}
}
