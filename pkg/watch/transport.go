// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

const (
	// maxEvent bounds one watch event, in bytes. kube-apiserver accepts no object of more than 3 MiB.
	maxEvent = 8 << 20

	// maxObject bounds a list of one object, in bytes. A ConfigMap of 1 MiB may take six times that in JSON, plus its
	// managed fields.
	maxObject = 16 << 20

	// defaultMaxList bounds one list, in bytes, unless Config.MaxList is set.
	defaultMaxList = 1 << 30

	// maxErrorBody bounds the body of a failed response, in bytes. A Status has less than 1 KiB.
	maxErrorBody = 64 << 10

	// maxHeader bounds the headers of a response, in bytes.
	maxHeader = 64 << 10

	// maxPages bounds the pages of one list. A full page has 500 objects.
	maxPages = 2000
)

var (
	errLongEvent = errors.New("the server sent an event larger than 8 MiB")
	errLongList  = errors.New("the server sent a list larger than the limit")
)

// A boundedReader returns its error once more than left bytes are read.
type boundedReader struct {
	io.ReadCloser
	left *int64
	err  error
}

// Read implements [io.Reader].
func (r boundedReader) Read(p []byte) (int, error) {
	if *r.left <= 0 {
		return 0, r.err
	}
	n, err := r.ReadCloser.Read(p[:min(int64(len(p)), *r.left)])
	*r.left -= int64(n)
	return n, err
}

// listBudget is a context key. Its value is a *int64 that requests share: the bytes that they may still read.
type listBudget struct{}

// boundedCodecs bounds each event of a watch. Client-go does so for protobuf only, and the server chooses the encoding.
type boundedCodecs struct {
	runtime.NegotiatedSerializer
}

// SupportedMediaTypes implements [runtime.NegotiatedSerializer].
func (c boundedCodecs) SupportedMediaTypes() []runtime.SerializerInfo {
	list := slices.Clone(c.NegotiatedSerializer.SupportedMediaTypes())
	for i := range list {
		if list[i].StreamSerializer != nil {
			stream := *list[i].StreamSerializer
			stream.Framer = boundedFramer{stream.Framer}
			list[i].StreamSerializer = &stream
		}
	}
	return list
}

// A boundedFramer splits a stream into events of bounded length.
type boundedFramer struct {
	runtime.Framer
}

// NewFrameReader implements [runtime.Framer].
func (f boundedFramer) NewFrameReader(r io.ReadCloser) io.ReadCloser {
	left := int64(maxEvent)
	return frameReader{f.Framer.NewFrameReader(boundedReader{r, &left, errLongEvent}), &left}
}

// A frameReader allows maxEvent bytes for each frame.
type frameReader struct {
	io.ReadCloser
	left *int64
}

// Read implements [io.Reader]. A nil error means that the rest of a frame was read.
func (r frameReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err == nil {
		*r.left = maxEvent
	}
	return n, err
}

// maxAbandoned bounds the abandoned requests that still run.
const maxAbandoned = 8

// errTooManyHung is the error of a request that is not sent because too many earlier ones hang.
var errTooManyHung = errors.New("too many earlier requests hang, possibly in the kubeconfig's credential plugin")

// A tripper counts the requests, and bounds the decompressed bodies that client-go reads whole: all except those of
// watches. It returns when the request's context ends, even if the layers below do not: client-go runs a kubeconfig's
// credential plugin during a request, for as long as that takes. An abandoned request ends by itself or keeps hanging.
// Beyond maxAbandoned of them, new requests fail at once.
type tripper struct {
	next      http.RoundTripper
	most      int64          // maximum decompressed bytes of a response, if the request context has no listBudget
	count     *atomic.Uint64 // requests sent
	abandoned atomic.Int64
}

// RoundTrip implements [http.RoundTripper].
func (t *tripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.abandoned.Load() >= maxAbandoned {
		return nil, errTooManyHung
	}
	type outcome struct {
		resp *http.Response
		err  error
	}
	came := make(chan outcome)
	go func() {
		resp, err := t.send(req)
		select {
		case came <- outcome{resp, err}:
		case <-req.Context().Done():
			t.abandoned.Add(-1)
			if err == nil {
				_ = resp.Body.Close()
			}
		}
	}()
	select {
	case o := <-came:
		return o.resp, o.err
	case <-req.Context().Done():
		t.abandoned.Add(1)
		return nil, req.Context().Err()
	}
}

// send sends the request, and bounds the body of the response. It cuts the body of an error response without an error: the status
// code says enough.
func (t *tripper) send(req *http.Request) (*http.Response, error) {
	t.count.Add(1)
	resp, err := t.next.RoundTrip(req)
	if err != nil || resp.StatusCode == http.StatusOK && req.URL.Query().Get("watch") == "true" {
		return resp, err
	}
	if resp.StatusCode/100 != 2 {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxErrorBody), resp.Body}
		return resp, nil
	}
	left, ok := req.Context().Value(listBudget{}).(*int64)
	if !ok {
		left = new(t.most) // for this request alone
	}
	resp.Body = boundedReader{resp.Body, left, errLongList}
	return resp, nil
}

// CloseIdleConnections implements the method that [http.Client.CloseIdleConnections] calls.
func (t *tripper) CloseIdleConnections() { utilnet.CloseIdleConnectionsFor(t.next) }

// boundHeaders bounds the headers of responses: errors of the transport quote some, such as the status line of a proxy.
func boundHeaders(rt http.RoundTripper) http.RoundTripper {
	for inner := rt; ; {
		switch t := inner.(type) {
		case *http.Transport:
			t.MaxResponseHeaderBytes = maxHeader // this client's own transport: client-go shares one only for an equal cfg.Dial
			return rt
		case utilnet.RoundTripperWrapper:
			inner = t.WrappedRoundTripper()
		default:
			return rt
		}
	}
}

const (
	dialTimeout = 5 * time.Second
	keepAlive   = 15 * time.Second
)

// A connTracker tracks the connections to the API server. With HTTP/2, all watches share one connection, and client-go's
// pings detect a dead one after 45 s. That is too late for a short staleness limit, and pings prove nothing about a
// watch. So each connection records its last read. When a watch is abandoned, a silent connection is closed, so that the
// next watch does not use it.
type connTracker struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	now  func() time.Time

	mu   sync.Mutex // guards open
	open map[*trackedConn]struct{}
}

// A trackedConn is one connection.
type trackedConn struct {
	net.Conn
	tracker  *connTracker
	lastRead atomic.Int64 // time of the last read or of the dial; Unix nanoseconds
}

// newDialer returns a dialer for the API server.
func newDialer() *net.Dialer { return &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive} }

// dialContext opens a connection and tracks it until it is closed.
func (t *connTracker) dialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := t.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &trackedConn{Conn: conn, tracker: t}
	c.lastRead.Store(t.now().UnixNano())
	t.mu.Lock()
	t.open[c] = struct{}{}
	t.mu.Unlock()
	return c, nil
}

// Read records that the peer is alive.
func (c *trackedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.lastRead.Store(c.tracker.now().UnixNano())
	}
	return n, err
}

// Close stops tracking the connection.
func (c *trackedConn) Close() error {
	c.tracker.mu.Lock()
	delete(c.tracker.open, c)
	c.tracker.mu.Unlock()
	return c.Conn.Close()
}

// closeSilentSince closes the connections without a read since then.
func (t *connTracker) closeSilentSince(since time.Time) {
	t.mu.Lock()
	var silent []*trackedConn
	for c := range t.open {
		if c.lastRead.Load() < since.UnixNano() {
			silent = append(silent, c)
		}
	}
	t.mu.Unlock()
	for _, c := range silent {
		_ = c.Close() // the connection is abandoned
	}
}
