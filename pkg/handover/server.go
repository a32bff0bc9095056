// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/unixsock"
)

const (
	sendTimeout     = 2 * time.Second        // a message is sent or the other end is given up
	requestTimeout  = 5 * time.Second        // from the connection to the next request, before there is a taker
	snapshotTimeout = 10 * time.Second       // for a snapshot
	stopTimeout     = 2 * time.Second        // for the readers to stop; they go on to, if it takes longer
	listenInterval  = 5 * time.Second        // between two looks at whether the path is this agent's
	retryDelay      = 100 * time.Millisecond // after what should not happen
	maxConns        = 8                      // conversations at once; more are closed
)

// An Offer is a listening socket of this agent's.
type Offer struct {
	Listen

	Raw syscall.RawConn
}

// ServerConfig is what a Giver is made from. All but Log and Tally are required.
type ServerConfig struct {
	Path    string // of the unix socket, in a folder that exists
	Agent   string // this agent's name, 1..16 bytes
	Version string

	// Snapshot writes what this agent knows for its successor to read.
	Snapshot func(ctx context.Context) error
	// Offers are the sockets that this agent listens on; an error: not now.
	Offers func() ([]Offer, error)
	// Release has this agent read no more from the sockets that the claim is for, and leave
	// link and rules alone. It returns once that is so, or when ctx ends.
	Release func(ctx context.Context, c Claim)
	// SuccessorLost is called when an agent that had the sockets has ended without taking over. It
	// may have taken the link already.
	SuccessorLost func(ctx context.Context)

	Now      func() time.Time
	Log      *slog.Logger // nil: silent
	Recorder *Recorder    // nil: nothing is counted
}

// A Server waits for an agent that takes the place of this one. Its methods may be called
// from several goroutines.
type Server struct {
	cfg   ServerConfig
	given chan struct{} // closed once another agent has taken over

	mu         sync.Mutex         // guards what follows
	listener   *unixsock.Listener // nil: the path is another's, or could not be had
	successor  *conn              // has the sockets, or is about to get them; nil: nobody
	hasSockets bool               // taker has them
	leaving    bool               // this agent ends: nobody else gets them
	released   bool               // Yield was called: it is once
	gone       chan struct{}
}

// NewServer checks cfg. It opens nothing.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Path == "" || cfg.Agent == "" || cfg.Snapshot == nil || cfg.Offers == nil || cfg.Release == nil || cfg.SuccessorLost == nil || cfg.Now == nil {
		return nil, errors.New("handing over needs a path, a name, a clock and all that is to be done")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Recorder == nil {
		cfg.Recorder = new(Recorder)
	}
	return &Server{cfg: cfg, given: make(chan struct{})}, nil
}

// String names the task.
func (g *Server) String() string { return "hand-over" }

// HandedOver is closed once another agent has taken over.
func (g *Server) HandedOver() <-chan struct{} { return g.given }

// Run waits for an agent that takes over, and deals with it, until ctx ends or one has. It
// listens at the path unless another agent is heard there, and looks at that again and
// again. It joins what it started.
func (g *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	defer group.Wait()
	defer g.stopListening()
	heard := &connections{group: &group, slots: make(chan struct{}, maxConns)}
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
				for done := false; !done; { // until it is not cut short by a defect
					done = g.accept(ctx, l, heard) || !pause(ctx, retryDelay)
				}
			})
		}
		timer.Reset(listenInterval)
	}
}

// ensureListening sees to it that this agent listens at the path, and returns the listener if it is
// a new one.
func (g *Server) ensureListening(ctx context.Context) (made *unixsock.Listener) {
	defer g.recoverPanic()
	g.mu.Lock()
	has, over := g.listener, g.released
	g.mu.Unlock()
	if over || has != nil && has.OwnsPath() {
		return nil
	}
	l, err := unixsock.Listen(ctx, network, g.cfg.Path)
	if err != nil {
		g.problem(ctx, "no successor can take over from this agent", err)
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
	if over { // meanwhile
		_ = l.Close()
		return nil
	}
	g.cfg.Recorder.Update(func(s *Stats) { s.Listening, s.LastError = true, "" })
	g.cfg.Log.InfoContext(ctx, "a successor can take over", "socket", g.cfg.Path)
	return made
}

// problem notes an error, and logs it unless the last one was the same.
func (g *Server) problem(ctx context.Context, what string, err error) {
	news := false
	g.cfg.Recorder.Update(func(s *Stats) {
		news = s.LastError != err.Error()
		s.LastError = err.Error()
	})
	if news {
		g.cfg.Log.WarnContext(ctx, what, "err", err, "socket", g.cfg.Path) //nolint:sloglint // one of two constants
	}
}

// stopListening stops listening. A successor that listens at the path already keeps it.
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

// An connections is the conversations that go on at a time.
type connections struct {
	group *sync.WaitGroup
	slots chan struct{}
}

// accept takes conversations until the listener is closed, or ctx ends, and returns true
// then.
func (g *Server) accept(ctx context.Context, l *unixsock.Listener, heard *connections) (done bool) {
	defer g.recoverPanic()
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return true
		}
		if err != nil {
			g.problem(ctx, "a successor could not be heard", err)
			if !pause(ctx, retryDelay) { // no descriptor, say
				return true
			}
			continue
		}
		select {
		case heard.slots <- struct{}{}:
		default:
			_ = c.Close()
			continue
		}
		heard.group.Go(func() {
			defer func() { <-heard.slots }()
			g.serveConn(ctx, c)
		})
	}
}

// pause waits for d and returns true, or returns false when ctx ends before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// serveConn deals with one agent from its first word to its last.
func (g *Server) serveConn(ctx context.Context, raw *net.UnixConn) {
	defer g.recoverPanic()
	c, err := newConn(raw, g.cfg.Now)
	if err != nil {
		g.problem(ctx, "somebody else asked for the sockets", err)
		return
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	hello, err := g.receiveType(c, typeHello, requestTimeout)
	if err != nil {
		return // one that only looks whether somebody is there
	}
	if !g.admit(c, hello) {
		return
	}
	defer g.endConn(ctx, c, hello.Agent)
	err = g.serveRequests(ctx, c)
	ended := errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) // the other one has
	if err != nil && !ended && ctx.Err() == nil {
		g.problem(ctx, "handing over was broken off", err)
	}
}

// receiveType waits for a message of one type, without files.
func (g *Server) receiveType(c *conn, want string, limit time.Duration) (*message, error) {
	m, files, err := c.receive(limit)
	if err != nil {
		return nil, err
	}
	closeAll(files)
	if m.Type != want {
		return nil, fmt.Errorf("%q in place of %q: %w", m.Type, want, errUnexpected)
	}
	return m, nil
}

// admit makes c the taker, or tells it why not.
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
	told := g.cfg.Log.With("agent", hello.Agent, "version", hello.Version)
	if reason != "" {
		told = told.With("refused", reason)
	}
	told.Info("an agent asks to take over")
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

// forget ends c's being the taker.
func (g *Server) forget(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.successor == c {
		g.successor, g.hasSockets = nil, false
		close(g.gone)
	}
}

// endConn ends the conversation with the taker. The next one comes when nothing is left of
// this one: what Lost does must not undo what that one does.
func (g *Server) endConn(ctx context.Context, c *conn, agent string) {
	defer g.forget(c)
	g.mu.Lock()
	lost := g.successor == c && g.hasSockets && !g.released
	g.mu.Unlock()
	if !lost || ctx.Err() != nil {
		return
	}
	g.cfg.Recorder.Update(func(s *Stats) { s.Abandoned++ })
	g.cfg.Log.WarnContext(ctx, "an agent that was to take over has ended, this one goes on", "agent", agent)
	g.cfg.SuccessorLost(ctx)
}

// serveRequests does what the taker asks for, until it has taken over or goes away.
func (g *Server) serveRequests(ctx context.Context, c *conn) error {
	limit := requestTimeout
	for {
		m, files, err := c.receive(limit)
		if err != nil {
			return err
		}
		closeAll(files)
		switch m.Type {
		case typeSnapshot:
			err = g.snapshot(ctx, c)
		case typeSockets:
			err = g.sendSockets(c)
			limit = 0 // it makes itself ready: while it lives nobody else is served
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
	if err := g.withRecovery(func() error { return g.cfg.Snapshot(ctx) }); err != nil {
		answer.Problem = err.Error()
		answer.Problem = answer.Problem[:min(len(answer.Problem), 1024)]
	}
	return c.send(answer)
}

// sendSockets sends the sockets. This agent goes on to read them.
func (g *Server) sendSockets(c *conn) error {
	var offers []Offer
	err := g.withRecovery(func() (err error) {
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
	if leaving { // since it was admitted
		return c.send(&message{Type: typeLeaving})
	}
	return nil
}

func sendSocketsPart(c *conn, part []Offer, more bool) error {
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

// release leaves the sockets to the taker, which reads them already.
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
	defer close(g.given) // whatever comes of the rest: nobody else is given anything
	now := g.cfg.Now()
	g.cfg.Recorder.Update(func(s *Stats) { s.Given, s.To, s.GivenAt = true, claim.Agent, now })
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	// Whatever comes of it: the successor serves, and nobody can have that undone.
	_ = g.withRecovery(func() error {
		g.cfg.Release(within, *claim)
		return nil
	})
	g.cfg.Log.InfoContext(ctx, "handed over", "agent", claim.Agent, "version", claim.Version, "took", g.cfg.Now().Sub(now))
	// The path is the successor's as soon as it hears this.
	g.stopListening()
	return c.send(&message{Type: typeGiven})
}

// Shutdown says that this agent is about to end. Nobody gets the sockets any more but an
// agent that has them already: it is told, and waited for until it has taken over or
// ended, or patience is over. Leave reports whether this agent has handed over.
func (g *Server) Shutdown(ctx context.Context, patience time.Duration) bool {
	g.mu.Lock()
	g.leaving = true
	taker, holds, gone, yielded := g.successor, g.hasSockets, g.gone, g.released
	g.mu.Unlock()
	if taker == nil && !yielded {
		return false
	}
	if holds && !yielded { // else it is told when it gets them
		_ = taker.send(&message{Type: typeLeaving}) // one that does not hear it has ended
	}
	limit := time.NewTimer(patience)
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

// errPanic is what the other end is told of a panic.
var errPanic = errors.New("a defect, the log has its stack")

// LogPanic logs and counts a panic that was recovered from. What hands over, or takes over, is
// not to end a process that answers a node's queries.
func LogPanic(log *slog.Logger, recorder *Recorder, defect any) {
	log.Error("recovered from a panic", "where", "handover", "panic", fmt.Sprint(defect), "stack", string(debug.Stack()))
	recorder.Update(func(s *Stats) { s.Panics++ })
}

// recoverPanic, deferred, ends one step of the giver's at its panic.
func (g *Server) recoverPanic() {
	if defect := recover(); defect != nil {
		LogPanic(g.cfg.Log, g.cfg.Recorder, defect)
	}
}

// withRecovery does what the giver was configured with. A panic in it is an error.
func (g *Server) withRecovery(do func() error) (err error) {
	defer func() {
		if defect := recover(); defect != nil {
			LogPanic(g.cfg.Log, g.cfg.Recorder, defect)
			err = errPanic
		}
	}()
	return do()
}
