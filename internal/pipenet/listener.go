// SPDX-License-Identifier: Apache-2.0

// Package pipenet has a listener whose connections are in memory, so that time can be virtual.
package pipenet

import (
	"context"
	"net"
	"sync"
)

// A Listener is a [net.Listener] that accepts the connections of Deliver.
type Listener struct {
	addr     net.Addr
	arrivals chan arrival
	closed   chan struct{}
	end      func()
}

// An arrival is what one Accept returns.
type arrival struct {
	conn net.Conn
	err  error
}

// Listen returns a listener that says it has an address.
func Listen(addr net.Addr) *Listener {
	l := &Listener{addr: addr, arrivals: make(chan arrival), closed: make(chan struct{})}
	l.end = sync.OnceFunc(func() { close(l.closed) })
	return l
}

// Deliver makes one Accept return a connection, or an error. It returns when it has, when l is closed, or when ctx ends.
func (l *Listener) Deliver(ctx context.Context, conn net.Conn, failure error) error {
	select {
	case l.arrivals <- arrival{conn, failure}:
		return nil
	case <-l.closed:
		return net.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Accept implements [net.Listener].
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.arrivals:
		return a.conn, a.err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (l *Listener) Close() error {
	l.end()
	return nil
}

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return l.addr }
