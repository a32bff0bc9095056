// SPDX-License-Identifier: Apache-2.0

package upstreamtest

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
)

// A Server answers DNS queries by its script, over sockets, in memory or both.
type Server struct {
	mu      sync.Mutex // guards the fields below
	script  Script
	queries []Query
	probes  int
	streams int
	secure  *tls.Config // nil: plain
	resumed int
}

// New makes a server. It opens nothing.
func New(script Script) *Server { return &Server{script: script} }

// SetScript replaces the script for new queries.
func (s *Server) SetScript(script Script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = script
}

// Queries returns all queries so far, in order of arrival.
func (s *Server) Queries() []Query {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Query(nil), s.queries...)
}

// Probes returns the number of probes. Queries does not include them.
func (s *Server) Probes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.probes
}

// Connections returns the number of TCP connections so far.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams
}

// Listen opens a UDP and a TCP socket on one port of 127.0.0.1. They are closed at the end of the test, which waits
// for everything that the server started.
func (s *Server) Listen(tb testing.TB) netip.AddrPort {
	tb.Helper()
	for range 20 { // the UDP port may be taken for TCP
		pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			tb.Fatalf("listening on UDP: %v", err)
		}
		addr := pc.LocalAddr().(*net.UDPAddr).AddrPort()
		ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
		if err != nil {
			_ = pc.Close()
			continue
		}
		end := s.serve(pc, ln)
		tb.Cleanup(end)
		return addr
	}
	tb.Fatal("no port is free for both UDP and TCP")
	return netip.AddrPort{}
}

// serve answers on both sockets until end is called, which waits for everything.
func (s *Server) serve(pc *net.UDPConn, ln *net.TCPListener) (end func()) {
	var running sync.WaitGroup
	done := make(chan struct{})
	running.Go(func() { s.serveUDP(pc, done) })
	running.Go(func() {
		for {
			conn, err := ln.AcceptTCP()
			if err != nil {
				return
			}
			running.Go(func() { s.serveTCP(conn, done) })
		}
	})
	return func() {
		close(done)
		_ = pc.Close()
		_ = ln.Close()
		running.Wait()
	}
}

func (s *Server) serveUDP(pc *net.UDPConn, done <-chan struct{}) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		buf := make([]byte, 65535)
		n, from, err := pc.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		q := parse(buf[:n])
		q.Network, q.From = "udp", from
		act := s.recordQuery(q)
		running.Go(func() {
			act.perform(q, done, func(msg []byte) {
				_, _ = pc.WriteToUDPAddrPort(msg, from) // the client may have closed
			})
		})
	}
}

// serveTCP serves one connection, real or in memory, with or without TLS, until either side closes it or done is
// closed.
func (s *Server) serveTCP(bare net.Conn, done <-chan struct{}) {
	var running sync.WaitGroup
	defer running.Wait()
	closed := make(chan struct{})
	hangUp := sync.OnceFunc(func() {
		close(closed)
		_ = bare.Close()
	})
	defer hangUp()
	running.Go(func() {
		select {
		case <-done:
			hangUp()
		case <-closed:
		}
	})
	number := s.connected()
	conn := s.secured(bare)
	if conn == nil {
		return
	}
	network := "tcp"
	if secured, ok := conn.(*tls.Conn); ok {
		network = "tls"
		if secured.ConnectionState().NegotiatedProtocol == "h2" {
			s.serveHTTP(secured, number)
			return
		}
	}
	st := &stream{Conn: conn, server: s, bare: bare, hangUp: hangUp, closed: closed, network: network, number: number}
	for st.serveOne(&running) {
	}
}

// A stream is a connection that carries frames.
type stream struct {
	net.Conn
	server  *Server
	bare    net.Conn // below TLS
	hangUp  func()
	closed  <-chan struct{}
	network string
	number  int
	writing sync.Mutex // one frame at a time
}

// serveOne reads a query and starts its answer. It reports false at the end.
func (st *stream) serveOne(running *sync.WaitGroup) bool {
	raw, err := readFrame(st)
	if err != nil {
		return false
	}
	q := parse(raw)
	q.Network, q.Conn = st.network, st.number
	if from, ok := st.bare.RemoteAddr().(*net.TCPAddr); ok {
		q.From = from.AddrPort()
	}
	act := st.server.recordQuery(q)
	running.Go(func() {
		act.perform(q, st.closed, func(msg []byte) {
			st.writing.Lock()
			defer st.writing.Unlock()
			writeFrame(st, msg, act.Split)
		})
		if tcp, ok := st.bare.(*net.TCPConn); ok && act.Reset {
			_ = tcp.SetLinger(0)
		}
		if act.Close || act.Reset {
			st.hangUp()
		}
	})
	return true
}

func (s *Server) connected() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams++
	return s.streams
}

// recordQuery records a query and calls the script.
func (s *Server) recordQuery(q Query) Action {
	s.mu.Lock()
	script := s.script
	if q.Probe {
		s.probes++
	} else {
		s.queries = append(s.queries, q)
	}
	s.mu.Unlock()
	return script(q)
}

// perform performs the action, except for closing the connection. It stops if done is closed.
func (a *Action) perform(q Query, done <-chan struct{}, send func([]byte)) {
	if a.Delay > 0 {
		delay := time.NewTimer(a.Delay)
		defer delay.Stop()
		select {
		case <-delay.C:
		case <-done:
			return
		}
	}
	switch {
	case a.Drop:
	case len(a.Raw) > 0:
		for _, raw := range a.Raw {
			send(raw(q.Raw))
		}
	case a.Reset, a.Close && q.HTTP == nil:
	default:
		if msg := a.answer(q); msg != nil {
			send(msg)
		}
	}
}

func readFrame(r io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(r, frame)
	return frame, err
}

// writeFrame writes the message with its length, at most split bytes at once. It ignores errors: the client may have
// closed.
func writeFrame(w io.Writer, msg []byte, split int) {
	frame := append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)
	if split == 0 {
		split = len(frame)
	}
	for len(frame) > 0 {
		n, err := w.Write(frame[:min(split, len(frame))])
		if err != nil {
			return
		}
		frame = frame[n:]
	}
}
