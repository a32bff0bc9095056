// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// A Socket is a listening socket that came from another agent. Its file is the
// receiver's to close.
type Socket struct {
	Listen

	File *os.File
}

// ClientConfig says whom to meet.
type ClientConfig struct {
	Path     string
	Agent    string // this agent's name
	Version  string
	Now      func() time.Time
	Log      *slog.Logger // nil: silent
	Recorder *Recorder    // nil: nothing is counted
}

// A Client is an agent that takes over from another. Its methods are called one after the
// other; Hurry may be listened to meanwhile.
type Client struct {
	// Predecessor names the other agent, FromVersion its version.
	Predecessor, PredecessorVersion string

	cfg     ClientConfig
	conn    *conn
	receive func(limit time.Duration) (*message, []*os.File, error) // of conn
	leaving chan struct{}
	given   chan struct{}
	ended   sync.WaitGroup
}

// Connect connects to the agent that listens at the path. If there is none the error is
// [ErrNobody]; if it does not hand over, a [*RefusedError].
func Connect(ctx context.Context, cfg ClientConfig) (*Client, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Recorder == nil {
		cfg.Recorder = new(Recorder)
	}
	raw, err := dial(ctx, cfg.Path)
	if err != nil {
		return nil, err
	}
	c, err := newConn(raw, cfg.Now)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	t, err := hello(c, &cfg)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return t, nil
}

func hello(c *conn, cfg *ClientConfig) (*Client, error) {
	err := c.send(&message{Type: typeHello, Protocol: Protocol, Agent: cfg.Agent, Version: cfg.Version})
	if err != nil {
		return nil, err
	}
	m, files, err := c.receive(requestTimeout)
	if err != nil {
		return nil, fmt.Errorf("greeting an agent: %w", err)
	}
	closeAll(files)
	switch m.Type {
	case typeRefused:
		return nil, &RefusedError{Reason: m.Reason, Agent: m.Agent, Version: m.Version, Protocol: m.Protocol}
	case typeWelcome:
		return &Client{
			Predecessor: m.Agent, PredecessorVersion: m.Version,
			cfg: *cfg, conn: c, receive: c.receive, leaving: make(chan struct{}), given: make(chan struct{}),
		}, nil
	default:
		return nil, fmt.Errorf("%q in place of %q: %w", m.Type, typeWelcome, errUnexpected)
	}
}

// Snapshot has the other agent write what it knows. It returns the reason if that was not
// possible.
func (t *Client) Snapshot(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = t.conn.Close() })()
	if err := t.conn.send(&message{Type: typeSnapshot}); err != nil {
		return err
	}
	m, files, err := t.conn.receive(snapshotTimeout + sendTimeout)
	closeAll(files)
	switch {
	case err != nil:
		return fmt.Errorf("waiting for a snapshot: %w", err)
	case m.Type != typeSnapshot:
		return fmt.Errorf("%q in place of %q: %w", m.Type, typeSnapshot, errUnexpected)
	case m.Problem != "":
		return errors.New(m.Problem)
	}
	return nil
}

// Sockets gets the sockets, from which the other agent goes on to read until Take. It is
// called once; Hurry is closed from then on when there is no more time.
func (t *Client) Sockets(ctx context.Context) (sockets []Socket, err error) {
	defer context.AfterFunc(ctx, func() { _ = t.conn.Close() })()
	defer func() {
		if err != nil {
			Discard(sockets)
			sockets = nil
		}
	}()
	if err := t.conn.send(&message{Type: typeSockets}); err != nil {
		return nil, err
	}
	for more := true; more; {
		m, files, err := t.conn.receive(requestTimeout)
		if err != nil {
			return sockets, fmt.Errorf("waiting for the sockets: %w", err)
		}
		if m.Type != typeSockets || len(files) != len(m.Listens) || len(sockets)+len(files) > maxSockets {
			closeAll(files)
			return sockets, fmt.Errorf("%q with %d sockets of %d: %w", m.Type, len(files), len(m.Listens), errUnexpected)
		}
		for i, f := range files {
			sockets = append(sockets, Socket{Listen: m.Listens[i], File: f})
		}
		more = m.More
	}
	if len(sockets) > 0 {
		if err := checkNamespace(sockets[0].File); err != nil {
			return sockets, err
		}
	}
	t.ended.Go(t.receiveAll)
	return sockets, nil
}

// Discard closes the files of sockets that are not wanted. Those that the other agent has
// stay open.
func Discard(sockets []Socket) {
	for _, s := range sockets {
		_ = s.File.Close()
	}
}

// receiveAll hears what the other agent says while this one makes itself ready and takes over.
// After a defect it goes on with the next word: to hear no more would be to be told neither
// when to hurry nor when that one has stopped.
func (t *Client) receiveAll() {
	hurry := sync.OnceFunc(func() { close(t.leaving) })
	defer hurry() // the other one has ended
	for defects := 0; defects < maxPanics; {
		last, defect := t.receiveOne(hurry)
		if last {
			return
		}
		if defect {
			defects++
		}
	}
	t.cfg.Log.Error("the agent that is taken over from is not heard any more")
}

// maxPanics are as many as a conversation is worth: beyond them the other agent is taken
// to have ended, else Close would wait for one that cannot be heard.
const maxPanics = 10

// receiveOne waits for one word, and reports whether it was the last, or a defect kept it from
// being heard.
func (t *Client) receiveOne(hurry func()) (last, defect bool) {
	defer func() {
		if panicked := recover(); panicked != nil {
			LogPanic(t.cfg.Log, t.cfg.Recorder, panicked)
			<-time.NewTimer(retryDelay).C
			defect = true
		}
	}()
	m, files, err := t.receive(0)
	if err != nil {
		return true, false
	}
	closeAll(files)
	switch m.Type {
	case typeLeaving:
		hurry()
	case typeGiven:
		close(t.given)
		return true, false
	default: // of a later version: it cannot matter, or the protocol were another
	}
	return false, false
}

// PredecessorLeaving is closed when the other agent is about to end, or has ended: what the sockets
// hold waits for this one then.
func (t *Client) PredecessorLeaving() <-chan struct{} { return t.leaving }

// errPredecessorEnded says that the other agent had ended before it was told.
var errPredecessorEnded = errors.New("the agent that is taken over from has ended")

// TakeOver tells the other agent that this one serves. It returns when that one has stopped
// reading, has ended, or is silent for too long; the error says which of the latter it
// was. Either way the sockets are this agent's. The conversation is over then.
func (t *Client) TakeOver(ctx context.Context, claim Claim) error {
	defer t.Close()
	if err := t.conn.send(&message{Type: typeTake, Claim: &claim}); err != nil {
		return errors.Join(errPredecessorEnded, err)
	}
	heard := make(chan struct{})
	go func() { // ends with Close at the latest
		t.ended.Wait()
		close(heard)
	}()
	limit := time.NewTimer(stopTimeout + sendTimeout)
	defer limit.Stop()
	select {
	case <-heard:
	case <-limit.C:
		return fmt.Errorf("waiting for agent %s to stop: %w", t.Predecessor, context.DeadlineExceeded)
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-t.given:
		return nil
	default:
		return errPredecessorEnded
	}
}

// PredecessorEnded reports whether an error of Take says that the other agent had ended.
func PredecessorEnded(err error) bool {
	return errors.Is(err, errPredecessorEnded) || errors.Is(err, io.EOF)
}

// Close ends the conversation. Before Take it means that this agent does not take over.
func (t *Client) Close() {
	_ = t.conn.Close()
	t.ended.Wait()
}

// ErrNoAgent says that no agent listens at the path.
var ErrNoAgent = errors.New("nobody listens there")

// dial connects to whoever listens at path.
func dial(ctx context.Context, path string) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, network, path)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil, ErrNoAgent
	case err != nil:
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// Alive reports whether an agent listens at the path, if only one that is asked more than it
// can hear.
func Alive(ctx context.Context, path string) bool {
	c, err := dial(ctx, path)
	if err == nil {
		_ = c.Close()
	}
	return err == nil || errors.Is(err, syscall.EAGAIN)
}
