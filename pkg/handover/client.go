// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"cmp"
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

// A Socket is a listening socket.
type Socket struct {
	Listen

	Raw  syscall.RawConn // the socket of this agent; nil: it was received
	File *os.File        // a socket received from another agent, which the receiver closes; nil: it is this agent's
}

// A Client takes over from another agent. Its methods are called in sequence; only
// PredecessorLeaving may be used concurrently.
type Client struct {
	// Predecessor is the name of the other agent, PredecessorVersion its version.
	Predecessor, PredecessorVersion string

	cfg     Config
	conn    *conn
	leaving chan struct{} // closed when the predecessor is about to end, has ended, or has stopped reading
	given   chan struct{} // closed once the predecessor has confirmed that it stopped reading
	ended   sync.WaitGroup
}

// Connect connects to the agent that listens at the path. The error is [ErrNoAgent] if there is none.
func Connect(ctx context.Context, cfg Config) (*Client, error) {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Recorder = cmp.Or(cfg.Recorder, new(Recorder))
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

func hello(c *conn, cfg *Config) (*Client, error) {
	err := c.send(&message{Type: typeHello, Protocol: Protocol, Agent: cfg.Agent, Version: cfg.Version})
	if err != nil {
		return nil, err
	}
	m, err := c.receiveText(requestTimeout)
	if err != nil {
		return nil, fmt.Errorf("waiting for welcome: %w", err)
	}
	switch m.Type {
	case typeRefused:
		return nil, refusedError(m)
	case typeWelcome:
		return &Client{
			Predecessor: m.Agent, PredecessorVersion: m.Version,
			cfg: *cfg, conn: c, leaving: make(chan struct{}), given: make(chan struct{}),
		}, nil
	default:
		return nil, fmt.Errorf("received %q, want %q: %w", m.Type, typeWelcome, errUnexpected)
	}
}

// Snapshot asks the predecessor to write its cache snapshot. It returns the predecessor's error if
// that failed.
func (t *Client) Snapshot(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = t.conn.Close() })()
	if err := t.conn.send(&message{Type: typeSnapshot}); err != nil {
		return err
	}
	m, err := t.conn.receiveType(typeSnapshot, snapshotTimeout+sendTimeout)
	if err == nil && m.Problem != "" {
		err = errors.New(m.Problem)
	}
	return err
}

// Sockets receives the sockets, which the predecessor keeps reading until TakeOver. It is called
// once. From then on PredecessorLeaving is closed when the predecessor is about to end.
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

// Discard closes the files of unused sockets. The predecessor's descriptors stay open.
func Discard(sockets []Socket) {
	for _, s := range sockets {
		_ = s.File.Close()
	}
}

// receiveAll receives the predecessor's messages while this agent prepares and takes over. After a panic the
// predecessor counts as ended.
func (t *Client) receiveAll() {
	hurry := sync.OnceFunc(func() { close(t.leaving) })
	defer hurry() // the predecessor has ended or stopped reading
	_ = t.cfg.Recorder.Guard(t.cfg.Log).Do(context.Background(), func() error {
		for {
			m, err := t.conn.receiveText(0)
			if err != nil {
				return err
			}
			switch m.Type {
			case typeLeaving:
				hurry()
			case typeGiven:
				close(t.given)
				return nil
			default: // a message of a later version: it is optional, else the protocol version would differ
			}
		}
	})
}

// PredecessorLeaving returns a channel that is closed when the predecessor is about to end, has ended
// or has stopped reading. Queries in the sockets then wait for this agent.
func (t *Client) PredecessorLeaving() <-chan struct{} { return t.leaving }

// errPredecessorEnded reports that the predecessor ended before it confirmed the takeover.
var errPredecessorEnded = errors.New("predecessor has ended")

// TakeOver notifies the predecessor that this agent serves. It returns nil if the predecessor has
// stopped reading, and an error if it has ended, does not respond in time, or ctx ends. In all cases
// this agent now owns the sockets, and the connection is closed.
func (t *Client) TakeOver(ctx context.Context, claim Claim) error {
	defer t.Close()
	if err := t.conn.send(&message{Type: typeTake, Claim: &claim}); err != nil {
		return errors.Join(errPredecessorEnded, err)
	}
	heard := make(chan struct{})
	go func() { // ends when Close returns, at the latest
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

// predecessorEnded reports whether an error of TakeOver means that the predecessor had ended.
func predecessorEnded(err error) bool {
	return errors.Is(err, errPredecessorEnded) || errors.Is(err, io.EOF)
}

// Close closes the connection. Before TakeOver it means that this agent does not take over.
func (t *Client) Close() {
	_ = t.conn.Close()
	t.ended.Wait()
}

// ErrNoAgent reports that no agent listens at the path.
var ErrNoAgent = errors.New("no agent listens at the socket")

// dial connects to the agent that listens at path.
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

// alive reports whether an agent listens at the path, even one whose backlog is full.
func alive(ctx context.Context, path string) bool {
	c, err := dial(ctx, path)
	if err == nil {
		_ = c.Close()
	}
	return err == nil || errors.Is(err, syscall.EAGAIN)
}
