// SPDX-License-Identifier: Apache-2.0

package upstreamtest

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const dnsMessage = "application/dns-message"

// Secure has the server speak TLS on TCP connections that come from now on, with the certificate: DNS over TLS to who
// offers "dot" or nothing, DNS over HTTPS by HTTP/2 to who offers "h2".
func (s *Server) Secure(cert tls.Certificate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secure = &tls.Config{
		Certificates: []tls.Certificate{cert}, NextProtos: []string{"dot", "h2"}, MinVersion: tls.VersionTLS12,
	}
}

func (s *Server) secures() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.secure != nil
}

// Resumed is the number of TLS connections so far that took up an earlier session.
func (s *Server) Resumed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resumed
}

// secured is the connection after the handshake, or as it is if the server speaks no TLS. It is nil if the handshake
// failed.
func (s *Server) secured(conn net.Conn) net.Conn {
	s.mu.Lock()
	config := s.secure
	s.mu.Unlock()
	if config == nil {
		return conn
	}
	secured := tls.Server(conn, config)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if secured.HandshakeContext(ctx) != nil {
		return nil
	}
	if secured.ConnectionState().DidResume {
		s.mu.Lock()
		s.resumed++
		s.mu.Unlock()
	}
	return secured
}

// serveHTTP answers requests on one connection until either side ends it.
func (s *Server) serveHTTP(conn *tls.Conn, number int) {
	listener := &lone{conn: make(chan net.Conn, 1), ended: make(chan struct{}), addr: conn.LocalAddr()}
	listener.conn <- conn
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				_ = listener.Close()
			}
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.answerHTTP(w, r, conn, number)
		}),
	}
	_ = server.Serve(listener)
}

func (s *Server) answerHTTP(w http.ResponseWriter, r *http.Request, conn net.Conn, number int) {
	var raw []byte
	var err error
	if r.Method == http.MethodGet {
		raw, err = base64.RawURLEncoding.DecodeString(r.URL.Query().Get("dns"))
	} else {
		raw, err = io.ReadAll(r.Body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	q := parse(raw)
	q.Network, q.Conn, q.HTTP = "https", number, r
	act := s.take(q)
	answered := false
	act.perform(q, r.Context().Done(), func(msg []byte) {
		answered = true
		w.Header().Set("Content-Type", dnsMessage)
		if act.ContentType != "" {
			w.Header().Set("Content-Type", act.ContentType)
		}
		if act.Age > 0 {
			w.Header().Set("Age", strconv.Itoa(act.Age))
		}
		if act.Close {
			w.Header().Set("Connection", "close") // GOAWAY
		}
		if act.Status != 0 {
			w.WriteHeader(act.Status)
		}
		_, _ = w.Write(msg) // a client that has left is no fault
	})
	switch {
	case act.Reset:
		_ = conn.Close()
		panic(http.ErrAbortHandler)
	case act.Drop:
		<-r.Context().Done() // the client gives up, or the connection ends
	case !answered:
		panic(http.ErrAbortHandler)
	}
}

// A lone is a listener with one connection.
type lone struct {
	conn  chan net.Conn
	once  sync.Once
	ended chan struct{}
	addr  net.Addr
}

// Accept gives the connection, and then waits for the end.
func (l *lone) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conn:
		return conn, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

// Close has Accept return.
func (l *lone) Close() error {
	l.once.Do(func() { close(l.ended) })
	return nil
}

// Addr is the connection's.
func (l *lone) Addr() net.Addr { return l.addr }
