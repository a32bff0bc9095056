// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	dialTimeout    = 5 * time.Second
	writeTimeout   = 5 * time.Second
	reconnectDelay = 5 * time.Second  // the longest; it is random, so that the clients of a server that ended do not come at once
	unsupportedFor = 10 * time.Minute // how long a server without push is left alone
	failedFor      = time.Minute      // the same for one that ended the connection instead of an answer
	maxAvoid       = time.Hour        // the longest time that a server may ask for
	readBuffer     = 16 << 10
)

// Run holds a session, one after the other, until ctx ends. After one that was idle it waits for the next name.
func (c *Client) Run(ctx context.Context) error {
	avoid := map[netip.AddrPort]time.Time{}
	var last netip.AddrPort
	pausing := time.NewTimer(reconnectDelay)
	pausing.Stop()
	defer pausing.Stop()
	for {
		var err error
		if addr := c.choose(avoid, last); addr.IsValid() {
			last = addr
			var pause time.Duration
			pause, err = c.hold(ctx, addr)
			avoid[addr] = c.cfg.Now().Add(pause)
		}
		var wanted chan struct{}
		idle := errors.Is(err, errIdle)
		c.setIdle(idle)
		if idle {
			wanted = c.wanted
		} else {
			pausing.Reset(rand.N(reconnectDelay)) //nolint:gosec // not a secret
		}
		select {
		case <-pausing.C:
		case <-wanted:
		case <-ctx.Done():
			return nil
		}
	}
}

// choose returns a server for the next session: one of this zone if there is one, and another one than the last. It is invalid if
// there is none.
func (c *Client) choose(avoid map[netip.AddrPort]time.Time, last netip.AddrPort) (best netip.AddrPort) {
	now, rank := c.cfg.Now(), 0
	servers := c.cfg.Servers()
	for _, i := range rand.Perm(len(servers)) { //nolint:gosec // not a secret
		s, of := servers[i], 1
		if avoid[s.Addr].After(now) {
			continue
		}
		if s.Addr != last {
			of++
		}
		if !s.Far {
			of += 2
		}
		if of > rank {
			best, rank = s.Addr, of
		}
	}
	for addr, until := range avoid { // the servers change over time
		if !until.After(now) {
			delete(avoid, addr)
		}
	}
	if !best.IsValid() && len(servers) == 0 {
		c.setWhy(NoServer)
	}
	return best
}

func (c *Client) setWhy(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Why = why
}

func (c *Client) setIdle(idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Idle = idle
}

// hold holds a session with the server at addr until it ends. It returns why it ended, and for how long to leave that server alone.
func (c *Client) hold(ctx context.Context, addr netip.AddrPort) (pause time.Duration, err error) {
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := c.cfg.Open(dialing, addr)
	if err != nil {
		c.setWhy(err.Error())
		return 0, err
	}
	s := c.connected(addr)
	err = panics.Guard{Where: "push", Log: c.cfg.Log}.Do(ctx, func() error { return c.serve(ctx, s, conn) })
	c.lost(s, fmt.Sprintf("%s: %v", s.label, err))
	if ctx.Err() != nil {
		return 0, err
	}
	switch retry, ok := errors.AsType[*retryError](err); {
	case ok:
		pause = min(retry.after, maxAvoid)
	case errors.Is(err, errUnsupported):
		pause = unsupportedFor
	case !s.greeted:
		pause = failedFor
	}
	c.cfg.Log.InfoContext(ctx, "push session ended", "server", s.label, "err", err, "pause", pause)
	return pause, err
}

// serve reads and writes until the session ends, and closes conn.
func (c *Client) serve(ctx context.Context, s *session, conn net.Conn) error {
	var writer sync.WaitGroup
	ended := make(chan struct{})
	defer writer.Wait()
	defer close(ended)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	writer.Go(func() { s.write(conn, ended) })
	in := wire.NewFrameReader(readBuffer)
	var batch wire.SendBatch
	defer batch.Flush()
	for {
		_ = conn.SetReadDeadline(s.deadline()) // if it fails, Read fails too
		n, err := conn.Read(in.Buffer())
		in.Advance(n)
		for msg, _ := in.Next(0); msg != nil; msg, _ = in.Next(0) {
			if err := s.receive(msg, &batch); err != nil {
				return err
			}
		}
		batch.Flush()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errors.New("the server is silent")
		case err != nil:
			return fmt.Errorf("receiving: %w", err)
		}
	}
}

// write writes what the session sends until it has ended. A write that fails closes conn, which ends it.
func (s *session) write(conn net.Conn, ended <-chan struct{}) {
	for {
		select {
		case <-s.wake:
		case <-ended:
			return
		}
		out := s.takeOut()
		_ = conn.SetWriteDeadline(s.c.cfg.Now().Add(writeTimeout))
		if _, err := conn.Write(out); err != nil {
			_ = conn.Close()
			return
		}
	}
}
