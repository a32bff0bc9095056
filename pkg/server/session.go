// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/wire"
)

// frameBuffer is the initial size in bytes of a session's read buffer: about a hundred queries.
const frameBuffer = 4 << 10

const (
	ticketBusy int64 = 0  // processing queries
	ticketShed int64 = -1 // shed to make room: later queries are not answered

	// lingerTime and lingerBytes bound the reading after the last answer. If a
	// socket is closed with unread bytes, the kernel sends RST and discards unsent
	// data: the client would lose answers.
	lingerTime  = 250 * time.Millisecond
	lingerBytes = 256 << 10

	// firstQueryWait is how long a session that is to end waits, from its start, for the first
	// query. A client that has just connected is about to send one.
	firstQueryWait = 100 * time.Millisecond

	// arrivedWait is how long a read waits that is for what has arrived.
	arrivedWait = time.Millisecond

	// tlsMemory is what TLS adds to a session at most, in bytes: the largest record, and its own state.
	tlsMemory = 22 << 10

	// maxDrainReads bounds the reads of a session that is to end, so that a client that sends
	// without a pause cannot keep it open.
	maxDrainReads = 16
)

// An endReason is why a session stops reading.
type endReason uint8

const (
	endNone         endReason = iota // the session continues
	endEOF                           // the client closed its sending side; it may still read
	endIdle                          // no query for IdleTimeout
	endFrameTimeout                  // a frame was not complete within FrameTimeout
	endShortFrame                    // a frame cannot hold a query
	endHandshake                     // the handshake of TLS failed, or took longer than FrameTimeout
	endDrain                         // the server stops and has read all pending queries
	endError                         // the connection failed
	endShed                          // shed to make room for a new session
)

// A session is one client's TCP connection. Read it in the order run, read, answer, finish. Only
// the goroutine of run uses fields that are not atomic, except out, which has its own lock.
type session struct {
	server  *TCP
	conn    net.Conn  // what queries are read from
	secured *tls.Conn // conn, if that is TLS
	peer    wire.Peer
	in      wire.FrameReader
	out     outbox

	handshaking atomic.Bool // the handshake of TLS is not done

	stateful   StatefulSession // of DNS stateful operations; nil: it has none
	lasting    atomic.Bool     // stateful has an operation that lasts, such as a subscription
	operation  time.Time       // when stateful had its last other operation
	delinquent time.Duration   // how long stateful may have none

	opened   time.Time
	gotQuery bool // a whole frame was received

	readDeadline time.Time // the read deadline of conn; zero: none
	waitingSince time.Time // when the session began to wait for bytes
	frameStart   time.Time // when the incomplete frame began; zero: none
	framesRead   int       // frames processed since the last read
	drainReads   int       // readBuffered calls since the session is to end
	extraBytes   int       // size of in beyond its initial size

	// idle is the ticket of the session. While the session waits for a query, it is the time on the server's clock since
	// when it waits. With an incomplete frame it is frameTicket of the frame's start. Otherwise it is ticketBusy or
	// ticketShed. A compare-and-swap decides who wins: the session when bytes arrive, or the table when it sheds.
	idle     atomic.Int64
	draining atomic.Bool
}

func newSession(t *TCP, conn net.Conn) *session {
	s := &session{server: t, conn: conn, opened: time.Now()}
	s.peer = wire.Peer{Addr: addrPort(conn.RemoteAddr()), Stream: true, TLS: t.cfg.TLS != nil}
	steady := steadyConn{conn, t.cfg.WriteTimeout}
	if t.cfg.TLS != nil {
		s.secured = tls.Server(steady, t.cfg.TLS)
		s.conn = s.secured
		s.handshaking.Store(true)
	}
	s.out.init(t, steady, s.secured)
	return s
}

// run serves the session until it ends, and closes it.
func (s *session) run(ctx context.Context) {
	defer s.out.usage.reset()
	defer s.server.table.remove(s)
	defer s.closeStateful()
	defer s.out.close()
	defer func() {
		if defect := recover(); defect != nil {
			s.server.count(&s.server.stats.Panics, 1)
			panics.Log(ctx, s.server.cfg.Log, "tcp", defect)
		}
	}()
	s.in = wire.NewFrameReader(frameBuffer) // only here: a refused connection costs no buffer
	end := endNone
	if s.secured != nil {
		end = s.shakeHands()
	}
	if end == endNone {
		end = s.read()
	}
	for end == endNone {
		if end = s.answer(); end == endNone {
			end = s.read()
		}
	}
	s.finish(end)
}

// shakeHands does the handshake of TLS. stop does not interrupt it: a client that has done its part may have sent a query.
func (s *session) shakeHands() endReason {
	s.out.usage.add(tlsMemory)
	s.server.shedMemory()
	ticket := s.beginWait(time.Now())
	_ = s.conn.SetReadDeadline(s.waitingSince.Add(s.server.cfg.FrameTimeout))
	err := s.secured.Handshake() //nolint:noctx // the deadline ends it
	s.handshaking.Store(false)
	if err != nil {
		return s.endWait(ticket, endHandshake)
	}
	return s.endWait(ticket, endNone)
}

// read waits for bytes and does one read. It postpones the read deadline only after it expired too
// early: a busy session sets none.
func (s *session) read() endReason {
	ticket := s.beginWait(time.Now())
	for {
		draining := s.draining.Load()
		if due := s.deadline(); s.readDeadline.IsZero() || due.Before(s.readDeadline) {
			s.readDeadline = due
			_ = s.conn.SetReadDeadline(due) // if it fails, Read fails too
		}
		if draining != s.draining.Load() {
			continue // stop may have set its deadline first, which was just replaced
		}
		if s.mustEnd() {
			return s.endWait(ticket, s.readBuffered())
		}
		n, err := s.conn.Read(s.readBuffer())
		s.in.Advance(n)
		switch {
		case n > 0:
			return s.endWait(ticket, endNone)
		case err == nil:
		case errors.Is(err, io.EOF):
			return s.endWait(ticket, endEOF)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			s.failed(err)
			return s.endWait(ticket, endError)
		default:
			if end := s.timeoutReason(); end != endNone {
				return s.endWait(ticket, end)
			}
			s.readDeadline = time.Time{} // it expired for an earlier wait
		}
	}
}

// failed handles a read error. It aborts and counts the session if its client left answers unread for TCP_USER_TIMEOUT.
// The kernel reports that error once, to the first system call.
func (s *session) failed(err error) {
	if errors.Is(err, syscall.ETIMEDOUT) && s.out.abort() {
		s.server.count(&s.server.stats.WriteTimeouts, 1)
	}
}

// readBuffer returns where the next read goes. It counts growth of the buffer as memory of the
// session.
func (s *session) readBuffer() []byte {
	room := s.in.Buffer()
	if more := s.in.Size() - frameBuffer - s.extraBytes; more != 0 {
		s.extraBytes += more
		s.out.usage.add(more)
		s.server.shedMemory()
	}
	return room
}

// timeoutReason returns why a session whose deadline expired ends, if it ends.
func (s *session) timeoutReason() endReason {
	switch {
	case s.draining.Load(), s.deadline().After(time.Now()):
		return endNone
	case !s.frameStart.IsZero():
		return endFrameTimeout
	}
	return endIdle
}

// mustEnd reports whether the session is to end now: the server drains, and the client has sent a
// query or had firstQueryWait to send one.
func (s *session) mustEnd() bool {
	return s.draining.Load() && (s.gotQuery || time.Since(s.opened) >= firstQueryWait)
}

// readBuffered reads what arrived before the session was to end: the kernel has acknowledged those
// queries, and without answers the client would have to retry. It does not wait.
func (s *session) readBuffered() endReason {
	conn, ok := s.conn.(syscall.Conn)
	switch s.drainReads++; {
	case s.drainReads > maxDrainReads:
		return endDrain
	case s.secured != nil:
		return s.readArrived()
	case !ok:
		return endDrain
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return endError
	}
	n, failed := 0, error(nil)
	// conn.Read would fail: its deadline has passed.
	room := s.readBuffer()
	err = raw.Control(func(fd uintptr) {
		for n, failed = unix.Read(int(fd), room); errors.Is(failed, unix.EINTR); {
			n, failed = unix.Read(int(fd), room)
		}
	})
	if err != nil {
		return endError
	}
	switch {
	case failed == nil && n > 0:
		s.in.Advance(n)
		return endNone
	case failed == nil:
		return endEOF
	case errors.Is(failed, unix.EAGAIN):
		return endDrain
	default:
		return endError
	}
}

// readArrived is readBuffered over TLS. It waits for arrivedWait.
func (s *session) readArrived() endReason {
	_ = s.conn.SetReadDeadline(time.Now().Add(arrivedWait))
	n, err := io.ReadFull(s.conn, s.readBuffer()) // one read of TLS is one record, maybe of one query
	s.in.Advance(n)
	switch {
	case n > 0:
		return endNone
	case errors.Is(err, io.EOF):
		return endEOF
	case errors.Is(err, os.ErrDeadlineExceeded):
		return endDrain
	default:
		return endError
	}
}

// beginWait notes what the session waits for, the rest of a frame or the next query, and returns
// the ticket.
func (s *session) beginWait(now time.Time) int64 {
	fresh := s.framesRead > 0 || s.frameStart.IsZero()
	s.waitingSince, s.framesRead = now, 0
	switch {
	case !s.in.Partial():
		s.frameStart = time.Time{}
		ticket := s.server.clock(now)
		s.idle.Store(ticket)
		return ticket
	case fresh:
		// Not the time of the read: while the session answered earlier queries, it
		// could not read the rest of this frame.
		s.frameStart = now
	}
	ticket := frameTicket(s.server.clock(s.frameStart))
	s.idle.Store(ticket)
	return ticket
}

// frameTicket converts the time at which a frame began to a ticket, and back.
func frameTicket(at int64) int64 { return ticketShed - at }

// endWait ends a wait. It returns endShed if the session was shed meanwhile.
func (s *session) endWait(ticket int64, end endReason) endReason {
	if !s.idle.CompareAndSwap(ticket, ticketBusy) {
		return endShed
	}
	return end
}

// deadline returns when the session has waited too long for its client. While the client waits for an answer, its whole
// idle time is left, unless it has sent a part of a query.
func (s *session) deadline() time.Time {
	switch {
	case !s.gotQuery && s.draining.Load():
		return s.opened.Add(firstQueryWait)
	case !s.frameStart.IsZero():
		return s.frameStart.Add(s.server.cfg.FrameTimeout)
	}
	busy, answered := s.out.state()
	switch {
	case busy:
		return time.Now().Add(s.server.idle())
	case s.stateful != nil:
		return s.statefulDeadline(answered)
	case answered.After(s.waitingSince):
		return answered.Add(s.server.idle())
	default:
		return s.waitingSince.Add(s.server.idle())
	}
}

// idleSince reports whether a session with the ticket is idle, and since when on the server's clock.
// Any goroutine may call it.
func (s *session) idleSince(ticket int64) (since int64, idle bool) {
	busy, answered := s.out.state()
	if busy || ticket == ticketBusy || s.lasting.Load() {
		return 0, false
	}
	if ticket < ticketShed {
		ticket = frameTicket(ticket)
	}
	return max(ticket, s.server.clock(answered)), true
}

// answer processes all whole frames that were read.
func (s *session) answer() endReason {
	for {
		more, end := s.answerBatch()
		if end != endNone || !more {
			return end
		}
		if !s.out.awaitMissSlot() {
			return endError
		}
	}
}

// answerBatch answers frames until none is whole, one is too short for a query, maxGathered bytes
// are gathered, stateful messages have taken yieldInterval, or MaxPipeline misses are outstanding; in the
// last three cases more is true. It writes the gathered answers with one write.
func (s *session) answerBatch() (more bool, end endReason) {
	s.server.yielder.yield()
	now := time.Now()
	k := s.server.getWorker()
	whole := false
	defer func() {
		if !whole { // a query panicked
			flushAfterPanic(k.worker)
		}
	}()
	before := s.framesRead
	for {
		pkt, ok := s.in.Next(wire.HeaderLen)
		if !ok { // the frame is too short for a query, so the rest of the stream is not parsed
			s.server.count(&s.server.stats.ShortFrames, 1)
			end = endShortFrame
			break
		}
		if pkt == nil {
			break
		}
		s.framesRead++
		s.gotQuery = true
		if more = s.answerQuery(k, pkt, now); more {
			break
		}
	}
	s.server.count(&s.server.stats.Queries, s.framesRead-before)
	done := time.Now()
	k.worker.Flush(done)
	whole = true
	s.server.yielder.addWork(done.Sub(now))
	if len(k.out) > 0 && !s.out.writeAnswers(k.out) {
		end = endError
	}
	s.server.putWorker(k)
	return more, end
}

// answerQuery answers or resolves one query. It reports whether the batch must end.
func (s *session) answerQuery(k *batchWorker, pkt []byte, now time.Time) bool {
	if s.server.cfg.Stateful != nil && isStateful(pkt) && s.handleStateful(pkt, now) {
		return time.Since(now) >= yieldInterval
	}
	if s.stateful != nil {
		if s.operation = now; s.out.hasEnded() {
			return false
		}
	}
	at := len(k.out)
	out, verdict := k.worker.AnswerFromMemory(pkt, &s.peer, now, wire.OpenFrame(k.out))
	switch verdict {
	case wire.Answered:
		framed, ok := wire.SealFrame(out, at)
		if !ok {
			s.server.count(&s.server.stats.Oversized, 1)
		}
		k.out = framed
		return len(k.out) >= maxGathered
	case wire.Missed:
		k.out = out[:at]
		full := s.out.addMiss()
		k.worker.Resolve(&s.peer, now, &s.out)
		return full
	default:
		k.out = out[:at]
		return false
	}
}

// finish waits until outstanding answers are sent, unless the connection failed or the session was shed. run then closes it.
func (s *session) finish(end endReason) {
	switch end {
	case endIdle:
		s.server.count(&s.server.stats.IdleClosed, 1)
		if s.stateful != nil {
			s.out.abort() // RFC 8490 section 6.4.1
			return
		}
	case endFrameTimeout:
		s.server.count(&s.server.stats.SlowClosed, 1)
	case endHandshake:
		s.server.count(&s.server.stats.Handshakes, 1)
		return
	case endError, endShed:
		return
	default:
	}
	switch {
	case !s.out.awaitAnswers():
	case end != endEOF && end != endIdle:
		s.linger()
	case s.secured != nil:
		_ = s.secured.CloseWrite() // close_notify: the client knows that no answer was cut (RFC 8446 section 6.1)
	}
}

// linger closes the sending side and reads until the client closes, within bounds.
func (s *session) linger() {
	half, ok := s.conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	_ = s.conn.SetReadDeadline(time.Now().Add(lingerTime))
	reader := struct{ io.Reader }{s.conn} // hides the other methods of conn, with which io would call splice(2)
	_, _ = io.CopyN(io.Discard, reader, lingerBytes)
}

// stop makes the session finish: it reads only what has arrived, or what a client that has just
// connected is about to send. Any goroutine may call it.
func (s *session) stop() {
	s.draining.Store(true)
	if !s.handshaking.Load() { // else read sees draining
		_ = s.conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// cut ends the session at once. Any goroutine may call it.
func (s *session) cut() {
	if s.out.fail() {
		s.server.count(&s.server.stats.DrainCut, 1)
	}
}
