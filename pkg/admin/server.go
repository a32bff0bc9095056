// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/listen"
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
	cfg             Config
	access          accessControl
	http            *http.Server
	listener        *gate        // TCP; nil before Listen, and without an address
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
	if !cfg.Addr.IsValid() && cfg.Socket == "" {
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
		cfg: cfg, access: accessControl{hosts: cfg.Hosts, token: rand.Text()}, connections: newConnections(), cacheSlot: make(chan struct{}, 1), profiles: make(chan struct{}, maxProfiles),
		requestThrottle: newThrottle(), renderThrottle: newThrottle(),
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
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
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
	if s.cfg.Addr.IsValid() && s.listener == nil {
		if err := s.listenTCP(ctx); err != nil {
			return err
		}
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

func (s *Server) listenTCP(ctx context.Context) error {
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if e := raw.Control(func(fd uintptr) { err = s.setOptions(int(fd)) }); e != nil {
			return e
		}
		return err
	}}
	listener, err := lc.Listen(ctx, network(s.cfg.Addr), s.cfg.Addr.String())
	if err != nil {
		return fmt.Errorf("listening on tcp %s: %w", s.cfg.Addr, err)
	}
	s.listener = newGate(listener)
	s.listener.open()
	return nil
}

func (s *Server) setOptions(fd int) error {
	if s.cfg.FreeBind {
		if err := listen.FreeBind(fd, s.cfg.Addr.Addr()); err != nil {
			return err
		}
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
}

// network returns the network of one family, so that 0.0.0.0 does not include IPv6.
func network(addr netip.AddrPort) string {
	switch {
	case addr.Addr().Is4():
		return "tcp4"
	case addr.Addr().IsUnspecified():
		return "tcp" // [::] includes IPv4
	default:
		return "tcp6"
	}
}

// Addr returns the address with its actual port; invalid if there is none. Listen must have been called.
func (s *Server) Addr() netip.AddrPort {
	if s.listener == nil {
		return netip.AddrPort{}
	}
	return s.listener.Addr().(*net.TCPAddr).AddrPort()
}

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
		_ = s.http.Close() // ctx has not ended, so a listener has failed: stop the other listener
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
	if s.listener != nil {
		list = append(list, s.listener)
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
