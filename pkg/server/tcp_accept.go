// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// Waits after an accept call that failed. The first is short because most such
// errors are of one connection; the last keeps a lasting one, no descriptor left,
// from taking a CPU.
const (
	acceptPauseFirst = 5 * time.Millisecond
	acceptPauseLast  = time.Second
	// acceptWarnAgain sets the warnings apart: whoever opens connections could
	// else fill the log.
	acceptWarnAgain = 10 * time.Second
	// acceptWork is what a new session costs.
	acceptWork = 20 * time.Microsecond
)

// accept admits connections until the listener is closed or ctx ends.
func (t *TCP) accept(ctx context.Context) error {
	var pause time.Duration
	var warned time.Time
	for {
		conn, err := t.listener.Accept()
		switch {
		case err == nil:
			pause = 0
			t.admit(ctx, conn)
			t.yielder.worked(acceptWork)
			t.yielder.pass()
			continue
		case errors.Is(err, net.ErrClosed):
			return err
		}
		t.count.acceptErrors.Add(1)
		if now := time.Now(); now.Sub(warned) >= acceptWarnAgain {
			warned = now
			t.cfg.Log.WarnContext(ctx, "cannot accept tcp sessions", "addr", t.Addr(), "err", err)
		}
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			if t.shed(netip.Addr{}, false) { // its descriptor serves the next client
				pause = 0
			}
		}
		pause = min(max(2*pause, acceptPauseFirst), acceptPauseLast)
		if !sleep(ctx, pause) {
			return nil
		}
	}
}

// admit starts a session for conn, or closes conn when there is no place for it. One from
// the served address itself always gets one: so does this process ask itself.
func (t *TCP) admit(ctx context.Context, conn net.Conn) {
	s := newSession(t, conn)
	refused := t.table.add(s)
	client, own := s.peer.Addr.Addr(), s.peer.Addr.Addr() == addrPort(conn.LocalAddr()).Addr()
	if (refused == refusedFull || own && refused != refusedNot) && t.shed(client, own) {
		refused = t.table.add(s)
	}
	switch refused {
	case refusedNot:
		t.count.accepted.Add(1)
		t.tasks.Go(func() { s.run(ctx) })
		return
	case refusedFull:
		t.count.refusedSessions.Add(1)
	case refusedClient:
		t.count.refusedPerClient.Add(1)
	}
	_ = conn.Close()
}

// shed closes a session for a new one of client, and reports whether there was one.
func (t *TCP) shed(client netip.Addr, own bool) bool {
	s := t.table.evict(client, own, t.clock(time.Now()))
	if s == nil {
		return false
	}
	t.count.shedIdle.Add(1)
	s.out.stop()
	return true
}

// sleep waits for d and returns true, or returns false when ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
