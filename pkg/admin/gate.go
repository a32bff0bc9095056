// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/listen"
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

// address returns the address of Listener; invalid for a nil gate.
func (g *gate) address() netip.AddrPort {
	if g == nil {
		return netip.AddrPort{}
	}
	return g.Addr().(*net.TCPAddr).AddrPort()
}

// A port is a TCP address of a Server.
type port struct {
	addr netip.AddrPort // as configured; the zero value: none
	gate *gate          // nil before Listen, and without an address
}

// ports are the TCP addresses of a Server.
type ports struct {
	freeBind      bool // Config.FreeBind
	plain, secure port // of Config.Addr and of Config.Secure
}

// configured returns the ports with an address.
func (p *ports) configured() (list []*port) {
	for _, own := range []*port{&p.plain, &p.secure} {
		if own.addr.IsValid() {
			list = append(list, own)
		}
	}
	return list
}

// listen opens the sockets that were not adopted.
func (p *ports) listen(ctx context.Context) error {
	for _, own := range p.configured() {
		if own.gate != nil {
			continue
		}
		lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			var err error
			if e := raw.Control(func(fd uintptr) { err = p.setOptions(int(fd), own.addr.Addr()) }); e != nil {
				return e
			}
			return err
		}}
		opened, err := lc.Listen(ctx, network(own.addr), hostPort(own.addr))
		if err != nil {
			return fmt.Errorf("listening on tcp %s: %w", own.addr, err)
		}
		own.gate = newGate(opened)
		own.gate.open()
	}
	return nil
}

func (p *ports) setOptions(fd int, addr netip.Addr) error {
	if p.freeBind {
		if err := listen.FreeBind(fd, addr); err != nil {
			return err
		}
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
}

// network returns the network of one family, so that 0.0.0.0 does not include IPv6.
func network(addr netip.AddrPort) string {
	switch {
	case addr.Addr().Is4():
		return "tcp4"
	case addr.Addr().IsUnspecified():
		return "tcp" // [::] includes IPv4
	default:
		return "tcp6"
	}
}

// hostPort returns an address for net.Listen. Without a host, net uses IPv4 alone where the kernel has no IPv6.
func hostPort(addr netip.AddrPort) string {
	if addr.Addr() == netip.IPv6Unspecified() {
		return fmt.Sprintf(":%d", addr.Port())
	}
	return addr.String()
}

// Adopt makes the server use the listening socket of a file that another process opened and still uses, in place of opening addr,
// which is Config.Addr or that of Config.Secure. The server accepts nothing before Open. Adopt closes the file in any case.
func (p *ports) Adopt(addr netip.AddrPort, f *os.File) error {
	defer func() { _ = f.Close() }()
	opened, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("taking over tcp %s: %w", addr, err)
	}
	if _, ok := opened.(*net.TCPListener); !ok {
		_ = opened.Close()
		return fmt.Errorf("taking over tcp %s: %s is another socket", addr, opened.Addr().Network())
	}
	for _, own := range p.configured() {
		if own.addr == addr {
			own.gate = newGate(opened)
			return nil
		}
	}
	_ = opened.Close()
	return fmt.Errorf("taking over tcp %s: not configured", addr)
}

// Open starts accepting connections from adopted sockets. Without one it does nothing.
func (p *ports) Open() {
	for g := range p.gates() {
		g.open()
	}
}

// gates returns the open TCP listeners.
func (p *ports) gates() iter.Seq[*gate] {
	return func(yield func(*gate) bool) {
		for _, own := range p.configured() {
			if own.gate != nil && !yield(own.gate) {
				return
			}
		}
	}
}

// Sockets returns the listening TCP sockets with their addresses, to pass them to another process.
func (p *ports) Sockets() iter.Seq2[netip.AddrPort, syscall.RawConn] {
	return func(yield func(netip.AddrPort, syscall.RawConn) bool) {
		for g := range p.gates() {
			l, ok := g.Listener.(syscall.Conn)
			if !ok {
				continue
			}
			raw, err := l.SyscallConn()
			if err == nil && !yield(g.address(), raw) {
				return
			}
		}
	}
}

// Give leaves the TCP sockets to another process. The unix socket stays. Open connections are closed after
// their current request, so that further requests reach the other process.
func (s *Server) Give() {
	s.http.SetKeepAlivesEnabled(false)
	for g := range s.gates() {
		g.handOver()
	}
}
