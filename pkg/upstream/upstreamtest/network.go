// SPDX-License-Identifier: Apache-2.0

package upstreamtest

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"
)

// A Network connects to servers in memory. An address that is not in it refuses connections; a nil server never
// answers.
type Network map[netip.AddrPort]*Server

// Dial connects to the server at addr. What it starts ends when the connection is closed. It has the signature of
// upstream.Config.Dial.
func (n Network) Dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	s, ok := n[addr]
	if !ok {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	if s == nil && network == "tcp" {
		<-ctx.Done() // a handshake without an answer
		return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
	}
	if s == nil {
		s = New(Always(Action{Drop: true}))
	}
	ours, theirs := net.Pipe()
	if network == "tcp" {
		if s.usesTLS() {
			ours = newBufferedConn(ours)
		}
		go s.serveTCP(ours, nil) //nolint:contextcheck // it outlives the dial, and ends when theirs is closed
	} else {
		go s.servePackets(ours)
	}
	return theirs, nil
}

// servePackets treats each write on the pipe as a datagram.
func (s *Server) servePackets(conn net.Conn) {
	var running sync.WaitGroup
	defer running.Wait()
	closed := make(chan struct{})
	defer func() {
		close(closed)
		_ = conn.Close()
	}()
	for {
		buf := make([]byte, 4096) // for a query
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		q := parse(buf[:n])
		q.Network = "udp"
		act := s.recordQuery(q)
		running.Go(func() {
			act.perform(q, closed, func(msg []byte) {
				_, _ = conn.Write(msg) // the client may have closed
			})
		})
	}
}
