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
	"sync"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/unixsock"
)

const (
	saying   = 2 * time.Second        // a message is sent or the other end is given up
	asking   = 5 * time.Second        // from the connection to the next request, before there is a taker
	saving   = 10 * time.Second       // for a snapshot
	yielding = 2 * time.Second        // for the readers to stop; they go on to, if it takes longer
	claiming = 5 * time.Second        // between two looks at whether the path is this agent's
	mending  = 100 * time.Millisecond // after what should not happen
	maxConns = 8                      // conversations at once; more are closed
)

// An Offer is a listening socket of this agent's.
type Offer struct {
	Listen

	Raw syscall.RawConn
}

// Config is what a Giver is made from. All but Log and Tally are required.
type Config struct {
	Path    string // of the unix socket, in a folder that exists
	Agent   string // this agent's name, 1..16 octets
	Version string

	// Snapshot writes what this agent knows for its successor to read.
	Snapshot func(ctx context.Context) error
	// Offers are the sockets that this agent listens on; an error: not now.
	Offers func() ([]Offer, error)
	// Yield has this agent read no more from the sockets that the claim is for, and leave
	// link and rules alone. It returns once that is so, or when ctx ends.
	Yield func(ctx context.Context, c Claim)
	// Lost is called when an agent that had the sockets has ended without taking over. It
	// may have taken the link already.
	Lost func(ctx context.Context)

	Now   func() time.Time
	Log   *slog.Logger // nil: silent
	Tally *Tally       // nil: nothing is counted
}

// A Giver waits for an agent that takes the place of this one. Its methods may be called
// from several goroutines.
type Giver struct {
	cfg   Config
	given chan struct{} // closed once another agent has taken over

	mu       sync.Mutex         // guards what follows
	listener *unixsock.Listener // nil: the path is another's, or could not be had
	taker    *conn              // has the sockets, or is about to get them; nil: nobody
	holds    bool               // taker has them
	leaving  bool               // this agent ends: nobody else gets them
	yielded  bool               // Yield was called: it is once
	gone     chan struct{}
}

// NewGiver checks cfg. It opens nothing.
func NewGiver(cfg Config) (*Giver, error) {
	if cfg.Path == "" || cfg.Agent == "" || cfg.Snapshot == nil || cfg.Offers == nil || cfg.Yield == nil || cfg.Lost == nil || cfg.Now == nil {
		return nil, errors.New("handing over needs a path, a name, a clock and all that is to be done")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Tally == nil {
		cfg.Tally = new(Tally)
	}
	return &Giver{cfg: cfg, given: make(chan struct{})}, nil
}

// String names the task.
func (g *Giver) String() string { return "hand-over" }

// Given is closed once another agent has taken over.
func (g *Giver) Given() <-chan struct{} { return g.given }

// Run waits for an agent that takes over, and deals with it, until ctx ends or one has. It
// listens at the path unless another agent is heard there, and looks at that again and
// again. It joins what it started.
func (g *Giver) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	defer group.Wait()
	defer g.hangUp()
	heard := &audience{group: &group, places: make(chan struct{}, maxConns)}
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
		if l := g.claim(ctx); l != nil {
			group.Go(func() {
				for done := false; !done; { // until it is not cut short by a defect
					done = g.accept(ctx, l, heard) || !pause(ctx, mending)
				}
			})
		}
		timer.Reset(claiming)
	}
}

// claim sees to it that this agent listens at the path, and returns the listener if it is
// a new one.
func (g *Giver) claim(ctx context.Context) (made *unixsock.Listener) {
	defer g.recovered()
	g.mu.Lock()
	has, over := g.listener, g.yielded
	g.mu.Unlock()
	if over || has != nil && has.There() {
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
	if over = g.yielded; !over {
		g.listener, made = l, l
	}
	g.mu.Unlock()
	if over { // meanwhile
		_ = l.Close()
		return nil
	}
	g.cfg.Tally.Note(func(s *Stats) { s.Listening, s.LastError = true, "" })
	g.cfg.Log.InfoContext(ctx, "a successor can take over", "socket", g.cfg.Path)
	return made
}

// problem notes an error, and logs it unless the last one was the same.
func (g *Giver) problem(ctx context.Context, what string, err error) {
	news := false
	g.cfg.Tally.Note(func(s *Stats) {
		news = s.LastError != err.Error()
		s.LastError = err.Error()
	})
	if news {
		g.cfg.Log.WarnContext(ctx, what, "err", err, "socket", g.cfg.Path) //nolint:sloglint // one of two constants
	}
}

// hangUp stops listening. A successor that listens at the path already keeps it.
func (g *Giver) hangUp() {
	g.mu.Lock()
	l := g.listener
	g.listener = nil
	g.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
	g.cfg.Tally.Note(func(s *Stats) { s.Listening = false })
}

// An audience is the conversations that go on at a time.
type audience struct {
	group  *sync.WaitGroup
	places chan struct{}
}

// accept takes conversations until the listener is closed, or ctx ends, and returns true
// then.
func (g *Giver) accept(ctx context.Context, l *unixsock.Listener, heard *audience) (done bool) {
	defer g.recovered()
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return true
		}
		if err != nil {
			g.problem(ctx, "a successor could not be heard", err)
			if !pause(ctx, mending) { // no descriptor, say
				return true
			}
			continue
		}
		select {
		case heard.places <- struct{}{}:
		default:
			_ = c.Close()
			continue
		}
		heard.group.Go(func() {
			defer func() { <-heard.places }()
			g.converse(ctx, c)
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

// converse deals with one agent from its first word to its last.
func (g *Giver) converse(ctx context.Context, raw *net.UnixConn) {
	defer g.recovered()
	c, err := newConn(raw, g.cfg.Now)
	if err != nil {
		g.problem(ctx, "somebody else asked for the sockets", err)
		return
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	hello, err := g.expect(c, typeHello, asking)
	if err != nil {
		return // one that only looks whether somebody is there
	}
	if !g.admit(c, hello) {
		return
	}
	defer g.dismiss(ctx, c, hello.Agent)
	err = g.serve(ctx, c)
	ended := errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) // the other one has
	if err != nil && !ended && ctx.Err() == nil {
		g.problem(ctx, "handing over was broken off", err)
	}
}

// expect waits for a message of one type, without files.
func (g *Giver) expect(c *conn, want string, limit time.Duration) (*message, error) {
	m, files, err := c.hear(limit)
	if err != nil {
		return nil, err
	}
	closeAll(files)
	if m.Type != want {
		return nil, fmt.Errorf("%q in place of %q: %w", m.Type, want, errOutside)
	}
	return m, nil
}

// admit makes c the taker, or tells it why not.
func (g *Giver) admit(c *conn, hello *message) bool {
	reason := g.refusal(c, hello)
	answer := &message{Type: typeWelcome, Protocol: Protocol, Agent: g.cfg.Agent, Version: g.cfg.Version}
	if reason != "" {
		answer.Type, answer.Reason = typeRefused, reason
	}
	g.cfg.Tally.Note(func(s *Stats) {
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
	err := c.say(answer)
	if reason == "" && err != nil {
		g.release(c)
	}
	return reason == "" && err == nil
}

func (g *Giver) refusal(c *conn, hello *message) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case hello.Protocol != Protocol:
		return ReasonProtocol
	case g.yielded:
		return ReasonGiven
	case g.leaving:
		return ReasonLeaving
	case g.taker != nil:
		return ReasonBusy
	}
	g.taker, g.holds, g.gone = c, false, make(chan struct{})
	return ""
}

// release ends c's being the taker.
func (g *Giver) release(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.taker == c {
		g.taker, g.holds = nil, false
		close(g.gone)
	}
}

// dismiss ends the conversation with the taker. The next one comes when nothing is left of
// this one: what Lost does must not undo what that one does.
func (g *Giver) dismiss(ctx context.Context, c *conn, agent string) {
	defer g.release(c)
	g.mu.Lock()
	lost := g.taker == c && g.holds && !g.yielded
	g.mu.Unlock()
	if !lost || ctx.Err() != nil {
		return
	}
	g.cfg.Tally.Note(func(s *Stats) { s.Abandoned++ })
	g.cfg.Log.WarnContext(ctx, "an agent that was to take over has ended, this one goes on", "agent", agent)
	g.cfg.Lost(ctx)
}

// serve does what the taker asks for, until it has taken over or goes away.
func (g *Giver) serve(ctx context.Context, c *conn) error {
	limit := asking
	for {
		m, files, err := c.hear(limit)
		if err != nil {
			return err
		}
		closeAll(files)
		switch m.Type {
		case typeSnapshot:
			err = g.snapshot(ctx, c)
		case typeSockets:
			err = g.offer(c)
			limit = 0 // it makes itself ready: while it lives nobody else is served
		case typeTake:
			return g.yield(ctx, c, m.Claim)
		default:
			err = fmt.Errorf("%q: %w", m.Type, errOutside)
		}
		if err != nil {
			return err
		}
	}
}

func (g *Giver) snapshot(ctx context.Context, c *conn) error {
	ctx, cancel := context.WithTimeout(ctx, saving)
	defer cancel()
	answer := &message{Type: typeSnapshot}
	if err := g.safely(func() error { return g.cfg.Snapshot(ctx) }); err != nil {
		answer.Problem = err.Error()
		answer.Problem = answer.Problem[:min(len(answer.Problem), 1024)]
	}
	return c.say(answer)
}

// offer sends the sockets. This agent goes on to read them.
func (g *Giver) offer(c *conn) error {
	var offers []Offer
	err := g.safely(func() (err error) {
		offers, err = g.cfg.Offers()
		return err
	})
	if err != nil {
		return err
	}
	for first := true; first || len(offers) > 0; first = false {
		part := offers[:min(len(offers), maxFiles)]
		offers = offers[len(part):]
		if err := sendSockets(c, part, len(offers) > 0); err != nil {
			return err
		}
	}
	g.mu.Lock()
	g.holds = g.taker == c
	leaving := g.leaving
	g.mu.Unlock()
	if leaving { // since it was admitted
		return c.say(&message{Type: typeLeaving})
	}
	return nil
}

func sendSockets(c *conn, part []Offer, more bool) error {
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
	return c.say(m, files...)
}

// yield leaves the sockets to the taker, which reads them already.
func (g *Giver) yield(ctx context.Context, c *conn, claim *Claim) error {
	g.mu.Lock()
	fits := claim != nil && g.holds && g.taker == c && !g.yielded
	if fits {
		g.yielded = true
	}
	g.mu.Unlock()
	if !fits {
		return fmt.Errorf("%q: %w", typeTake, errOutside)
	}
	defer close(g.given) // whatever comes of the rest: nobody else is given anything
	now := g.cfg.Now()
	g.cfg.Tally.Note(func(s *Stats) { s.Given, s.To, s.GivenAt = true, claim.Agent, now })
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), yielding)
	defer cancel()
	// Whatever comes of it: the successor serves, and nobody can have that undone.
	_ = g.safely(func() error {
		g.cfg.Yield(within, *claim)
		return nil
	})
	g.cfg.Log.InfoContext(ctx, "handed over", "agent", claim.Agent, "version", claim.Version, "took", g.cfg.Now().Sub(now))
	// The path is the successor's as soon as it hears this.
	g.hangUp()
	return c.say(&message{Type: typeGiven})
}

// Leave says that this agent is about to end. Nobody gets the sockets any more but an
// agent that has them already: it is told, and waited for until it has taken over or
// ended, or patience is over. Leave tells whether this agent has handed over.
func (g *Giver) Leave(ctx context.Context, patience time.Duration) bool {
	g.mu.Lock()
	g.leaving = true
	taker, holds, gone, yielded := g.taker, g.holds, g.gone, g.yielded
	g.mu.Unlock()
	if taker == nil && !yielded {
		return false
	}
	if holds && !yielded { // else it is told when it gets them
		_ = taker.say(&message{Type: typeLeaving}) // one that does not hear it has ended
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
