// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/unixsock"
)

// What Listen finds at the socket's path.
var (
	ErrSocketTaken = unixsock.ErrInUse
	ErrNoSocket    = unixsock.ErrNotSocket
)

const (
	// maxHeader bounds a request's header in bytes; net/http allows itself 4 KiB
	// more. A Prometheus scrape sends some 300.
	maxHeader = 8 << 10
	// maxConns bounds the connections. A probe and two scrapers keep three open.
	maxConns = 128
	// maxPages bounds the pages that are made or written at once, each of which takes
	// memory, and maxProfiles the profiles.
	maxPages    = 16
	maxProfiles = 4

	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	// writeTimeout runs from the end of the header to the end of the reply.
	// net/http/pprof adds the length of the profile that is asked for.
	writeTimeout = 30 * time.Second
	idleTimeout  = 2 * time.Minute
	drainTimeout = 5 * time.Second
)

// Config is what a server is made from.
type Config struct {
	Addr netip.AddrPort // port 0: the kernel chooses; the zero value: none, and Socket is given
	// FreeBind lets Listen bind an address that no link of the machine has yet, and
	// that may go and come back while the server runs. Of Linux only.
	FreeBind bool
	Socket   string       // path of a unix socket that serves the pages too, in a folder that exists; empty: none
	Hosts    []string     // names, lower-case and without a dot at the end, in Host headers of requests to Addr, besides addresses and localhost
	Metrics  http.Handler // serves /metrics
	Ready    func() error // nil error: ready to serve; else its text is the body of a 503
	Live     func() error // as Ready, for "need not be restarted"; nil func: always alive
	Status   func() any   // rendered as JSON or as text; see [Server.Handler]
	Cache    *Cache       // the pages of the cache; nil: there are none
	// Checks gives what /healthcheck/ lists; nil: there is no such page. It must not
	// wait.
	Checks func() []Check
	Log    *slog.Logger // nil: silent
}

// Stats counts since the start.
type Stats struct {
	Refused uint64 // connections closed because too many were open
	Busy    uint64 // requests that found too many pages on their way: refused, or a slower one was
	Panics  uint64 // requests cut short by a defect in a handler
}

// A Server serves the pages on one TCP address, one unix socket, or both.
type Server struct {
	cfg      Config
	http     *http.Server
	listener *gate        // of TCP; nil before Listen, and without an address
	socket   net.Listener // nil before Listen, and without a path
	visits   *visits
	walks    chan struct{} // holds one value while a page of the cache is made
	profiles chan struct{} // holds one for each profile under way
	requests *pace         // of all
	making   *pace         // of those for pages that take time to make
	panics   atomic.Uint64
}

// New checks cfg. It opens nothing.
func New(cfg Config) (*Server, error) {
	if !cfg.Addr.IsValid() && cfg.Socket == "" {
		return nil, errors.New("an admin server needs an address or a socket")
	}
	if cfg.Metrics == nil || cfg.Ready == nil || cfg.Status == nil {
		return nil, errors.New("an admin server needs Metrics, Ready, and Status")
	}
	if cfg.Cache != nil && cfg.Cache.missing() {
		return nil, errors.New("the cache pages need Get, Top, and Flush")
	}
	if cfg.Live == nil {
		cfg.Live = func() error { return nil }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, visits: newVisits(), walks: make(chan struct{}, 1), profiles: make(chan struct{}, maxProfiles), requests: newPace(), making: newPace()}
	s.http = &http.Server{
		Handler:           s.Handler(),
		MaxHeaderBytes:    maxHeader,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		ConnContext:       s.visits.come,
		ConnState:         s.connState,
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
	}
	return s, nil
}

// connState follows what becomes of connections.
func (s *Server) connState(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateActive, http.StateIdle:
		s.visits.seen(conn)
	case http.StateClosed, http.StateHijacked:
		s.visits.leave(conn)
	case http.StateNew:
	}
}

// Listen binds the address, unless a socket was adopted, and the unix socket. The address with SO_REUSEPORT, so that a
// successor can listen before this server stops; the socket only if nobody listens
// there. After an error nothing stays open. It starts no goroutine.
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
		if err := bindFreely(fd, s.cfg.Addr.Addr()); err != nil {
			return err
		}
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
}

// network names the family, so that 0.0.0.0 is not taken for both.
func network(addr netip.AddrPort) string {
	switch {
	case addr.Addr().Is4():
		return "tcp4"
	case addr.Addr().IsUnspecified():
		return "tcp" // [::] serves IPv4 too
	default:
		return "tcp6"
	}
}

// Addr is the address that is served, with the port the kernel chose if the
// configured one is 0; invalid if there is none. Listen must have been called.
func (s *Server) Addr() netip.AddrPort {
	if s.listener == nil {
		return netip.AddrPort{}
	}
	return s.listener.Addr().(*net.TCPAddr).AddrPort()
}

// Run serves until ctx ends. Then it takes no more connections, cuts profiles
// short, waits up to 5 s for the requests under way and closes what is left. A
// handler that still works by then is not waited for. Listen must have been
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
		_ = s.http.Close() // one has ended by itself: no more of the other
		return s.join(ended)
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := s.http.Shutdown(drain); err != nil {
		_ = s.http.Close()
	}
	return s.join(ended)
}

// listeners are those that Listen has made.
func (s *Server) listeners() (list []net.Listener) {
	if s.listener != nil {
		list = append(list, s.listener)
	}
	if s.socket != nil {
		list = append(list, s.socket)
	}
	return list
}

// serve serves what comes on one listener until the server stops.
func (s *Server) serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving http on %s: %w", l.Addr(), err)
	}
	return nil
}

// join waits for every listener to end and gives their errors.
func (s *Server) join(ended <-chan error) error {
	var err error
	for range cap(ended) {
		err = errors.Join(err, <-ended)
	}
	return err
}

// Close gives up the listeners of a server that does not run.
func (s *Server) Close() {
	for _, l := range s.listeners() {
		_ = l.Close()
	}
}

// Stats may be called at any time.
func (s *Server) Stats() Stats {
	refused, busy := s.visits.stats()
	return Stats{Refused: refused, Busy: busy, Panics: s.panics.Load()}
}
