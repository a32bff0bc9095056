// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/relay"
)

// ends serves handler at one end, and returns the other end and what Serve returns.
func ends(ctx context.Context, t *testing.T, handler http.HandlerFunc) (net.Conn, <-chan error) {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { _ = near.Close() })
	ended := make(chan error, 1)
	go func() { ended <- relay.Serve(ctx, far, far, handler) }()
	return near, ended
}

func get(t *testing.T, c http.RoundTripper, path string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://agent"+path, nil)
	assert.NoError(t, err)
	return c.RoundTrip(r)
}

// TestRelay has a reply without an end, which its client does not read, beside short ones. Its writer waits. When the client closes the stream,
// the writer and the server end.
func TestRelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var written atomic.Int64
		stopped := make(chan struct{})
		near, ended := ends(t.Context(), t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/short" {
				_, _ = io.WriteString(w, "yes")
				return
			}
			defer close(stopped)
			for line := []byte(strings.Repeat("x", 1<<10)); ; written.Add(int64(len(line))) {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		})
		client, err := relay.Client(t.Context(), near)
		assert.NoError(t, err)
		endless, err := get(t, client, "/endless")
		assert.NoError(t, err)
		defer func() { _ = endless.Body.Close() }()
		synctest.Wait()
		if n := written.Load(); n < 64<<10 || n > 192<<10 {
			t.Errorf("%d bytes written that are not read, want about 64 KiB", n)
		}
		for range 3 {
			reply, err := get(t, client, "/short")
			assert.NoError(t, err)
			body, err := io.ReadAll(reply.Body)
			assert.NoError(t, errors.Join(err, reply.Body.Close()))
			assert.Equal(t, "body", "yes", string(body))
		}
		_, err = io.CopyN(io.Discard, endless.Body, 1<<20)
		assert.NoError(t, err)
		assert.NoError(t, near.Close())
		<-stopped
		assert.NoError(t, <-ended)
	})
}

// TestServeEnds ends without a request: with its input, with its context, and when the other end answers no ping.
func TestServeEnds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		do   func(near net.Conn, cancel func())
		want time.Duration
	}{
		{"the input ends", func(near net.Conn, _ func()) { _ = near.Close() }, 0},
		{"no HTTP/2", func(near net.Conn, _ func()) {
			go func() { _, _ = io.WriteString(near, "GET / HTTP/1.1\r\nHost: agent\r\n\r\n") }()
		}, 0},
		{"the context ends", func(_ net.Conn, cancel func()) { cancel() }, 0},
		{"the other end is gone", func(near net.Conn, _ func()) {
			go func() { _, _ = io.Copy(io.Discard, near) }()
			_, _ = io.WriteString(near, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		}, 20 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				near, ended := ends(ctx, t, http.NotFound)
				began := time.Now()
				tt.do(near, cancel)
				assert.NoError(t, <-ended)
				_ = near.Close()
				assert.Equal(t, "time", tt.want, time.Since(began))
			})
		})
	}
}

// TestClientEnds has servers that send what is no HTTP/2, or nothing any more.
func TestClientEnds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, sends string
		want        time.Duration
	}{
		{"garbage", strings.Repeat("\x1b[2J", 1000), 0},
		{"nothing", "\x00\x00\x00\x04\x00\x00\x00\x00\x00", 20 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, far) }()
				go func() { _, _ = io.WriteString(far, tt.sends) }()
				began := time.Now()
				client, err := relay.Client(t.Context(), near)
				assert.NoError(t, err)
				if _, err := get(t, client, "/"); err == nil { //nolint:bodyclose // it fails
					t.Error("a reply")
				}
				assert.Equal(t, "time", tt.want, time.Since(began))
				_ = far.Close()
			})
		})
	}
}
