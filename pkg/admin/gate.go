// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
)

// A gate is a TCP listener shared with another process. The other process accepts the connections before open and after handOver.
type gate struct {
	net.Listener

	opened, handedOver, closed     chan struct{}
	opening, giving, closing, once sync.Once // once: Listener is closed only once
}

func newGate(l net.Listener) *gate {
	return &gate{Listener: l, opened: make(chan struct{}), handedOver: make(chan struct{}), closed: make(chan struct{})}
}

// Accept implements [net.Listener]. It blocks while the other process accepts.
func (g *gate) Accept() (net.Conn, error) {
	select {
	case <-g.opened:
	case <-g.closed:
		return nil, net.ErrClosed
	}
	conn, err := g.Listener.Accept()
	if err == nil {
		return conn, nil
	}
	select {
	case <-g.handedOver: // Accept failed because handOver closed Listener: wait, so that the server does not end
		<-g.closed
		return nil, net.ErrClosed
	default:
		return nil, err
	}
}

// Close implements [net.Listener].
func (g *gate) Close() error {
	g.closing.Do(func() { close(g.closed) })
	return g.shut()
}

// shut closes Listener, if it is still open.
func (g *gate) shut() (err error) {
	g.once.Do(func() { err = g.Listener.Close() })
	return err
}

func (g *gate) open() { g.opening.Do(func() { close(g.opened) }) }

func (g *gate) handOver() {
	g.giving.Do(func() { close(g.handedOver) })
	_ = g.shut()
}

// Adopt makes the server use the listening socket of a file that another process opened and still uses, in
// place of Config.Addr. The server accepts nothing before Open. Adopt closes the file in any case.
func (s *Server) Adopt(f *os.File) error {
	defer func() { _ = f.Close() }()
	opened, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("taking over tcp %s: %w", s.cfg.Addr, err)
	}
	if _, ok := opened.(*net.TCPListener); !ok {
		_ = opened.Close()
		return fmt.Errorf("taking over tcp %s: %s is another socket", s.cfg.Addr, opened.Addr().Network())
	}
	s.listener = newGate(opened)
	return nil
}

// Open starts accepting connections from an adopted socket. Without an adopted socket it does nothing.
func (s *Server) Open() {
	if s.listener != nil {
		s.listener.open()
	}
}

// Raw returns the listening TCP socket, to pass it to another process; nil if there is none.
func (s *Server) Raw() syscall.RawConn {
	if s.listener == nil {
		return nil
	}
	l, ok := s.listener.Listener.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := l.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// Give leaves the TCP socket to another process. The unix socket stays. Open connections are closed after
// their current request, so that further requests reach the other process.
func (s *Server) Give() {
	s.http.SetKeepAlivesEnabled(false)
	if s.listener != nil {
		s.listener.handOver()
	}
}
