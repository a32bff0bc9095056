// SPDX-License-Identifier: Apache-2.0

package watchtest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// kubeconfig names a server that is reached by a [Server]'s Dial only.
const kubeconfig = `apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "http://apiserver.test:80"}}]
users: [{name: test, user: {token: test}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
`

// Kubeconfig writes a file that names the server, and gives its path.
func Kubeconfig(tb testing.TB) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}

// A dialer connects clients to a server in this process. It uses no socket, so that it can be part of a test in virtual
// time.
type dialer struct {
	conns chan net.Conn
	done  chan struct{}
	end   func()

	mu   sync.Mutex // guards the following fields
	away bool
	open map[net.Conn]struct{} // both ends
}

// Start serves until the test ends.
func (s *Server) Start(tb testing.TB) {
	tb.Helper()
	d := &dialer{conns: make(chan net.Conn), done: make(chan struct{}), open: make(map[net.Conn]struct{})}
	d.end = sync.OnceFunc(func() { close(d.done) })
	s.dials = d
	server := &http.Server{Handler: s} //nolint:gosec // time-outs are what is tested at the other end
	served := make(chan error, 1)
	go func() { served <- server.Serve(d) }()
	tb.Cleanup(func() {
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			tb.Error(err)
		}
	})
}

// Dial connects to the server, whatever the address.
func (s *Server) Dial(ctx context.Context, network, _ string) (net.Conn, error) {
	d := s.dials
	near, far := net.Pipe()
	d.mu.Lock()
	away := d.away
	if !away {
		d.open[near], d.open[far] = struct{}{}, struct{}{}
	}
	d.mu.Unlock()
	if away {
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	select {
	case d.conns <- far:
		return near, nil
	case <-d.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Kill closes every connection and takes none until Revive.
func (s *Server) Kill() {
	d := s.dials
	d.mu.Lock()
	defer d.mu.Unlock()
	d.away = true
	for c := range d.open {
		_ = c.Close()
	}
	clear(d.open)
}

// Revive takes connections again.
func (s *Server) Revive() {
	d := s.dials
	d.mu.Lock()
	defer d.mu.Unlock()
	d.away = false
}

// Accept implements [net.Listener].
func (d *dialer) Accept() (net.Conn, error) {
	select {
	case c := <-d.conns:
		return c, nil
	case <-d.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (d *dialer) Close() error {
	d.end()
	return nil
}

// Addr implements [net.Listener].
func (d *dialer) Addr() net.Addr { return &net.UnixAddr{Name: "apiserver.test", Net: "pipe"} }
