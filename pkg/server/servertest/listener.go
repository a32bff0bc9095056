// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"context"
	"net"
	"net/netip"

	"github.com/nodecache/node-cache/internal/pipenet"
)

// A Listener is a net.Listener whose connections are pipes in memory. A write to a pipe returns when the far side has
// read it all.
type Listener struct{ *pipenet.Listener }

// NewListener returns a listener on 192.0.2.53:53.
func NewListener() *Listener {
	return &Listener{pipenet.Listen(net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.53:53")))}
}

// Dial connects from an address, and returns when the connection was accepted.
func (l *Listener) Dial(from netip.AddrPort) (net.Conn, error) {
	near, far := net.Pipe()
	served := pipe{Conn: far, local: l.Addr(), remote: net.TCPAddrFromAddrPort(from)}
	return near, l.Deliver(context.Background(), served, nil)
}

// Fail makes one Accept return err, and returns when it has.
func (l *Listener) Fail(err error) error { return l.Deliver(context.Background(), nil, err) }

// A pipe is a pipe with the addresses of a TCP connection.
type pipe struct {
	net.Conn
	local, remote net.Addr
}

func (p pipe) LocalAddr() net.Addr  { return p.local }
func (p pipe) RemoteAddr() net.Addr { return p.remote }
