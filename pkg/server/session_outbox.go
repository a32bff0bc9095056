// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	// maxPending bounds the answers of misses that a client has not taken.
	maxPending = 256 << 10
	// maxSpare is the buffer a session keeps between answers of misses.
	maxSpare = 2 << 10
	// maxStreamPending bounds what is put by of streams, so that they never take the
	// room of other answers.
	maxStreamPending = 64 << 10
	// streamWriteTimeouts is how many WriteTimeouts a stream waits for room for one
	// message. A client that takes an byte now and then must not hold whoever
	// sends to it for hours.
	streamWriteTimeouts = 10
)

// An outbox sends the answers of one session: those the session brings itself, by
// send, and those of misses, by More and Reply on any goroutine.
//
// One goroutine at a time has the role of the writer and writes to the connection
// without the lock. Send waits for the role: a session whose client does not read
// shall not read either. Reply never waits: it puts the answer by and leaves it to
// the writer, or starts one. More does the same once little enough is put by.
type outbox struct {
	server *TCP
	conn   net.Conn

	mu           sync.Mutex // guards the fields below; changed.L
	changed      sync.Cond  // a miss was answered, the writer is done, or closed; only the session's goroutine waits
	drained      sync.Cond  // the writer wrote what it had, or closed, or a stream's patience is over; streams wait
	pending      []byte     // framed answers that wait for the writer
	spare        []byte     // what pending becomes when the writer takes it
	inFlight     int        // bytes of misses the writer is sending
	misses       int        // handed over and not answered yet
	answered     time.Time  // when the last of them was answered
	writing      bool       // a goroutine has the role of the writer
	sessionWaits bool       // the session waits for the role
	closed       bool       // conn is closed, or about to be
	counted      int        // bytes of pending and spare that held counts

	usage         memoryUse
	raw           syscall.RawConn    // of conn; nil: it has none
	writeOnceFunc func(uintptr) bool // try, with what it takes and gives in the fields below; only the writer uses them
	writeBuf      []byte
	written       int
}

func (o *outbox) init(t *TCP, conn net.Conn) {
	o.server, o.conn = t, conn
	o.changed.L, o.drained.L = &o.mu, &o.mu
	o.usage.memory = &t.memory
	if c, ok := conn.(syscall.Conn); ok {
		o.raw, _ = c.SyscallConn() // of a TCP connection it has no error
		o.writeOnceFunc = o.writeOnce
	}
}

// expect notes that a query is about to be handed over. It reports whether as many
// are outstanding as may be.
func (o *outbox) addMiss() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.misses++
	return o.misses >= o.server.cfg.MaxPipeline
}

// Reply implements [wire.Replier] for every miss of the session.
func (o *outbox) Reply(msg []byte, _ *wire.SendBatch) {
	now := time.Now()
	o.mu.Lock()
	o.misses--
	o.answered = now
	o.changed.Signal()
	overflow := o.appendLocked(msg)
	o.mu.Unlock()
	if overflow && o.abort() {
		o.server.count.overflows.Add(1)
	}
	o.server.shedMemory()
}

// More implements [wire.Stream] for every miss of the session.
func (o *outbox) SendMessage(msg []byte) bool {
	if len(msg) > wire.MaxMessage {
		o.server.count.oversized.Add(1)
		return false
	}
	o.mu.Lock()
	room := !o.fullLocked(msg) || o.awaitSpaceLocked(msg)
	sent := room && !o.closed && !o.appendLocked(msg)
	o.mu.Unlock()
	if !room && o.abort() {
		o.server.count.writeTimeouts.Add(1)
	}
	o.server.shedMemory()
	return sent
}

// awaitSpaceLocked waits until a stream's message has to wait no more. It returns
// false when that took too long.
func (o *outbox) awaitSpaceLocked(msg []byte) bool {
	late := false
	limit := time.AfterFunc(streamWriteTimeouts*o.server.cfg.WriteTimeout, func() {
		o.mu.Lock()
		late = true
		o.mu.Unlock()
		o.drained.Broadcast()
	})
	defer limit.Stop()
	for o.fullLocked(msg) && !late {
		o.drained.Wait()
	}
	return !o.fullLocked(msg)
}

// fullLocked reports whether a stream's message has to wait.
func (o *outbox) fullLocked(msg []byte) bool {
	held := len(o.pending) + o.inFlight
	return !o.closed && held > 0 && held+frameHeader+len(msg) > maxStreamPending
}

// appendLocked adds msg to what is pending. It reports whether there is no room.
func (o *outbox) appendLocked(msg []byte) (overflow bool) {
	if o.closed || len(msg) == 0 {
		return false
	}
	if len(o.pending)+o.inFlight+frameHeader+len(msg) > maxPending {
		return true
	}
	at := len(o.pending)
	var ok bool
	o.pending, ok = frameSeal(append(frameOpen(o.pending), msg...), at)
	o.countLocked()
	if !ok {
		o.server.count.oversized.Add(1)
		return false
	}
	if !o.writing && !o.sessionWaits {
		o.writing = true
		o.server.tasks.Go(o.writeLoop) // the session, one of the tasks, waits for it in close
	}
	return false
}

// writeAnswers writes framed answers, after those being written. It reports whether the
// client took them.
func (o *outbox) writeAnswers(framed []byte) bool {
	o.mu.Lock()
	o.sessionWaits = true
	for o.writing && !o.closed {
		o.changed.Wait()
	}
	o.sessionWaits = false
	if o.closed {
		o.mu.Unlock()
		return false
	}
	o.writing = true
	o.writePendingLocked() // answers of misses that came before, and
	o.mu.Unlock()
	ok := o.write(framed)
	o.mu.Lock()
	o.writePendingLocked() // those that came meanwhile
	if len(o.pending) > 0 && !o.closed {
		o.server.tasks.Go(o.writeLoop) // a stream goes on, and the session has to read
	} else {
		o.releaseWriterLocked()
	}
	o.mu.Unlock()
	return ok
}

// writeLoop writes what is pending until nothing is or the session wants the role of
// the writer, which flush has and gives up.
func (o *outbox) writeLoop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.pending) > 0 && !o.closed && !o.sessionWaits {
		o.writePendingLocked()
	}
	o.releaseWriterLocked()
}

// writePendingLocked writes what is pending now, with the lock given up meanwhile. The
// caller has the role of the writer.
func (o *outbox) writePendingLocked() {
	if len(o.pending) == 0 || o.closed {
		return
	}
	chunk := o.pending
	o.pending, o.spare = o.spare, nil
	o.inFlight = len(chunk)
	o.mu.Unlock()
	o.write(chunk)
	o.mu.Lock()
	o.inFlight = 0
	if cap(chunk) <= maxSpare {
		o.spare = chunk[:0]
	}
	o.countLocked()
	o.drained.Broadcast()
}

// countLocked counts what pending and spare hold now.
func (o *outbox) countLocked() {
	now := cap(o.pending) + cap(o.spare)
	o.usage.add(now - o.counted)
	o.counted = now
}

// releaseWriterLocked gives up the role of the writer.
func (o *outbox) releaseWriterLocked() {
	if len(o.pending) == 0 && cap(o.pending) > maxSpare || o.closed {
		o.pending = nil
		o.countLocked()
	}
	o.writing = false
	o.changed.Signal()
}

// write writes b. What the kernel does not take at once counts as held, with what comes
// of the client meanwhile.
func (o *outbox) write(b []byte) bool {
	rest := o.writeNonblocking(b)
	o.usage.addSent(len(b) - len(rest))
	if len(rest) == 0 {
		return true
	}
	blocked := cap(b) + kernelReceive
	o.usage.add(blocked)
	o.server.shedMemory()
	ok := o.writeAll(rest)
	o.usage.addSent(len(rest))
	o.usage.add(-blocked)
	return ok
}

// writeNonblocking writes as much of b as the kernel takes without a wait, and returns the rest.
func (o *outbox) writeNonblocking(b []byte) []byte {
	if o.raw == nil {
		return b
	}
	o.writeBuf, o.written = b, 0
	_ = o.raw.Write(o.writeOnceFunc) // writeAll has the error, too
	o.writeBuf = nil
	return b[o.written:]
}

func (o *outbox) writeOnce(fd uintptr) bool {
	n, err := unix.Write(int(fd), o.writeBuf)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Write(int(fd), o.writeBuf)
	}
	o.written = max(0, n)
	return true
}

// writeAll writes b, and goes on as long as the client takes some of it within each
// WriteTimeout. It closes the session otherwise.
func (o *outbox) writeAll(b []byte) bool {
	defer func() { _ = o.conn.SetWriteDeadline(time.Time{}) }() // writeNow has none
	for {
		_ = o.conn.SetWriteDeadline(time.Now().Add(o.server.cfg.WriteTimeout)) // fails only where Write fails too
		n, err := o.conn.Write(b)
		if err == nil {
			return true
		}
		switch {
		case errors.Is(err, syscall.ETIMEDOUT): // the kernel has given the client up before
		case !errors.Is(err, os.ErrDeadlineExceeded):
			o.fail()
			return false
		case n > 0:
			b = b[n:]
			continue
		}
		if o.abort() {
			o.server.count.writeTimeouts.Add(1)
		}
		return false
	}
}

// awaitMissSlot waits until fewer misses are outstanding than may be. It returns
// false when the session is closed.
func (o *outbox) awaitMissSlot() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.misses >= o.server.cfg.MaxPipeline {
		o.server.count.stalls.Add(1)
		o.usage.add(kernelReceive)
		defer o.usage.add(-kernelReceive)
	}
	for o.misses >= o.server.cfg.MaxPipeline && !o.closed {
		o.changed.Wait()
	}
	return !o.closed
}

// awaitAnswers waits until every miss is answered and every answer written. It returns
// false when the session was closed before.
func (o *outbox) awaitAnswers() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for (o.misses > 0 || o.writing) && !o.closed {
		o.changed.Wait()
	}
	return !o.closed
}

// close closes the connection and waits for the writer. Answers of misses that
// come later are thrown away.
func (o *outbox) close() {
	o.fail()
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.writing {
		o.changed.Wait()
	}
}

// fail closes the connection, which ends its reader and its writer. It reports
// whether it was open. Any goroutine may call it.
func (o *outbox) fail() bool {
	o.mu.Lock()
	first := !o.closed
	o.closed = true
	o.changed.Signal()
	o.drained.Broadcast()
	o.mu.Unlock()
	if first {
		_ = o.conn.Close()
	}
	return first
}

// abort is fail, and has the kernel forget what the client has not read.
func (o *outbox) abort() bool {
	if c, ok := o.conn.(interface{ SetLinger(seconds int) error }); ok {
		_ = c.SetLinger(0)
	}
	return o.fail()
}

// closeOrAbort is fail for a client that has had time to read. If it has not, the kernel must not
// keep the answers for it.
func (o *outbox) closeOrAbort() bool {
	if o.measureKernel() > 0 {
		return o.abort()
	}
	return o.fail()
}

// measureKernel corrects what is held by the kernel's own count, and returns that.
func (o *outbox) measureKernel() (kernel int64) {
	if o.raw != nil {
		kernel = int64(unsentBytes(o.raw))
	}
	o.usage.setKernel(kernel)
	return kernel
}

// holds is how many bytes the session holds, with the kernel's own count; 0 once it is closed.
func (o *outbox) heldBytes() int64 {
	o.mu.Lock()
	closed := o.closed
	o.mu.Unlock()
	if closed {
		return 0
	}
	if o.usage.kernel.Load() > 0 {
		o.measureKernel()
	}
	return o.usage.bytes()
}

// state reports whether an answer is outstanding or being written, and when a miss
// was last answered.
func (o *outbox) state() (busy bool, answered time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.misses > 0 || o.writing, o.answered
}
