// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	maxOutbox       = 1 << 18  // bytes waiting to be written on one connection
	maxDirectWrites = 4        // direct writes of one flush, before the writer takes over
	maxSpareBuf     = 32 << 10 // largest written outbox that is kept for reuse, in bytes
)

// A streamConn is the link of a TCP or TLS connection: messages with a length prefix (RFC 1035 section 4.2.2). One
// goroutine reads, one writes what the kernel did not accept at once.
type streamConn struct {
	*conn
	wake   chan struct{} // wakes the writer; has room for one
	socket *tcpSocket    // nil: not a TCP socket, or another system than Linux. Set before open

	// Guarded by connPool.mu:
	writing      bool   // a flush or the writer owns the sending side
	flushPending bool   // a Flush sent nothing, for example because writing was set
	outbox       []byte // frames to be written
	spareBuf     []byte // a written outbox, kept for its memory; nil: none
	unsent       []byte // rest of a direct write, for the writer
}

// newStreamPool makes the transport for TCP or TLS.
func newStreamPool(c *common, t Target, count *counters) *connPool {
	p := newConnPool(c, t, count, func(c *conn) link { return &streamConn{conn: c, wake: make(chan struct{}, 1)} })
	if t.Network == "tls" {
		p.tlsClient = newTLSClient(c, t, count, "dot")
	}
	return p
}

// fullLocked implements link.
func (s *streamConn) fullLocked(size int) bool {
	return len(s.queries) >= maxInflight || len(s.outbox)+wire.FrameHeader+size > maxOutbox
}

// blocked implements link.
func (s *streamConn) blocked() bool { return false }

// queueLocked appends the query to the outbox, over TLS with padding.
func (s *streamConn) queueLocked(a *attempt, batch *wire.SendBatch) (first bool) {
	wire.SetID(a.sent, a.id)
	if s.batch != batch {
		s.batch, s.batchCount = batch, 0
	}
	s.batchCount++
	first = len(s.outbox) == 0
	at := len(s.outbox)
	s.outbox = wire.OpenFrame(s.outbox)
	if s.pool.tlsClient != nil {
		s.outbox = wire.AppendPadded(s.outbox, a.sent)
	} else {
		s.outbox = append(s.outbox, a.sent...)
	}
	s.outbox, _ = wire.SealFrame(s.outbox, at) // a query is neither empty nor too long
	return first
}

// start implements link.
func (s *streamConn) start(context.Context, net.Conn) error {
	if raw := rawConn(s.rawConn); raw != nil {
		s.socket = newTCPSocket(raw)
	}
	return nil
}

// serve reads until the connection ends.
func (s *streamConn) serve(ctx context.Context, nc net.Conn) {
	var writer sync.WaitGroup
	writer.Go(func() { s.fail(s.write(ctx, nc)) })
	s.Flush()          // queries that came while it opened
	s.fail(s.read(nc)) //nolint:contextcheck // it may open the next connection, which outlives this one
	writer.Wait()
}

// Flush sends the queries of a batch. If the kernel accepts them, they are written here and no goroutine wakes.
//
// The goroutine that sets writing owns the sending side until it clears writing. Any other one sets flushPending,
// which the owner checks before it clears writing.
func (s *streamConn) Flush() {
	c, p := s.conn, s.pool
	p.mu.Lock()
	c.batch = nil
	if !c.open || c.err != nil || len(s.outbox) == 0 || s.writing {
		s.flushPending = true
		p.mu.Unlock()
		return
	}
	s.writing = true
	for range maxDirectWrites {
		if s.socket == nil || p.tlsClient != nil {
			break
		}
		out := s.takeOutboxLocked()
		p.mu.Unlock()
		n, err := s.socket.write(out)
		p.mu.Lock()
		if err != nil {
			c.failLocked(fmt.Errorf("sending: %w", err))
			p.mu.Unlock()
			return
		}
		if n < len(out) {
			s.unsent = out[n:]
			break
		}
		s.recycleLocked(out)
		if !s.flushPending || len(s.outbox) == 0 {
			s.writing = false
			p.mu.Unlock()
			return
		}
	}
	p.mu.Unlock()
	s.wake <- struct{}{} // does not block: only the owner of the sending side sends, and the writer receives before it releases that side
}

// takeOutboxLocked takes all queued frames.
func (s *streamConn) takeOutboxLocked() []byte {
	out := s.outbox
	s.outbox, s.spareBuf, s.flushPending = s.spareBuf[:0], nil, false
	return out
}

// recycleLocked keeps the memory of written frames.
func (s *streamConn) recycleLocked(out []byte) {
	if cap(out) <= maxSpareBuf {
		s.spareBuf = out
	}
}

// write writes what flushes leave, until ctx ends because the connection has failed.
func (s *streamConn) write(ctx context.Context, nc net.Conn) (err error) {
	defer s.pool.recoverPanic(ctx, func() { err = errPanic })
	watchdog := time.AfterFunc(writeTimeout, func() { s.fail(errStuck) })
	defer watchdog.Stop()
	for {
		watchdog.Stop()
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil // it has failed already
		}
		for out := s.nextWrite(nil); len(out) > 0; out = s.nextWrite(out) {
			watchdog.Reset(writeTimeout)
			if _, err := nc.Write(out); err != nil {
				return fmt.Errorf("sending: %w", err)
			}
		}
	}
}

// nextWrite returns what to write next, after sent was written. If there is nothing, it releases the sending side.
func (s *streamConn) nextWrite(sent []byte) []byte {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if sent != nil {
		s.recycleLocked(sent)
	}
	if rest := s.unsent; rest != nil {
		s.unsent = nil
		return rest
	}
	if len(s.outbox) > 0 {
		return s.takeOutboxLocked()
	}
	s.writing = false
	return nil
}

// read reads frames until the connection ends.
func (s *streamConn) read(nc net.Conn) (err error) {
	p := s.pool
	defer p.recoverPanic(context.Background(), func() { err = errPanic })
	in := wire.NewFrameReader(readBufferSize)
	var (
		msg   wire.Message
		batch wire.SendBatch
		came  []*attempt
	)
	for {
		n, err := nc.Read(in.Buffer())
		in.Advance(n)
		if n > 0 {
			var more bool
			if came, more = s.matchFrames(&in, came[:0]); more {
				s.socket.ackNow() // the peer may hold the other answers back until then
			}
			for _, a := range came {
				p.deliver(a, &msg, &batch)
			}
			batch.Flush()
			clear(came)
		}
		if err != nil {
			return fmt.Errorf("receiving: %w", err)
		}
	}
}

// matchFrames appends to came the attempts that the received whole frames answer, and removes them from the connection.
// A frame that answers no query is counted and ignored. more reports whether further answers are expected.
func (s *streamConn) matchFrames(in *wire.FrameReader, came []*attempt) (_ []*attempt, more bool) {
	msg, _ := in.Next(0)
	if msg == nil {
		return came, true
	}
	c, p := s.conn, s.pool
	now := p.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	c.heardLocked(now)
	for ; msg != nil; msg, _ = in.Next(0) {
		var a *attempt
		if len(msg) >= wire.HeaderLen {
			a = c.queries[wire.ID(msg)]
		}
		if a == nil || wire.Match(a.sent, msg) == wire.NoMatch {
			p.count.failures[CauseMismatch].Add(1)
			continue
		}
		c.removeLocked(now, a)
		a.answer = msg
		came = append(came, a)
	}
	if len(came) > 0 {
		c.answeredLocked(now)
	}
	c.checkIdleLocked(now)
	return came, len(c.queries) > 0
}

// deliver parses the answer to an attempt and delivers it.
func (p *connPool) deliver(a *attempt, msg *wire.Message, batch *wire.SendBatch) {
	var r reply
	switch err := msg.Parse(a.answer); {
	case len(a.answer) == wire.HeaderLen: // a bare header
		r.headerOnlyRcode = uint16(a.answer[3] & 0x0f)
	case err != nil:
		r.err = fmt.Errorf("%w: %w", errMalformed, err)
	case msg.Truncated():
		r.err = fmt.Errorf("%w: truncated over TCP", errMalformed)
	default:
		r.m = msg
	}
	if r.err != nil {
		p.count.failures[CauseMalformed].Add(1)
	}
	a.receiver.handleReply(a, r, batch)
}

// readBufferSize is how many bytes one read takes: a hundred answers or more. Each open connection holds such a
// buffer.
const readBufferSize = 16 << 10

// A tcpSocket makes system calls that package net has not. Only one goroutine may write.
type tcpSocket struct {
	raw      syscall.RawConn
	sendFunc func(fd uintptr) bool // send; made once, to avoid an allocation per call
	ackFunc  func(fd uintptr)      // quickAck; made once as well
	out      []byte                // what send is to write
	n        int                   // number of bytes that send wrote
	errno    syscall.Errno         // error of send; 0: none
}

func newTCPSocket(raw syscall.RawConn) *tcpSocket {
	s := &tcpSocket{raw: raw}
	s.sendFunc, s.ackFunc = s.send, quickAck
	return s
}

// ackNow makes the kernel acknowledge at once what has been read. By default it waits up to 40 ms for data to send
// along. A peer without TCP_NODELAY holds its next answers back until then. s may be nil.
func (s *tcpSocket) ackNow() {
	if s != nil {
		_ = s.raw.Control(s.ackFunc)
	}
}

func quickAck(fd uintptr) {
	// TCP_QUICKACK does not last, and a failure only costs a delay.
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
}

// write writes, without blocking, as much of out as the kernel accepts, and returns how much.
func (s *tcpSocket) write(out []byte) (int, error) {
	s.out = out
	err := s.raw.Write(s.sendFunc)
	s.out = nil
	switch {
	case err != nil:
		return 0, err
	case s.errno == syscall.EAGAIN || s.errno == syscall.EINTR:
		return 0, nil
	case s.errno != 0:
		return 0, s.errno
	}
	return s.n, nil
}

// send makes one system call. RawSyscall bypasses the scheduler: the call never blocks.
func (s *tcpSocket) send(fd uintptr) bool {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&s.out[0])), uintptr(len(s.out)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	s.n, s.errno = int(n), errno
	return true
}
