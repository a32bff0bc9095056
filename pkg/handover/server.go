// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/remote"
	"github.com/nodecache/node-cache/pkg/retry"
	"github.com/nodecache/node-cache/pkg/unixsock"
)

const (
	sendTimeout     = 2 * time.Second        // to send a message
	requestTimeout  = 5 * time.Second        // to wait for a request, before the sockets are sent
	snapshotTimeout = 10 * time.Second       // to write a snapshot
	stopTimeout     = 2 * time.Second        // to wait for the readers to stop; a reader that needs longer still stops
	listenInterval  = 5 * time.Second        // between checks that this agent owns the path
	retryDelay      = 100 * time.Millisecond // after an accept error or a panic
	maxConns        = 8                      // connections at once; more are closed
)

// Config configures a Client or a Server. All fields but Log and Recorder are required.
type Config struct {
	Path     string // path of the unix socket; its folder must exist
	Agent    string // this agent's name, 1..16 bytes
	Version  string
	Now      func() time.Time
	Log      *slog.Logger // nil: silent
	Recorder *Recorder    // nil: nothing is recorded

	// The following fields are for a Server.

	// Snapshot writes the cache snapshot for the successor.
	Snapshot func(ctx context.Context) error
	// Offers returns the sockets that this agent listens on, or an error if it cannot hand over now.
	Offers func() ([]Socket, error)
	// Release makes this agent stop reading the sockets of the claim and leave link and rules
	// alone. It returns when that is done or ctx ends.
	Release func(ctx context.Context, c Claim)
	// SuccessorLost is called when an agent that received the sockets has ended without taking
	// over. That agent may already have changed the link.
	SuccessorLost func(ctx context.Context)
}

// A Server waits for a successor of this agent and hands over to it. Its methods are safe for
// concurrent use.
type Server struct {
	cfg   Config
	guard panics.Guard
	given chan struct{} // closed once another agent has taken over

	mu         sync.Mutex         // guards what follows
	listener   *unixsock.Listener // nil: Run does not listen, another process owns the path, or listening failed
	successor  *conn              // the agent being served; nil: none
	hasSockets bool               // successor received the sockets
	leaving    bool               // this agent is shutting down: no other agent is admitted
	released   bool               // Release was called, which happens at most once
	gone       chan struct{}      // closed when the successor disconnects or cannot be welcomed
}

// NewServer checks cfg. It opens nothing.
func NewServer(cfg Config) (*Server, error) {
	if cfg.Path == "" || cfg.Agent == "" || cfg.Snapshot == nil || cfg.Offers == nil || cfg.Release == nil || cfg.SuccessorLost == nil || cfg.Now == nil {
		return nil, errors.New("a handover server needs Path, Agent, Snapshot, Offers, Release, SuccessorLost and Now")
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Recorder = cmp.Or(cfg.Recorder, new(Recorder))
	return &Server{cfg: cfg, guard: cfg.Recorder.Guard(cfg.Log), given: make(chan struct{})}, nil
}

// String names the task.
func (g *Server) String() string { return "hand-over" }

// HandedOver returns a channel that is closed once another agent has taken over.
func (g *Server) HandedOver() <-chan struct{} { return g.given }

// Run serves successors until ctx ends or one has taken over. It listens at the path unless another
// agent listens there, and checks that periodically. It joins all its goroutines.
func (g *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	defer group.Wait()
	defer g.stopListening()
	slots := make(chan struct{}, maxConns)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.given:
			return nil
		case <-timer.C:
		}
		if l := g.ensureListening(ctx); l != nil {
			group.Go(func() {
				for done := false; !done; { // after a panic, accept returns false and is called again
					done = g.accept(ctx, l, &group, slots) || retry.Sleep(ctx, retryDelay) != nil
				}
			})
		}
		timer.Reset(listenInterval)
	}
}

// ensureListening makes sure that this agent listens at the path. It returns a listener
// only if it has just made it.
func (g *Server) ensureListening(ctx context.Context) (made *unixsock.Listener) {
	defer g.recoverPanic(ctx)
	g.mu.Lock()
	has, over := g.listener, g.released
	g.mu.Unlock()
	if over || has != nil && has.OwnsPath() {
		return nil
	}
	l, err := unixsock.Listen(ctx, network, g.cfg.Path)
	if err != nil {
		g.problem(ctx, "handover socket unavailable", err)
		return nil
	}
	if has != nil {
		_ = has.Close()
	}
	g.mu.Lock()
	if over = g.released; !over {
		g.listener, made = l, l
	}
	g.mu.Unlock()
	if over { // released meanwhile
		_ = l.Close()
		return nil
	}
	g.cfg.Recorder.Update(func(s *Stats) { s.Listening, s.LastError = true, "" })
	g.cfg.Log.InfoContext(ctx, "handover socket listening", "socket", g.cfg.Path)
	return made
}

// problem records an error, and logs it unless the last one was the same.
func (g *Server) problem(ctx context.Context, what string, err error) {
	news := false
	g.cfg.Recorder.Update(func(s *Stats) {
		news = s.LastError != err.Error()
		s.LastError = err.Error()
	})
	if news {
		g.cfg.Log.WarnContext(ctx, what, "err", err, "socket", g.cfg.Path) //nolint:sloglint // callers pass constants
	}
}

// stopListening closes the listener. The path stays if a successor already listens there.
func (g *Server) stopListening() {
	g.mu.Lock()
	l := g.listener
	g.listener = nil
	g.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
	g.cfg.Recorder.Update(func(s *Stats) { s.Listening = false })
}

// accept serves connections until the listener is closed or ctx ends, and then returns true.
func (g *Server) accept(ctx context.Context, l *unixsock.Listener, group *sync.WaitGroup, slots chan struct{}) (done bool) {
	defer g.recoverPanic(ctx)
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return true
		}
		if err != nil {
			g.problem(ctx, "handover accept failed", err)
			if retry.Sleep(ctx, retryDelay) != nil { // the error may last, such as a lack of file descriptors
				return true
			}
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			_ = c.Close()
			continue
		}
		group.Go(func() {
			defer func() { <-slots }()
			g.serveConn(ctx, c)
		})
	}
}

// serveConn serves one agent until the connection ends.
func (g *Server) serveConn(ctx context.Context, raw *net.UnixConn) {
	defer g.recoverPanic(ctx)
	c, err := newConn(raw, g.cfg.Now)
	if err != nil {
		g.problem(ctx, "handover client rejected", err)
		return
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	hello, err := c.receiveType(typeHello, requestTimeout)
	if err != nil {
		return // not a successor, but for example alive, which only checks whether an agent listens
	}
	if !g.admit(c, hello) {
		return
	}
	defer g.endConn(ctx, c, hello.Agent)
	err = g.serveRequests(ctx, c)
	ended := errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) // the peer has ended
	if err != nil && !ended && ctx.Err() == nil {
		g.problem(ctx, "handover failed", err)
	}
}

// admit makes c the successor or sends the reason for a refusal.
func (g *Server) admit(c *conn, hello *message) bool {
	reason := g.refusal(c, hello)
	answer := &message{Type: typeWelcome, Protocol: Protocol, Agent: g.cfg.Agent, Version: g.cfg.Version}
	if reason != "" {
		answer.Type, answer.Reason = typeRefused, reason
	}
	g.cfg.Recorder.Update(func(s *Stats) {
		s.Asked++
		switch reason {
		case ReasonBusy:
			s.Busy++
		case ReasonProtocol:
			s.Mismatch++
		}
	})
	log := g.cfg.Log.With("agent", hello.Agent, "version", hello.Version)
	if reason != "" {
		log = log.With("refused", reason)
	}
	log.Info("handover requested")
	err := c.send(answer)
	if reason == "" && err != nil {
		g.forget(c)
	}
	return reason == "" && err == nil
}

func (g *Server) refusal(c *conn, hello *message) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case hello.Protocol != Protocol:
		return ReasonProtocol
	case g.released:
		return ReasonGiven
	case g.leaving:
		return ReasonLeaving
	case g.successor != nil:
		return ReasonBusy
	}
	g.successor, g.hasSockets, g.gone = c, false, make(chan struct{})
	return ""
}

// forget clears the successor if it is c.
func (g *Server) forget(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.successor == c {
		g.successor, g.hasSockets = nil, false
		close(g.gone)
	}
}

// endConn ends the connection of the successor. It admits the next successor only after SuccessorLost has returned, so that
// SuccessorLost cannot undo the work of the next one.
func (g *Server) endConn(ctx context.Context, c *conn, agent string) {
	defer g.forget(c)
	g.mu.Lock()
	lost := g.successor == c && g.hasSockets && !g.released
	g.mu.Unlock()
	if !lost || ctx.Err() != nil {
		return
	}
	g.cfg.Recorder.Update(func(s *Stats) { s.Abandoned++ })
	g.cfg.Log.WarnContext(ctx, "successor ended before takeover", "agent", agent)
	g.cfg.SuccessorLost(ctx)
}

// serveRequests handles requests until the successor has taken over or disconnects.
func (g *Server) serveRequests(ctx context.Context, c *conn) error {
	limit := requestTimeout
	for {
		m, err := c.receiveText(limit)
		if err != nil {
			return err
		}
		switch m.Type {
		case typeSnapshot:
			err = g.snapshot(ctx, c)
		case typeSockets:
			err = g.sendSockets(ctx, c)
			limit = 0 // no limit: the successor prepares to serve, and no other agent is served meanwhile
		case typeTake:
			return g.release(ctx, c, m.Claim)
		default:
			err = fmt.Errorf("%q: %w", m.Type, errUnexpected)
		}
		if err != nil {
			return err
		}
	}
}

func (g *Server) snapshot(ctx context.Context, c *conn) error {
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	answer := &message{Type: typeSnapshot}
	if err := g.guard.Do(ctx, func() error { return g.cfg.Snapshot(ctx) }); err != nil {
		answer.Problem = remote.Text(err.Error())
	}
	return c.send(answer)
}

// sendSockets sends the sockets. This agent keeps reading them.
func (g *Server) sendSockets(ctx context.Context, c *conn) error {
	var offers []Socket
	err := g.guard.Do(ctx, func() (err error) {
		offers, err = g.cfg.Offers()
		return err
	})
	if err != nil {
		return err
	}
	for first := true; first || len(offers) > 0; first = false {
		part := offers[:min(len(offers), maxFiles)]
		offers = offers[len(part):]
		if err := sendSocketsPart(c, part, len(offers) > 0); err != nil {
			return err
		}
	}
	g.mu.Lock()
	g.hasSockets = g.successor == c
	leaving := g.leaving
	g.mu.Unlock()
	if leaving { // Shutdown was called after the successor was admitted
		return c.send(&message{Type: typeLeaving})
	}
	return nil
}

func sendSocketsPart(c *conn, part []Socket, more bool) error {
	m := &message{Type: typeSockets, More: more}
	var files []*os.File
	defer func() { closeAll(files) }()
	for _, o := range part {
		f, err := duplicate(o.Raw, o.String())
		if err != nil {
			return err
		}
		files = append(files, f)
		m.Listens = append(m.Listens, o.Listen)
	}
	return c.send(m, files...)
}

// release leaves the sockets to the successor, which already reads them.
func (g *Server) release(ctx context.Context, c *conn, claim *Claim) error {
	g.mu.Lock()
	fits := claim != nil && g.hasSockets && g.successor == c && !g.released
	if fits {
		g.released = true
	}
	g.mu.Unlock()
	if !fits {
		return fmt.Errorf("%q: %w", typeTake, errUnexpected)
	}
	defer close(g.given) // also after an error: no other agent may take over
	now := g.cfg.Now()
	g.cfg.Recorder.Update(func(s *Stats) { s.Given, s.To, s.GivenAt = true, claim.Agent, now })
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	// Errors do not matter: the successor already serves.
	_ = g.guard.Do(ctx, func() error {
		g.cfg.Release(within, *claim)
		return nil
	})
	g.cfg.Log.InfoContext(ctx, "handed over", "agent", claim.Agent, "version", claim.Version, "took", g.cfg.Now().Sub(now))
	// The successor listens at the path as soon as it receives this message.
	g.stopListening()
	return c.send(&message{Type: typeGiven})
}

// Shutdown announces that this agent is about to end. It admits no new successor. It notifies one
// that has the sockets; one that receives them later is notified then. Shutdown waits until the successor has taken
// over or ended, timeout is over, or ctx ends. It reports whether this agent has handed over.
func (g *Server) Shutdown(ctx context.Context, timeout time.Duration) bool {
	g.mu.Lock()
	g.leaving = true
	taker, holds, gone, yielded := g.successor, g.hasSockets, g.gone, g.released
	g.mu.Unlock()
	if taker == nil && !yielded {
		return false
	}
	if holds && !yielded { // otherwise sendSockets notifies it
		_ = taker.send(&message{Type: typeLeaving}) // an error means that the successor has ended
	}
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	select {
	case <-g.given:
	case <-gone:
	case <-limit.C:
	case <-ctx.Done():
	}
	select {
	case <-g.given:
		return true
	default:
		return false
	}
}

// recoverPanic must be deferred. It recovers, logs and counts a panic; the deferring function returns.
func (g *Server) recoverPanic(ctx context.Context) {
	if panicked := recover(); panicked != nil {
		_ = g.guard.Recovered(ctx, panicked)
	}
}
