// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
)

// A Proxy carries TCP connections to one address, counts their bytes, and fails in the ways of a network. Its
// methods may be called by several goroutines.
type Proxy struct {
	target   netip.AddrPort
	listener net.Listener
	address  netip.AddrPort

	toServer, toClient, accepted atomic.Int64

	ctx    context.Context //nolint:containedctx // ends with Close, and every dial and every wait with it
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu    sync.Mutex            // guards the fields below
	conns map[net.Conn]struct{} // both ends of every open connection
	open  chan struct{}         // closed while data may flow
	cut   bool                  // connections end at once
}

// Traffic is what a proxy has carried.
type Traffic struct {
	ToServer, ToClient int64 // bytes of TCP payload
	Connections        int64 // accepted
}

// StartProxy runs a proxy in front of the cluster's API server for a test.
func StartProxy(tb testing.TB, c *Cluster) *Proxy {
	tb.Helper()
	p, err := NewProxy(tb.Context(), c.Address())
	if err != nil {
		tb.Fatalf("starting a proxy: %v", err)
	}
	tb.Cleanup(p.Close)
	return p
}

// NewProxy listens on a loopback address and carries what it accepts to target until Close. ctx bounds the start only.
func NewProxy(ctx context.Context, target netip.AddrPort) (*Proxy, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	return serveProxy(ctx, listener, target)
}

// serveProxy accepts from listener, which it closes in the end.
func serveProxy(ctx context.Context, listener net.Listener, target netip.AddrPort) (*Proxy, error) {
	address, err := netip.ParseAddrPort(listener.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("reading an address: %w", err)
	}
	p := &Proxy{
		target: target, listener: listener, address: address,
		conns: map[net.Conn]struct{}{}, open: make(chan struct{}),
	}
	close(p.open)
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	p.tasks.Go(p.accept)
	return p, nil
}

// Addr returns where the proxy listens.
func (p *Proxy) Addr() netip.AddrPort { return p.address }

// Traffic returns what the proxy has carried so far.
func (p *Proxy) Traffic() Traffic {
	return Traffic{ToServer: p.toServer.Load(), ToClient: p.toClient.Load(), Connections: p.accepted.Load()}
}

// Freeze stops the flow without closing anything: to both ends the other has gone silent, and a new connection
// opens but never answers. Data on its way arrives after Resume.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flowsLocked() {
		p.open = make(chan struct{})
	}
}

// Cut resets every connection, and closes new ones at once, until Resume.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for conn := range p.conns {
		reset(conn)
	}
}

// Resume ends Freeze and Cut.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
	if !p.flowsLocked() {
		close(p.open)
	}
}

// Close ends every connection and waits until all is gone.
func (p *Proxy) Close() {
	p.cancel()
	_ = p.listener.Close()
	p.Cut()
	p.tasks.Wait()
}

// accept runs until Close and has a task for each connection, which Close waits for.
func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.accepted.Add(1)
		p.tasks.Go(func() { p.relay(client) })
	}
}

// relay joins a client with the server until either ends the connection.
func (p *Proxy) relay(client net.Conn) {
	if !p.add(client) {
		return
	}
	defer p.remove(client)
	if !p.wait() {
		return
	}
	var d net.Dialer
	server, err := d.DialContext(p.ctx, "tcp4", p.target.String())
	if err != nil || !p.add(server) {
		return // the client sees its connection reset
	}
	defer p.remove(server)
	var back sync.WaitGroup
	back.Go(func() {
		p.copy(client, server, &p.toClient)
		reset(client)
	})
	p.copy(server, client, &p.toServer)
	reset(server)
	back.Wait()
}

// copy moves data until src ends. A frozen proxy holds back the end as well.
func (p *Proxy) copy(dst, src net.Conn, count *atomic.Int64) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if !p.wait() {
			return
		}
		if n > 0 {
			count.Add(int64(n))
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// wait returns when data may flow, with false when it never will because the proxy is closed.
func (p *Proxy) wait() bool {
	p.mu.Lock()
	open := p.open
	p.mu.Unlock()
	select {
	case <-open:
		return p.ctx.Err() == nil
	case <-p.ctx.Done():
		return false
	}
}

// add notes an open connection, or ends it when none may be.
func (p *Proxy) add(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		reset(conn)
		return false
	}
	p.conns[conn] = struct{}{}
	return true
}

func (p *Proxy) remove(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	reset(conn)
	delete(p.conns, conn)
}

func (p *Proxy) flowsLocked() bool {
	select {
	case <-p.open:
		return true
	default:
		return false
	}
}

// reset closes a connection with a reset, so that no port waits for late segments.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // closed already
	}
	_ = conn.Close()
}
