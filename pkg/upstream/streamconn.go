// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A line is one connection: a reader and a writer, joined by run. It is in lines.lines until it fails.
type line struct {
	lines  *lines
	number uint64        // counted from 1 over all of the upstream's connections
	wake   chan struct{} // tells the writer to look at outbox; has room for one
	direct *direct       // writes without waiting; nil: all is left to the writer. Set before open
	acks   *acknowledger // nil: not a socket. Set before open
	bare   net.Conn      // what TLS runs over; nil without TLS. Set before open

	// Guarded by lines.mu:
	life
	cancel   context.CancelFunc // ends run, wherever it is; nil: run has not begun
	writing  bool               // what is to be sent has been taken out, and not all is sent yet
	again    bool               // there was a flush meanwhile
	calls    calls
	outbox   []byte          // frames to be written
	spare    []byte          // an outbox that has been sent, for its memory; nil: none
	rest     []byte          // what a direct write left over, for the writer
	gatherer *wire.SendBatch // whose queries keep together on it, until the next flush
	gathered int             // so many there are
}

// addLocked puts a query on the connection.
func (l *line) addLocked(now time.Time, t *try, batch *wire.SendBatch) error {
	s, r := l.lines, &t.ride
	if l.calls.n == 0 && !l.owes {
		l.heard = now
	}
	if err := l.calls.put(t, &s.ids); err != nil {
		return err
	}
	r.line, r.reused, r.newest = l, l.open, s.opened
	r.sent = append(r.sent[:0], t.query...)
	wire.SetID(r.sent, r.id)
	s.turns++
	l.turn = s.turns
	if l.gatherer != batch {
		l.gatherer, l.gathered = batch, 0
	}
	l.gathered++
	if len(l.outbox) == 0 && l.open { // else they are sent when it is
		batch.Add(l)
	}
	l.outbox = append(l.outbox, 0, 0)
	start := len(l.outbox)
	if s.trust != nil {
		l.outbox = appendPadded(l.outbox, r.sent)
	} else {
		l.outbox = append(l.outbox, r.sent...)
	}
	binary.BigEndian.PutUint16(l.outbox[start-2:], uint16(len(l.outbox)-start))
	return nil
}

// removeLocked takes off a query that is on the connection.
func (l *line) removeLocked(now time.Time, t *try) {
	l.calls.remove(t)
	t.ride.line = nil
	if l.calls.n == 0 {
		l.rested = now
	}
}

// restLocked decides what becomes of a connection without queries.
func (l *line) restLocked(now time.Time) {
	if l.err != nil || l.calls.n > 0 {
		return
	}
	s, quiet := l.lines, l.rested
	if s.eager && s.asked.After(quiet) {
		quiet = s.asked
	}
	look, end := l.fate(now, quiet, s.retired, l.aged && s.freshLocked(now))
	switch {
	case end != nil:
		l.failLocked(end)
	case !look.IsZero():
		l.alarm.set(now, look, l.expire)
	}
}

// stalledLocked tells whether the connection owes an answer and has been silent for long, as one does whose path is cut.
func (l *line) stalledLocked(now time.Time) bool { return l.silentLocked(now, stallTime) }

// silentLocked tells whether the connection owes an answer and has brought no whole frame for that long.
func (l *line) silentLocked(now time.Time, long time.Duration) bool {
	return l.calls.n > 0 && now.Sub(l.heard) >= long
}

// settle sees to the queries of a connection that has failed. One that came when the connection was open already may
// only have met its end by age, or that of a server that restarts: it gets a second chance, on a newer connection. For
// the others the end is what came, and for those whose peer was silent: they have been asked again long since.
func (l *line) settle() {
	s := l.lines
	now := s.now()
	var batch wire.SendBatch
	s.mu.Lock()
	err := fmt.Errorf("%w: %w", errDied, l.err)
	if !l.proved && !wanted(l.err) {
		s.fault = l.err
	}
	type loss struct {
		t   *try
		err error
	}
	var lost []loss
	silent := errors.Is(l.err, errSilent)
	for _, t := range l.calls.slots {
		if t == nil {
			continue
		}
		l.removeLocked(now, t)
		reason := err
		if t.ride.reused && !t.ride.second && !silent {
			t.ride.second = true
			if reason = s.placeLocked(now, t, t.ride.newest, &batch); reason == nil {
				continue
			}
		}
		lost = append(lost, loss{t, reason})
	}
	if l.proved {
		s.openAheadIfEagerLocked(now)
	}
	s.mu.Unlock()
	for _, gone := range lost {
		gone.t.carried(received{err: gone.err}, &batch)
	}
	batch.Flush()
}

// wanted tells whether an end of a connection was our own will, and says nothing about the upstream.
func wanted(end error) bool {
	return errors.Is(end, errIdle) || errors.Is(end, errRetired) || errors.Is(end, errAged) || errors.Is(end, errAbandoned)
}

// An arrival is a frame for the query that it answers.
type arrival struct {
	t     *try
	frame []byte
}

// read takes frames until the connection ends.
func (l *line) read(nc net.Conn) (err error) {
	s := l.lines
	defer s.recovered(context.Background(), func() { err = errPanic })
	in := newFrames()
	var (
		msg   wire.Message
		batch wire.SendBatch
		came  []arrival
	)
	for {
		n, err := nc.Read(in.space())
		in.filled(n)
		if n > 0 {
			var more bool
			if came, more = l.match(in, came[:0]); more {
				l.acks.hurry() // the peer may wait for it with the others
			}
			for _, a := range came {
				s.deliver(a, &msg, &batch)
			}
			batch.Flush()
			clear(came)
		}
		if err != nil {
			return fmt.Errorf("receiving: %w", err)
		}
	}
}

// match takes the whole frames that are there and the queries that they answer off the connection. A frame that answers
// none is counted and ignored. It tells whether more answers are to come.
func (l *line) match(in *frames, came []arrival) (_ []arrival, more bool) {
	frame := in.next()
	if frame == nil {
		return came, true
	}
	s := l.lines
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	l.heard, l.owes = now, false
	for ; frame != nil; frame = in.next() {
		var t *try
		if len(frame) >= wire.HeaderLen {
			t = l.calls.at(wire.ID(frame))
		}
		if t == nil || wire.Match(t.ride.sent, frame) == wire.NoMatch {
			s.count.failures[CauseMismatch].Add(1)
			continue
		}
		l.removeLocked(now, t)
		came = append(came, arrival{t: t, frame: frame})
	}
	if len(came) > 0 {
		l.proved = true
		s.fault = nil
		s.openAheadIfEagerLocked(now)
	}
	l.restLocked(now)
	return came, l.calls.n > 0
}

// deliver reads a frame and hands it to its query.
func (s *lines) deliver(a arrival, msg *wire.Message, batch *wire.SendBatch) {
	var r received
	switch err := msg.Parse(a.frame); {
	case len(a.frame) == wire.HeaderLen: // no answer is as short but this one
		r.noEDNS = uint16(a.frame[3] & 0x0f)
	case err != nil:
		r.err = fmt.Errorf("%w: %w", errMalformed, err)
	case msg.Truncated():
		r.err = fmt.Errorf("%w: truncated over TCP", errMalformed)
	default:
		r.m = msg
	}
	if r.err != nil {
		s.count.failures[CauseMalformed].Add(1)
	}
	a.t.carried(r, batch)
}
