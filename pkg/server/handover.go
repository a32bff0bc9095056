// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A handing is what a server knows of its sockets' being given to another process, which
// reads them from then on. What they hold is left to it.
type handover struct {
	once        *sync.Once
	requested   chan struct{} // closed by Give
	stopped     chan struct{} // closed by Run once nothing more is taken from the sockets
	done        chan struct{} // closed by Run at its end
	sessionTime time.Duration // how long open sessions go on; written before asked is closed
}

func newHandover() handover {
	return handover{once: new(sync.Once), requested: make(chan struct{}), stopped: make(chan struct{}), done: make(chan struct{})}
}

// started reports whether the sockets were given.
func (h *handover) started() bool {
	select {
	case <-h.requested:
		return true
	default:
		return false
	}
}

// request asks Run to take no more, and returns once it does not, or ctx ends.
func (h *handover) request(ctx context.Context, stay time.Duration) {
	h.once.Do(func() {
		h.sessionTime = stay
		close(h.requested)
	})
	select {
	case <-h.stopped:
	case <-h.done:
	case <-ctx.Done():
	}
}

// Adopt has the server read the sockets of files, which another process has opened and
// may still read, in place of those that Listen would open. The server has a reader for
// each of them, whatever the configuration says: what one that nobody reads holds would
// be lost. The files are closed, also after an error; then no socket stays. The sockets
// must be the first of their address, as those of Listen are.
func (u *UDP) Adopt(files []*os.File) (err error) {
	u.sockets.clear() // of another try
	for _, f := range files {
		if err == nil {
			err = u.adopt(f)
		}
		_ = f.Close()
	}
	if err == nil && len(u.sockets.all()) == 0 {
		err = errors.New("no socket was given")
	}
	if err != nil {
		u.Close()
		u.sockets.clear()
		return fmt.Errorf("taking over udp %s: %w", u.cfg.Addr, err)
	}
	warnNoSelector(u.cfg.Log, "udp", u.Addr(), u.AttachSelector())
	return nil
}

func (u *UDP) adopt(f *os.File) error {
	opened, err := net.FilePacketConn(f)
	if err != nil {
		return unwrapOpError(err)
	}
	conn, ok := opened.(*net.UDPConn)
	if !ok || conn.LocalAddr().(*net.UDPAddr).Port != int(u.cfg.Addr.Port()) && u.cfg.Addr.Port() != 0 {
		_ = opened.Close()
		return fmt.Errorf("%s %s is another socket", opened.LocalAddr().Network(), opened.LocalAddr())
	}
	s := u.newSocket(u.cfg.Addr)
	if err := s.setConn(conn); err != nil {
		return err
	}
	u.sockets.add(s)
	return control(s.raw, s.setOptions)
}

// control calls set with the descriptor.
func control(raw syscall.RawConn, set func(fd int) error) error {
	return controlFunc(set)("", "", raw)
}

// Raw are the sockets, to be given to another process.
func (u *UDP) RawConns() []syscall.RawConn {
	sockets := u.sockets.all()
	list := make([]syscall.RawConn, len(sockets))
	for i, s := range sockets {
		list[i] = s.raw
	}
	return list
}

// MissingReaders is how many sockets the configuration asks for beyond those that there are.
func (u *UDP) MissingReaders() int { return max(u.cfg.Readers-len(u.sockets.all()), 0) }

// AddReaders opens the sockets that the configuration asks for beyond those that were adopted,
// and has Run read them. It may only be called while Run serves and nobody is given the
// sockets: what comes to a socket that nobody reads is lost. No socket of another process
// may share the address: the new ones would no longer follow the first.
func (u *UDP) AddReaders(ctx context.Context) error {
	for range u.MissingReaders() {
		s, err := u.open(ctx, u.Addr(), false)
		if err != nil {
			return fmt.Errorf("opening more sockets of udp %s: %w", u.cfg.Addr, err)
		}
		u.sockets.add(s)
		select {
		case u.added <- s:
			warnNoSelector(u.cfg.Log, "udp", u.Addr(), u.AttachSelector())
		case <-u.handover.done:
			return s.conn.Close()
		}
	}
	return nil
}

// A socketList is the sockets of a server. More may be added while they are read.
type socketList struct {
	mu   sync.Mutex                   // taken by who changes the list
	list atomic.Pointer[[]*udpSocket] // never changed, but replaced
}

// all may be called at any time. The list is not the caller's to change.
func (l *socketList) all() []*udpSocket {
	if list := l.list.Load(); list != nil {
		return *list
	}
	return nil
}

func (l *socketList) add(s *udpSocket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := append(slices.Clone(l.all()), s)
	l.list.Store(&list)
}

func (l *socketList) clear() { l.list.Store(nil) }

// HandOver leaves the sockets to another process that reads them already: Run takes nothing
// more from them, sends the replies that are due and returns. Give returns when nothing
// more is taken, or ctx ends.
func (u *UDP) HandOver(ctx context.Context) { u.handover.request(ctx, 0) }

// Adopt has the server accept sessions from the listening socket of a file, which another
// process has opened and may still use. The file is closed, also after an error.
func (t *TCP) Adopt(f *os.File) error {
	defer func() { _ = f.Close() }()
	ln, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("taking over tcp %s: %w", t.cfg.Addr, unwrapOpError(err))
	}
	own, ok := ln.(*net.TCPListener)
	if !ok {
		_ = ln.Close()
		return fmt.Errorf("taking over tcp %s: %s is another socket", t.cfg.Addr, ln.Addr().Network())
	}
	raw, err := own.SyscallConn()
	if err == nil {
		err = control(raw, t.setOptions)
	}
	if err != nil {
		_ = ln.Close()
		return fmt.Errorf("taking over tcp %s: %w", t.cfg.Addr, err)
	}
	t.listener = ln
	warnNoSelector(t.cfg.Log, "tcp", t.Addr(), t.AttachSelector())
	return nil
}

// RawConn is the listening socket, to be given to another process; nil if it has none.
func (t *TCP) RawConn() syscall.RawConn {
	ln, ok := t.listener.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := ln.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// HandOver leaves the listening socket to another process that accepts from it already: Run
// accepts no more, goes on with the sessions it has until they end by themselves, its
// context ends or the time stay is over, and returns as it would at the end of its
// context. Give returns when nothing more is accepted, or ctx ends.
func (t *TCP) HandOver(ctx context.Context, stay time.Duration) { t.handover.request(ctx, stay) }

// awaitSessions waits until there is no session any more, ctx ends, or the time is over.
func (t *TCP) awaitSessions(ctx context.Context, limit time.Duration) {
	const look = 10 * time.Millisecond // an upgrade is rare, and this is short beside it
	ended := time.NewTimer(limit)
	defer ended.Stop()
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for t.table.count() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-ended.C:
			return
		case <-ticker.C:
		}
	}
}
