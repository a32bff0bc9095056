// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// maxRequests bounds the requests at the same time. A browser sends six.
	maxRequests = 32
	// maxHeader bounds the bytes of the header of a request or of a reply.
	maxHeader = 16 << 10
	// maxUnread and maxUnreadReply bound the bytes kept of all replies, and of one reply, that are not read yet.
	maxUnread      = 1 << 20
	maxUnreadReply = 64 << 10
	// pingAfter is the time of silence after which an end sends a ping. Without a reply within pingTimeout it closes the stream.
	pingAfter   = 10 * time.Second
	pingTimeout = 10 * time.Second
)

// Serve has handler answer the requests that come in, until in ends, the other end is gone, or ctx ends. A goroutine may
// still read from in afterwards.
func Serve(ctx context.Context, in io.Reader, out io.Writer, handler http.Handler) error {
	conn := &stream{Reader: in, Writer: out, closed: make(chan struct{})}
	server := &http.Server{
		Handler: handler, Protocols: protocols(), MaxHeaderBytes: maxHeader, ErrorLog: log.New(io.Discard, "", 0),
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxRequests, SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := server.Serve(&listener{conn: conn}); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return server.Close()
}

// Client returns a client of the server at the other end of conn, which it closes when the server is gone or sends no HTTP/2.
func Client(ctx context.Context, conn net.Conn) (*http.ClientConn, error) {
	t := &http.Transport{
		Protocols: protocols(), DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerConnection: maxUnread, MaxReceiveBufferPerStream: maxUnreadReply, SendPingTimeout: pingAfter, PingTimeout: pingTimeout,
		},
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}
	return t.NewClientConn(ctx, "http", "agent:80")
}

func protocols() *http.Protocols {
	p := &http.Protocols{}
	p.SetUnencryptedHTTP2(true)
	return p
}

// A listener accepts one connection, and ends with it.
type listener struct {
	conn *stream
	once sync.Once
}

// Accept implements [net.Listener].
func (l *listener) Accept() (conn net.Conn, err error) {
	l.once.Do(func() { conn = l.conn })
	if conn == nil {
		<-l.conn.closed
		return nil, net.ErrClosed
	}
	return conn, nil
}

// Close implements [net.Listener].
func (l *listener) Close() error { return l.conn.Close() }

// Addr implements [net.Listener].
func (l *listener) Addr() net.Addr { return Addr{} }

// A stream is a [net.Conn] of two byte streams. It has no deadlines.
type stream struct {
	io.Reader
	io.Writer

	once   sync.Once
	closed chan struct{}
}

func (s *stream) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (s *stream) LocalAddr() net.Addr              { return Addr{} }
func (s *stream) RemoteAddr() net.Addr             { return Addr{} }
func (s *stream) SetDeadline(time.Time) error      { return nil }
func (s *stream) SetReadDeadline(time.Time) error  { return nil }
func (s *stream) SetWriteDeadline(time.Time) error { return nil }

// An Addr is the address of an end.
type Addr struct{}

// Network implements [net.Addr].
func (Addr) Network() string { return "relay" }

// String implements [net.Addr].
func (Addr) String() string { return "relay" }
