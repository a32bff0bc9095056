// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Server answers DNS over UDP and TCP. It answers a TXT query of any name and class with its own name, A and AAAA
// queries with an address derived from it, and all others with no data.
type Server struct {
	name     string
	udp      net.PacketConn
	tcp      net.Listener
	paused   atomic.Bool
	udpCount atomic.Uint64
	tcpCount atomic.Uint64
	group    sync.WaitGroup

	mu       sync.Mutex // guards sessions, closed
	sessions map[net.Conn]struct{}
	closed   bool
}

// Serve starts a server in a host. The address may be added later. The caller closes the server.
func Serve(h *Host, addr netip.AddrPort, name string) (*Server, error) {
	s := &Server{name: name, sessions: map[net.Conn]struct{}{}}
	lc := net.ListenConfig{Control: freeBind}
	err := h.Do(func() (err error) {
		if s.udp, err = lc.ListenPacket(context.Background(), "udp", addr.String()); err != nil {
			return err
		}
		if s.tcp, err = lc.Listen(context.Background(), "tcp", addr.String()); err != nil {
			_ = s.udp.Close()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("serving at %s of host %s: %w", addr, h.Name, err)
	}
	setBuffer(s.udp)
	s.group.Go(s.serveUDP)
	s.group.Go(s.serveTCP)
	return s, nil
}

// freeBind allows a socket to bind an address that no link has yet.
func freeBind(network, _ string, c syscall.RawConn) error {
	level, option := unix.IPPROTO_IP, unix.IP_FREEBIND
	if network[len(network)-1] == '6' {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_FREEBIND
	}
	var failed error
	err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, option, 1) })
	if err == nil {
		err = failed
	}
	return err
}

// setBuffer enlarges a UDP socket's buffers, so that a busy test does not lose packets that the node has delivered.
func setBuffer(conn any) {
	const size = 8 << 20
	if raw, err := conn.(syscall.Conn).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size) })
	}
}

// Queries returns the number of queries received.
func (s *Server) Queries() (udp, tcp uint64) { return s.udpCount.Load(), s.tcpCount.Load() }

// Pause makes the server drop all queries, or answer again.
func (s *Server) Pause(on bool) { s.paused.Store(on) }

// Close closes the server and its connections.
func (s *Server) Close() {
	_ = s.udp.Close()
	_ = s.tcp.Close()
	s.mu.Lock()
	s.closed = true
	for c := range s.sessions {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.group.Wait()
}

func (s *Server) serveUDP() {
	query, answer := make([]byte, 4096), make([]byte, 0, 4096)
	for {
		n, from, err := s.udp.ReadFrom(query)
		if err != nil {
			return // closed
		}
		s.udpCount.Add(1)
		if s.paused.Load() {
			continue
		}
		if answer, err = appendAnswer(answer[:0], query[:n], s.name); err == nil {
			_, _ = s.udp.WriteTo(answer, from)
		}
	}
}

func (s *Server) serveTCP() {
	for {
		c, err := s.tcp.Accept()
		if err != nil {
			return // closed
		}
		if !s.keep(c) {
			_ = c.Close()
			return
		}
		s.group.Go(func() {
			s.serveSession(c)
			s.mu.Lock()
			delete(s.sessions, c)
			s.mu.Unlock()
			_ = c.Close()
		})
	}
}

func (s *Server) keep(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.sessions[c] = struct{}{}
	}
	return !s.closed
}

func (s *Server) serveSession(c net.Conn) {
	query, answer := make([]byte, 65536), []byte(nil)
	for {
		n, err := readMessage(c, query)
		if err != nil {
			return
		}
		s.tcpCount.Add(1)
		if s.paused.Load() {
			continue
		}
		if answer, err = appendAnswer(append(answer[:0], 0, 0), query[:n], s.name); err != nil {
			return
		}
		binary.BigEndian.PutUint16(answer, uint16(len(answer)-2))
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// readMessage reads a length-prefixed message into b, which has room for the longest one.
func readMessage(r io.Reader, b []byte) (int, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return 0, err
	}
	return io.ReadFull(r, b[:binary.BigEndian.Uint16(length[:])])
}
