// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// A handover is the state of passing a server's sockets to another process, which reads them from
// then on. Queries left in the sockets are for that process.
type handover struct {
	once        *sync.Once
	requested   chan struct{} // closed by HandOver
	stopped     chan struct{} // closed by Run once it reads no more from the sockets
	done        chan struct{} // closed by Run when it returns
	sessionTime time.Duration // how long open sessions continue; written before requested is closed
}

func newHandover() handover {
	return handover{once: new(sync.Once), requested: make(chan struct{}), stopped: make(chan struct{}), done: make(chan struct{})}
}

// started reports whether HandOver was called.
func (h *handover) started() bool {
	select {
	case <-h.requested:
		return true
	default:
		return false
	}
}

// request asks Run to read no more. It returns once Run has stopped, or ctx ends.
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

// Adopt makes the server read the sockets of files instead of opening its own. Another process has
// opened them and may still read them. The server starts one reader for each, whatever Readers
// says, because queries in an unread socket would be lost. Adopt closes the files, also after an
// error, and then keeps no socket. The sockets must be the first of their address, as those of
// Listen are.
func (u *UDP) Adopt(files []*os.File) (err error) {
	u.clear() // of the sockets of an earlier attempt that failed
	for _, f := range files {
		if err == nil {
			err = u.adopt(f)
		}
		_ = f.Close()
	}
	if err == nil && len(u.sockets()) == 0 {
		err = errors.New("no sockets received")
	}
	if err != nil {
		u.Close()
		u.clear()
		return fmt.Errorf("adopting udp sockets of %s: %w", u.cfg.Addr, err)
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
		return fmt.Errorf("unexpected socket %s %s", opened.LocalAddr().Network(), opened.LocalAddr())
	}
	s := u.newSocket(u.cfg.Addr)
	if err := s.setConn(conn); err != nil {
		return err
	}
	u.add(s)
	return control(s.raw, s.setOptions)
}

// control calls set with the descriptor of raw.
func control(raw syscall.RawConn, set func(fd int) error) error {
	return controlFunc(set)("", "", raw)
}

// RawConns returns the sockets, to be passed to another process.
func (u *UDP) RawConns() []syscall.RawConn {
	sockets := u.sockets()
	list := make([]syscall.RawConn, len(sockets))
	for i, s := range sockets {
		list[i] = s.raw
	}
	return list
}

// MissingReaders returns how many more readers the configuration asks for than there are sockets.
func (u *UDP) MissingReaders() int { return max(u.cfg.Readers-len(u.sockets()), 0) }

// AddReaders opens the missing sockets and makes Run read them. It may only be called while Run
// serves and no handover is in progress: queries in a socket without a reader are lost. No socket
// of another process may share the address, or the new sockets would not directly follow the first.
func (u *UDP) AddReaders(ctx context.Context) error {
	for range u.MissingReaders() {
		s, err := u.open(ctx, u.Addr(), false)
		if err != nil {
			return fmt.Errorf("opening more sockets of udp %s: %w", u.cfg.Addr, err)
		}
		u.add(s)
		select {
		case u.added <- s:
			warnNoSelector(u.cfg.Log, "udp", u.Addr(), u.AttachSelector())
		case <-u.handover.done:
			return s.conn.Close()
		}
	}
	return nil
}

// HandOver leaves the sockets to another process that already reads them. Run stops reading, sends
// the outstanding replies and returns. HandOver returns when reading has stopped, or ctx ends.
func (u *UDP) HandOver(ctx context.Context) { u.handover.request(ctx, 0) }

// Adopt makes the server accept sessions from the listening socket of a file, which another process
// has opened and may still use. It closes the file, also after an error.
func (t *TCP) Adopt(f *os.File) error {
	defer func() { _ = f.Close() }()
	ln, err := net.FileListener(f)
	if err == nil {
		if err = t.adopt(ln); err != nil {
			_ = ln.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("adopting tcp socket of %s: %w", t.cfg.Addr, unwrapOpError(err))
	}
	t.listener = ln
	warnNoSelector(t.cfg.Log, "tcp", t.Addr(), t.AttachSelector())
	return nil
}

func (t *TCP) adopt(ln net.Listener) error {
	own, ok := ln.(*net.TCPListener)
	if !ok {
		return fmt.Errorf("unexpected %s socket", ln.Addr().Network())
	}
	raw, err := own.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, t.setOptions)
}

// RawConn returns the listening socket, to be passed to another process; nil if there is none.
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

// HandOver leaves the listening socket to another process that already accepts from it. Run stops
// accepting and serves its open sessions until they end, its context ends or stay is over; then it
// drains and returns. HandOver returns when accepting has stopped, or ctx ends.
func (t *TCP) HandOver(ctx context.Context, stay time.Duration) { t.handover.request(ctx, stay) }
