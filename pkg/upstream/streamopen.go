// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// When connections are opened.
const (
	paceInterval = 50 * time.Millisecond // between two connections, in the long run,
	paceBurst    = 3 * maxConnections    // and so many at once
	paceAhead    = paceBurst / 2         // of which so many are kept for queries that wait
)

// A pace bounds how often something is done: so many times at once, and once an interval in the long run. Nothing that
// clients ask and nothing that upstreams do opens connections faster.
type pace struct {
	full time.Time // when all of the burst is there again
}

// take tells whether it may be done now, and leave keep for others, and then counts it.
func (p *pace) take(now time.Time, keep int) bool {
	full := p.full
	if full.Before(now) {
		full = now
	}
	full = full.Add(paceInterval)
	if full.Sub(now) > time.Duration(paceBurst-keep)*paceInterval {
		return false
	}
	p.full = full
	return true
}

// openForLocked opens a connection for a query that waits. The error says why not.
func (s *lines) openForLocked(now time.Time, t *try) (*line, error) {
	if len(s.lines) >= 2*s.connections+2 {
		return nil, errLimit
	}
	if !s.pace.take(now, 0) {
		if s.fault != nil { // then it is the upstream that ends them
			return nil, fmt.Errorf("opening connections too often, as they end: %w", s.fault)
		}
		return nil, errLimit
	}
	if t.conns != nil && t.conns.Add(1) > maxConns {
		return nil, errLimit
	}
	return s.openLocked(now), nil
}

// openAheadLocked opens what is missing of the connections, no query having to wait for them.
func (s *lines) openAheadLocked(now time.Time) {
	if s.retired || now.Sub(s.asked) >= idleTimeout {
		return
	}
	for s.youngLocked() < s.connections && len(s.lines) < 2*s.connections+1 && s.pace.take(now, paceAhead) {
		s.openLocked(now).ahead = true
	}
}

// openAheadIfEagerLocked is openAheadLocked after a sign of life, where connections are kept open.
func (s *lines) openAheadIfEagerLocked(now time.Time) {
	if s.eager {
		s.openAheadLocked(now)
	}
}

// openLocked adds a connection and starts its goroutine, which ends when the connection has failed: by itself, when
// idle, or when retired.
func (s *lines) openLocked(now time.Time) *line {
	s.opened++
	l := &line{lines: s, number: s.opened, wake: make(chan struct{}, 1), life: life{heard: now, rested: s.asked}}
	s.lines = append(s.lines, l)
	s.alive++
	go l.run() // joined by wait
	return l
}

// endedLocked takes the connection out of those that queries go on.
func (s *lines) endedLocked(l *line) {
	s.lines = slices.DeleteFunc(s.lines, func(other *line) bool { return other == l })
}

// freshLocked tells whether there is a connection, other than those that came to their age, that is open and answers.
func (s *lines) freshLocked(now time.Time) bool {
	return slices.ContainsFunc(s.lines, func(l *line) bool { return l.open && l.rankLocked(now) == rankGood })
}

// run opens the connection and reads from it until it fails.
func (l *line) run() {
	s := l.lines
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.alive--; s.alive == 0 {
			s.gone.Broadcast()
		}
	}()
	ctx, cancel := context.WithCancel(context.Background()) // many queries ride on it: it ends with none of them
	defer cancel()
	defer l.settle()
	defer s.recovered(ctx, func() { l.fail(errPanic) })
	if !l.endsBy(cancel) {
		return
	}
	nc, err := l.connect(ctx)
	if err != nil {
		l.fail(fmt.Errorf("connecting: %w", err))
		return
	}
	defer func() { _ = nc.Close() }() // maybe for the second time
	defer context.AfterFunc(ctx, func() { l.hangUp(nc) })()
	var writer sync.WaitGroup
	writer.Go(func() { l.fail(l.write(ctx, nc)) })
	l.Flush() // what came while it opened
	l.fail(l.read(nc))
	l.settle()
	writer.Wait()
}

// endsBy sets what is called when the connection fails. It reports false if it has failed already.
func (l *line) endsBy(cancel context.CancelFunc) bool {
	l.lines.mu.Lock()
	defer l.lines.mu.Unlock()
	l.cancel = cancel
	return l.err == nil
}

// connect opens the connection, handshakes and all.
func (l *line) connect(ctx context.Context) (net.Conn, error) {
	s := l.lines
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	nc, err := s.dial(ctx, "tcp", s.addr)
	if err != nil {
		return nil, err
	}
	if tcp, ok := nc.(*net.TCPConn); ok {
		l.prepare(tcp)
	}
	if s.trust != nil {
		secured, err := s.trust.handshake(ctx, nc)
		if err != nil {
			_ = nc.Close()
			return nil, err
		}
		l.bare, nc = nc, secured
	}
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.err != nil {
		_ = nc.Close()
		return nil, l.err
	}
	l.openedLocked(now)
	return nc, nil
}

// prepare sets the limit of silence, also where it was not our own dialer that made the socket, has answers acknowledged
// soon, and plain frames written to the socket by whoever flushes.
func (l *line) prepare(tcp *net.TCPConn) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // it is closed, which the reader will find
	}
	_ = limitSilence(raw) // without it there are still stallTime and silenceTime
	l.acks = newAcknowledger(raw)
	if l.lines.trust == nil {
		l.direct = newDirect(raw)
	}
}

// openedLocked notes that the handshake is over.
func (l *line) openedLocked(now time.Time) {
	s := l.lines
	if l.calls.n == 0 {
		l.heard = now
	}
	l.begin(now, &s.ids, l.expire)
	l.restLocked(now)
	for _, old := range slices.Clone(s.lines) {
		if old.aged {
			old.restLocked(now)
		}
	}
}

// expire does what is due, and sets the alarm to what is due next.
func (l *line) expire() {
	s := l.lines
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	l.alarm.rang()
	if l.err != nil {
		return
	}
	next := l.ages
	if !now.Before(l.ages) {
		l.aged = true
		s.openAheadLocked(now)
		next = now.Add(ageRetry)
	}
	l.restLocked(now)
	if l.err == nil {
		l.alarm.set(now, next, l.expire)
	}
}

// failLocked ends the connection. Its queries are seen to by its own goroutine. The first reason stays.
func (l *line) failLocked(err error) {
	if l.err != nil {
		return
	}
	l.err = err
	if l.cancel != nil {
		l.cancel()
	}
	l.alarm.stop()
	l.lines.endedLocked(l)
}

// fail is failLocked for those who do not hold the lock.
func (l *line) fail(err error) {
	l.lines.mu.Lock()
	defer l.lines.mu.Unlock()
	l.failLocked(err)
}

// hangUp closes the connection. Of TLS a good end is told (RFC 8446 section 6.1), which may have to wait for the peer;
// a bad one is not.
func (l *line) hangUp(nc net.Conn) {
	l.lines.mu.Lock()
	good := wanted(l.err)
	l.lines.mu.Unlock()
	if !good && l.bare != nil {
		nc = l.bare
	}
	_ = nc.Close()
}
