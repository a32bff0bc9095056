// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
)

// A gate is a TCP listener whose connections may be another process's for a time: before
// this server accepts from it, and after it does no more.
type gate struct {
	net.Listener

	opened, given, closed          chan struct{}
	opening, giving, closing, once sync.Once // once: of the listener itself
}

func newGate(l net.Listener) *gate {
	return &gate{Listener: l, opened: make(chan struct{}), given: make(chan struct{}), closed: make(chan struct{})}
}

// Accept implements [net.Listener]. While the connections are another's it waits.
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
	case <-g.given: // which is not the end of the server
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

// shut closes the listener itself.
func (g *gate) shut() (err error) {
	g.once.Do(func() { err = g.Listener.Close() })
	return err
}

func (g *gate) open() { g.opening.Do(func() { close(g.opened) }) }

func (g *gate) give() {
	g.giving.Do(func() { close(g.given) })
	_ = g.shut()
}

// Adopt has the server serve on the listening socket of a file, which another process has
// opened and still uses, in place of one of Config.Addr that Listen would open. Nothing is
// accepted from it before Open. The file is closed, also after an error.
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

// Open has the server accept from a socket that it has adopted. It does nothing otherwise.
func (s *Server) Open() {
	if s.listener != nil {
		s.listener.open()
	}
}

// Raw is the listening TCP socket, to be given to another process; nil if there is none.
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

// Give leaves the TCP socket to another process that accepts from it. The unix socket
// stays. Connections that are open are closed after what is asked on them: whoever asks
// again asks the other process.
func (s *Server) Give() {
	s.http.SetKeepAlivesEnabled(false)
	if s.listener != nil {
		s.listener.give()
	}
}
