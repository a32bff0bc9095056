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
	"time"

	"github.com/nodecache/node-cache/internal/pipenet"
)

const dnsMessage = "application/dns-message"

// Secure enables TLS on new TCP connections: DNS over TLS for clients that offer the protocol "dot" or none, DNS over
// HTTPS by HTTP/2 for clients that offer "h2".
func (s *Server) Secure(cert tls.Certificate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secure = &tls.Config{
		Certificates: []tls.Certificate{cert}, NextProtos: []string{"dot", "h2"}, MinVersion: tls.VersionTLS12,
	}
}

func (s *Server) usesTLS() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.secure != nil
}

// Resumed returns the number of resumed TLS sessions.
func (s *Server) Resumed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resumed
}

// secured returns the connection after the handshake, unchanged if the server speaks no TLS, and nil if the handshake
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
	listener := pipenet.Listen(conn.LocalAddr())
	go func() { _ = listener.Deliver(context.Background(), conn, nil) }() // Serve accepts it
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
	act := s.recordQuery(q)
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
		_, _ = w.Write(msg) // the client may have closed
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
