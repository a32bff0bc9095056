// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/remotecommand"

	"github.com/nodecache/node-cache/pkg/admin/relay"
	"github.com/nodecache/node-cache/pkg/hint"
)

const (
	// maxMessage bounds the bytes of a message from a node. The API server sends up to 32 KiB.
	maxMessage = 1 << 20
	// maxText bounds the bytes kept of the standard error and of the status of a program that runs for long, and of a refusal.
	maxText = 16 << 10
	// lastWords bounds the time to read why a program ended.
	lastWords = time.Second
)

// An agent is a connection to the admin server of a node's agent, through the agent's unix socket. Every page is open there.
type agent struct {
	pod    string
	stream *stream
	client *http.ClientConn
}

// connect connects to the agent of a node. The connection ends with ctx.
func (c *cluster) connect(ctx context.Context, n *node) (*agent, error) {
	pod, err := n.agent()
	if err != nil {
		return nil, err
	}
	conn, err := c.start(ctx, pod.Name, true, "relay")
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	a := &agent{pod: pod.Name, stream: newStream(conn)}
	if a.client, err = relay.Client(ctx, a.stream); err != nil {
		return nil, a.whyEnded(err)
	}
	return a, nil
}

// get requests a page. The caller closes the body of the response, which has status 200.
func (a *agent) get(ctx context.Context, path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+agentName+path, nil)
	if err != nil {
		return nil, err
	}
	reply, err := a.client.RoundTrip(r)
	if err != nil {
		return nil, a.whyEnded(err)
	}
	if reply.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(reply.Body, maxText))
		_ = reply.Body.Close()
		why, advice, _ := strings.Cut(strings.TrimSpace(string(text)), "\nhint: ")
		return nil, &hint.Error{Err: errors.New(cmp.Or(why, reply.Status)), Hint: cell(advice)}
	}
	return reply, nil
}

// whyEnded ends the connection, and returns why it ended: what the relay printed, else err.
func (a *agent) whyEnded(err error) error {
	_ = a.stream.Close()
	<-a.stream.ended
	if why := a.stream.why(); why != nil {
		return why
	}
	return fmt.Errorf("the connection to pod %s ended: %w", a.pod, err)
}

// A stream is the standard input and output of a program in a pod, as a [net.Conn] without deadlines.
type stream struct {
	*io.PipeReader // of standard output

	conn  webSocket
	ended chan struct{} // closed at the end of the connection

	mu     sync.Mutex // guards the fields below
	reply  reply
	status []byte
}

// newStream returns the stream of a program that conn leads to.
func newStream(conn webSocket) *stream {
	conn.SetReadLimit(maxMessage)
	out, in := io.Pipe()
	s := &stream{PipeReader: out, conn: conn, ended: make(chan struct{})}
	go s.pump(in)
	return s
}

// pump reads messages until the connection ends. It waits for the reader of standard output.
func (s *stream) pump(stdout *io.PipeWriter) {
	defer close(s.ended)
	defer func() { _ = stdout.Close() }()
	for {
		_, message, err := s.conn.ReadMessage()
		if err != nil {
			_ = s.conn.Close()
			return
		}
		switch {
		case len(message) == 0:
		case message[0] == remotecommand.StreamStdOut:
			_, _ = stdout.Write(message[1:]) // after Close it is left out
		default:
			s.receive(message[0], message[1:])
		}
	}
}

// receive keeps the text of one of the program's streams.
func (s *stream) receive(from byte, text []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch from {
	case remotecommand.StreamStdErr:
		s.reply.stderr.Write(text[:min(len(text), maxText-s.reply.stderr.Len())])
	case remotecommand.StreamErr:
		s.status = append(s.status, text[:min(len(text), maxText-len(s.status))]...)
	}
}

// Write implements [net.Conn].
func (s *stream) Write(p []byte) (int, error) {
	const binary = 2 // RFC 6455, section 5.6
	if err := s.conn.WriteMessage(binary, append([]byte{remotecommand.StreamStdIn}, p...)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close implements [net.Conn]. The API server closes the program's standard input then. What the program has sent until now is
// read, because it may say why it ended.
func (s *stream) Close() error {
	time.AfterFunc(lastWords, func() { _ = s.conn.Close() })
	return s.PipeReader.Close()
}

// why returns why the program ended; nil: it is not known.
func (s *stream) why() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.status) == 0 {
		return nil
	}
	if err := s.reply.setStatus(s.status); err != nil {
		return err
	}
	return s.reply.err()
}

// LocalAddr implements [net.Conn].
func (s *stream) LocalAddr() net.Addr { return relay.Addr{} }

// RemoteAddr implements [net.Conn].
func (s *stream) RemoteAddr() net.Addr { return relay.Addr{} }

// SetDeadline implements [net.Conn].
func (s *stream) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements [net.Conn].
func (s *stream) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements [net.Conn].
func (s *stream) SetWriteDeadline(time.Time) error { return nil }
