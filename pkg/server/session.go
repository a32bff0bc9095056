// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	ticketBusy int64 = 0  // at work
	ticketShed int64 = -1 // given up for a new session: whatever comes now is too late

	// lingerTime and lingerBytes bound the reading on after the last answer. To
	// close with unread bytes makes the kernel send RST and forget what it has
	// not sent yet: the client would lose answers.
	lingerTime  = 250 * time.Millisecond
	lingerBytes = 256 << 10

	// firstQueryWait is how long after it was opened a session that is to end waits for the
	// first that its client says: who has just connected is about to ask, and would be
	// told that nobody wants to hear it.
	firstQueryWait = 100 * time.Millisecond

	// maxDrainReads is how often a session that is to end still reads what has come by
	// then: a client that sends without a pause must not keep it.
	maxDrainReads = 16
)

// An endReason says why a session reads no more.
type endReason uint8

const (
	endNone         endReason = iota // it goes on
	endEOF                           // the client will send no more; it may still read
	endIdle                          // nothing to do for Idle
	endFrameTimeout                  // a frame begun was not whole in time
	endShortFrame                    // a frame cannot hold a query
	endDrain                         // the server stops, and what had come, or was about to, is read
	endError                         // the connection failed
	endShed                          // closed in favour of a new session
)

// A session is one client's TCP connection. It reads top to bottom: run, read,
// answer, finish. Only the goroutine of run touches fields that are not atomic,
// but for out, which has its own lock.
type session struct {
	server *TCP
	conn   net.Conn
	peer   wire.Peer
	in     frames
	out    outbox

	opened   time.Time
	gotQuery bool // a whole frame of the client's

	readDeadline time.Time // the read deadline set in conn; zero: none
	waitingSince time.Time // when the session last began to wait for bytes
	frameStart   time.Time // when the frame now partly read began; zero: none
	framesRead   int       // frames taken since the last read
	drainReads   int       // reads since the session was to end
	extraBytes   int       // bytes that in has beyond what it began with

	// idle is the ticket of a session that waits with nothing taken: the time on the
	// server's clock, or with half a frame read frameTicket of that, or idleNot or idleShed.
	// Who swaps it owns the decision: the session when bytes came, the table when it sheds.
	idle     atomic.Int64
	draining atomic.Bool
}

func newSession(t *TCP, conn net.Conn) *session {
	s := &session{server: t, conn: conn, opened: time.Now()}
	s.peer = wire.Peer{Addr: addrPort(conn.RemoteAddr()), Stream: true}
	s.out.init(t, conn)
	return s
}

// run serves the session until it ends, and closes it.
func (s *session) run(ctx context.Context) {
	defer s.out.usage.reset()
	defer s.server.table.remove(s)
	defer s.out.close()
	defer func() {
		if defect := recover(); defect != nil {
			s.server.count.panics.Add(1)
			logPanic(ctx, s.server.cfg.Log, "tcp", defect)
		}
	}()
	s.in = newFrames() // here and not before: a connection that is refused costs no buffer
	end := s.read()
	for end == endNone {
		if end = s.answer(); end == endNone {
			end = s.read()
		}
	}
	s.finish(end)
}

// read waits for bytes and takes as many as one read brings. Deadlines are moved
// only when one ran out too early: a busy session sets none at all.
func (s *session) read() endReason {
	ticket := s.beginWait(time.Now())
	for {
		draining := s.draining.Load()
		if due := s.deadline(); s.readDeadline.IsZero() || due.Before(s.readDeadline) {
			s.readDeadline = due
			_ = s.conn.SetReadDeadline(due) // fails only where Read fails too
		}
		if draining != s.draining.Load() {
			continue // stop may have set its deadline before this one
		}
		if s.mustEnd() {
			return s.endWait(ticket, s.readBuffered())
		}
		n, err := s.conn.Read(s.readBuffer())
		s.in.advance(n)
		switch {
		case n > 0:
			return s.endWait(ticket, endNone)
		case err == nil:
		case errors.Is(err, io.EOF):
			return s.endWait(ticket, endEOF)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return s.endWait(ticket, endError)
		default:
			if end := s.timeoutReason(); end != endNone {
				return s.endWait(ticket, end)
			}
			s.readDeadline = time.Time{} // it ran out for what is over now
		}
	}
}

// readBuffer is where the next read goes. What the buffer has grown counts as held.
func (s *session) readBuffer() []byte {
	room := s.in.readBuffer()
	if more := len(s.in.buf) - frameBuffer - s.extraBytes; more != 0 {
		s.extraBytes += more
		s.out.usage.add(more)
		s.server.shedMemory()
	}
	return room
}

// timeoutReason says how a session ends whose deadline is over, if it ends.
func (s *session) timeoutReason() endReason {
	switch {
	case s.draining.Load(), s.deadline().After(time.Now()):
		return endNone
	case !s.frameStart.IsZero():
		return endFrameTimeout
	}
	return endIdle
}

// mustEnd says that the session is to end, and that its client has been heard or has had
// its time to begin.
func (s *session) mustEnd() bool {
	return s.draining.Load() && (s.gotQuery || time.Since(s.opened) >= firstQueryWait)
}

// readBuffered takes what has come before the session was to end, if there is more of it: it was
// accepted, and its client would have to ask again. It waits for nothing.
func (s *session) readBuffered() endReason {
	conn, ok := s.conn.(syscall.Conn)
	if s.drainReads++; !ok || s.drainReads > maxDrainReads {
		return endDrain
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return endError
	}
	n, failed := 0, error(nil)
	// Reading in the usual way, past the deadline, would give nothing.
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
		s.in.advance(n)
		return endNone
	case failed == nil:
		return endEOF
	case errors.Is(failed, unix.EAGAIN):
		return endDrain
	default:
		return endError
	}
}

// beginWait notes what the session waits for: the rest of a frame, or the next query,
// for which it gets a ticket.
func (s *session) beginWait(now time.Time) int64 {
	fresh := s.framesRead > 0 || s.frameStart.IsZero()
	s.waitingSince, s.framesRead = now, 0
	switch {
	case !s.in.partial():
		s.frameStart = time.Time{}
		ticket := s.server.clock(now)
		s.idle.Store(ticket)
		return ticket
	case fresh:
		// From now and not from the read that brought it: while the session
		// answered what came before, the client could not be heard.
		s.frameStart = now
	}
	ticket := frameTicket(s.server.clock(s.frameStart))
	s.idle.Store(ticket)
	return ticket
}

// frameTicket turns the time at which a frame began into a ticket, and back.
func frameTicket(at int64) int64 { return ticketShed - at }

// endWait ends a wait. It tells a session that was shed meanwhile.
func (s *session) endWait(ticket int64, end endReason) endReason {
	if !s.idle.CompareAndSwap(ticket, ticketBusy) {
		return endShed
	}
	return end
}

// deadline returns when the session has waited too long. That is still to come as long
// as an answer is outstanding, unless a frame has begun.
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
	case answered.After(s.waitingSince):
		return answered.Add(s.server.idle())
	default:
		return s.waitingSince.Add(s.server.idle())
	}
}

// idleSince returns since when a session with that ticket has been idle, on the
// server's clock, or false when it is not. Any goroutine may call it.
func (s *session) idleSince(ticket int64) (since int64, idle bool) {
	busy, answered := s.out.state()
	if busy || ticket == ticketBusy {
		return 0, false
	}
	if ticket < ticketShed {
		ticket = frameTicket(ticket)
	}
	return max(ticket, s.server.clock(answered)), true
}

// answer deals with all whole frames that were read.
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

// answerBatch answers frames until none is whole, enough bytes are gathered, or as many
// misses are outstanding as may be; in the latter two cases more is true. What it
// gathered leaves in one write.
func (s *session) answerBatch() (more bool, end endReason) {
	s.server.yielder.yield()
	now := time.Now()
	k := s.server.workers.get()
	whole := false
	defer func() {
		if !whole { // one of them panicked
			flushAfterPanic(k.worker)
		}
	}()
	before := s.framesRead
	for {
		pkt, err := s.in.next()
		if err != nil {
			s.server.count.shortFrames.Add(1)
			end = endShortFrame
			break
		}
		if pkt == nil {
			break
		}
		s.framesRead++
		s.gotQuery = true
		if more = s.answerQuery(&k, pkt, now); more {
			break
		}
	}
	s.server.count.queries.Add(uint64(s.framesRead - before))
	done := time.Now()
	k.worker.Flush(done)
	whole = true
	s.server.yielder.addWork(done.Sub(now))
	if len(k.out) > 0 && !s.out.writeAnswers(k.out) {
		end = endError
	}
	s.server.workers.put(k)
	return more, end
}

// answerQuery answers or hands over one query. It reports whether the batch must end.
func (s *session) answerQuery(k *batchWorker, pkt []byte, now time.Time) bool {
	at := len(k.out)
	out, verdict := k.worker.AnswerFromMemory(pkt, &s.peer, now, frameOpen(k.out))
	switch verdict {
	case wire.Answered:
		framed, ok := frameSeal(out, at)
		if !ok {
			s.server.count.oversized.Add(1)
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

// finish sends what is owed. The connection is closed afterwards, by run.
func (s *session) finish(end endReason) {
	count := &s.server.count
	switch end {
	case endIdle:
		count.idleClosed.Add(1)
	case endFrameTimeout:
		count.slowClosed.Add(1)
	case endError, endShed:
		return
	default:
	}
	if s.out.awaitAnswers() && end != endEOF && end != endIdle {
		s.linger()
	}
}

// linger says that no more is sent, and lets the client finish.
func (s *session) linger() {
	half, ok := s.conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	_ = s.conn.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, onlyReader{s.conn}, lingerBytes)
}

// onlyReader hides the conn's other methods, with which io would splice.
type onlyReader struct{ io.Reader }

// stop makes the session finish and read no more, but for what has come, or is about to
// of a client that has just connected. Any goroutine may call it.
func (s *session) stop() {
	s.draining.Store(true)
	_ = s.conn.SetReadDeadline(time.Unix(1, 0))
}

// cut ends the session now. Any goroutine may call it.
func (s *session) cut() {
	if s.out.fail() {
		s.server.count.drainCut.Add(1)
	}
}
