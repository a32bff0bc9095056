// SPDX-License-Identifier: Apache-2.0

package servertest

import (
	"net"
	"net/netip"
	"sync"
)

// A Listener is a net.Listener whose connections are pipes in memory, so that time
// can be virtual. A write to a pipe returns when the far side has read it all.
type Listener struct {
	backlog chan arrival
	once    sync.Once
	closed  chan struct{}
}

// An arrival is what one Accept returns.
type arrival struct {
	conn net.Conn
	err  error
}

// NewListener returns a listener on 192.0.2.53:53.
func NewListener() *Listener {
	return &Listener{backlog: make(chan arrival), closed: make(chan struct{})}
}

// Dial connects from an address, and returns when the connection was accepted.
func (l *Listener) Dial(from netip.AddrPort) (net.Conn, error) {
	near, far := net.Pipe()
	served := pipe{Conn: far, local: l.Addr(), remote: net.TCPAddrFromAddrPort(from)}
	if err := l.arrive(arrival{conn: served}); err != nil {
		return nil, err
	}
	return near, nil
}

// Fail makes one Accept return err, and returns when it has.
func (l *Listener) Fail(err error) error { return l.arrive(arrival{err: err}) }

func (l *Listener) arrive(a arrival) error {
	select {
	case l.backlog <- a:
		return nil
	case <-l.closed:
		return net.ErrClosed
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.backlog:
		return a.conn, a.err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.53:53"))
}

// A pipe is a pipe with the addresses of a TCP connection.
type pipe struct {
	net.Conn
	local, remote net.Addr
}

func (p pipe) LocalAddr() net.Addr  { return p.local }
func (p pipe) RemoteAddr() net.Addr { return p.remote }
