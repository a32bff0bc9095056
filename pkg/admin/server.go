// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/unixsock"
)

// Errors of Listen about the path of the unix socket.
var (
	ErrSocketTaken = unixsock.ErrInUse
	ErrNoSocket    = unixsock.ErrNotSocket
)

const (
	// maxHeader bounds a request's header in bytes; net/http allows 4 KiB more. A Prometheus scrape sends
	// about 300.
	maxHeader = 8 << 10
	// maxConns bounds the connections. A probe and two scrapers keep three open.
	maxConns = 128
	// maxPages bounds the pages rendered or written at once, because each needs memory. maxProfiles bounds
	// the profiles.
	maxPages    = 16
	maxProfiles = 4

	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	// writeTimeout runs from the end of the header to the end of the reply. net/http/pprof adds the length of
	// the profile.
	writeTimeout = 30 * time.Second
	idleTimeout  = 2 * time.Minute
	drainTimeout = 5 * time.Second
)

// Config configures a Server.
type Config struct {
	Addr netip.AddrPort // port 0: the kernel chooses; zero value: none, and Socket is set
	// FreeBind lets Listen bind an address that no link has yet, and that may go and come back while the
	// server runs. Linux only.
	FreeBind bool
	Secure   *Secure                      // a second address, with TLS; nil: none
	Socket   string                       // path of a unix socket in an existing folder; empty: none
	Hosts    []string                     // allowed Host headers of requests to Addr, besides addresses and localhost; lower-case, without a final dot
	Metrics  http.Handler                 // serves /metrics
	Ready    func() error                 // nil error: ready; else the body of a 503
	Live     func() error                 // nil error: no restart needed; nil func: always alive
	Status   func(named bool) any         // rendered as JSON or text, see [Server.Handler]; named: the client may see the names of pods and queries
	Cache    *Cache                       // the cache pages; nil: none
	Kernel   *Kernel                      // the page /kernel; nil: none
	Top      func(by string) (any, error) // what the pods of the node ask; rendered like the status; nil: no such page
	Watch    Watch                        // the queries as they come; nil: no such page
	// Front serves / and ScriptPath; nil: no such pages.
	Front func(http.ResponseWriter, *http.Request, View)
	// Checks lists the labels, of a-z, 0-9 and -, and the results of the probes of /healthcheck/; nil: no such page. It must not block.
	Checks func() iter.Seq2[string, error]
	Log    *slog.Logger // nil: no log
}

// Stats counts events since the start.
type Stats struct {
	Refused uint64 // connections closed because too many were open
	Busy    uint64 // requests over maxPages: refused, or a slower one was cut off
	Panics  uint64 // requests failed by a panic
}

// A Server serves the pages on a TCP address, a unix socket, or both.
type Server struct {
	ports
	cfg             Config
	access          accessControl
	http            *http.Server
	socket          net.Listener // nil before Listen, and without a path
	connections     *connections
	cacheSlot       chan struct{} // semaphore of the cache pages: one at a time
	profiles        chan struct{} // semaphore of the profiles
	requestThrottle *throttle     // throttle of all requests over TCP
	renderThrottle  *throttle     // throttle of pages that take time to render
	panics          atomic.Uint64
}

// New checks cfg. It opens no socket.
func New(cfg Config) (*Server, error) {
	if !cfg.Addr.IsValid() && cfg.Socket == "" && cfg.Secure == nil {
		return nil, errors.New("an admin server needs an address or a socket")
	}
	if cfg.Metrics == nil || cfg.Ready == nil || cfg.Status == nil {
		return nil, errors.New("an admin server needs Metrics, Ready, and Status")
	}
	if cfg.Live == nil {
		cfg.Live = func() error { return nil }
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	s := &Server{
		ports: ports{freeBind: cfg.FreeBind, plain: port{addr: cfg.Addr}}, cfg: cfg, access: accessControl{hosts: cfg.Hosts, token: rand.Text(), secure: cfg.Secure != nil}, connections: newConnections(), cacheSlot: make(chan struct{}, 1), profiles: make(chan struct{}, maxProfiles),
		requestThrottle: newThrottle(), renderThrottle: newThrottle(),
	}
	if cfg.Secure != nil {
		s.secure.addr = cfg.Secure.Addr
	}
	s.http = &http.Server{
		Handler:           s.Handler(),
		MaxHeaderBytes:    maxHeader,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		ConnContext:       s.connections.accept,
		ConnState:         s.connState,
		ErrorLog:          errorLog(cfg.Log.Handler()),
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){}, // no HTTP/2: see secured
	}
	return s, nil
}

// connState tracks the state of connections.
func (s *Server) connState(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateActive, http.StateIdle:
		s.connections.touch(conn)
	case http.StateClosed, http.StateHijacked:
		s.connections.remove(conn)
	case http.StateNew:
	}
}

// Listen binds the address, unless a socket was adopted, and the unix socket. SO_REUSEPORT allows a successor
// to listen before this server stops. The unix socket is bound only if no process listens there. After an
// error nothing stays open. Listen starts no goroutine.
func (s *Server) Listen(ctx context.Context) error {
	if err := s.listen(ctx); err != nil {
		s.Close()
		return err
	}
	if s.cfg.Socket == "" {
		return nil
	}
	socket, err := unixsock.Listen(ctx, "unix", s.cfg.Socket)
	if err != nil {
		s.Close()
		return fmt.Errorf("listening on unix socket %s: %w", s.cfg.Socket, err)
	}
	s.socket = socket
	return nil
}

// Addr returns the address with its actual port; invalid if there is none. Listen must have been called.
func (s *Server) Addr() netip.AddrPort { return s.plain.gate.address() }

// SecureAddr is Addr for Config.Secure.
func (s *Server) SecureAddr() netip.AddrPort { return s.secure.gate.address() }

// Run serves until ctx ends. Then it accepts no more connections, ends profiles, waits up to 5 s for running
// requests, and closes the rest. It does not wait for handlers that still run then. Listen must have been
// called.
func (s *Server) Run(ctx context.Context) error {
	s.http.BaseContext = func(net.Listener) context.Context { return ctx }
	serving, end := context.WithCancel(ctx)
	defer end()
	listeners := s.listeners()
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() {
			defer end()
			ended <- s.serve(l)
		}()
	}
	<-serving.Done()
	if ctx.Err() == nil {
		_ = s.http.Close() // ctx has not ended, so a listener has failed: stop the others
		return s.join(ended)
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := s.http.Shutdown(drain); err != nil {
		_ = s.http.Close()
	}
	return s.join(ended)
}

// listeners returns the open listeners.
func (s *Server) listeners() (list []net.Listener) {
	if g := s.plain.gate; g != nil {
		list = append(list, g)
	}
	if g := s.secure.gate; g != nil {
		list = append(list, s.secured(g))
	}
	if s.socket != nil {
		list = append(list, s.socket)
	}
	return list
}

// serve serves one listener until the server stops.
func (s *Server) serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving http on %s: %w", l.Addr(), err)
	}
	return nil
}

// join waits until the server has ended on all its listeners, and returns the errors.
func (s *Server) join(ended <-chan error) error {
	var err error
	for range cap(ended) {
		err = errors.Join(err, <-ended)
	}
	return err
}

// Close closes the listeners of a server that does not run.
func (s *Server) Close() {
	for _, l := range s.listeners() {
		_ = l.Close()
	}
}

// Stats may be called at any time.
func (s *Server) Stats() Stats {
	refused, busy := s.connections.stats()
	return Stats{Refused: refused, Busy: busy, Panics: s.panics.Load()}
}
