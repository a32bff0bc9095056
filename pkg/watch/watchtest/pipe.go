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

	"github.com/nodecache/node-cache/internal/pipenet"
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

// A dialer connects clients to a server in this process.
type dialer struct {
	*pipenet.Listener

	mu   sync.Mutex            // guards the following fields
	away bool                  // connections are refused
	open map[net.Conn]struct{} // both ends of each connection
}

// Start serves until the test ends.
func (s *Server) Start(tb testing.TB) {
	tb.Helper()
	d := &dialer{Listener: pipenet.Listen(&net.UnixAddr{Name: "apiserver.test", Net: "pipe"}), open: make(map[net.Conn]struct{})}
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
	if err := d.Deliver(ctx, far, nil); err != nil {
		return nil, err
	}
	return near, nil
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
