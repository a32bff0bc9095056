// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// TCPConfig is what a TCP server is made from. A zero value takes the default.
type TCPConfig struct {
	Addr     netip.AddrPort // what Listen binds
	FreeBind bool           // Listen binds Addr though no link of the machine has it yet, and it may go and come back; of Linux only
	Listener net.Listener   // given: used as it is in place of Addr, and closed by Run
	Handler  Handler        // required

	MaxSessions  int // sessions in all; default 1024
	MaxPerClient int // sessions of one address; default 128
	MaxPipeline  int // misses outstanding in one session, then it is read no more; default 128

	// MaxMemory is how many bytes the sessions may hold for clients that do not read their
	// answers or do not finish their queries, the kernel's buffers included; 0: any number.
	MaxMemory int64

	IdleTimeout  time.Duration // a session with nothing to do is closed after this; default 10 s
	FrameTimeout time.Duration // a frame that has begun must be whole by then; default 3 s
	WriteTimeout time.Duration // a client must take at least some bytes within it; default 3 s
	DrainTimeout time.Duration // longest wait at the end for answers that are due; default 5 s

	Log *slog.Logger // nil: silent
}

// TCP serves DNS over TCP on one address (RFC 7766).
//
// Each session has a goroutine that reads. It answers every query held in memory
// from one read with one write, and hands the others over. Their answers come on
// goroutines of the handler, in any order; they are put by, and one goroutine per
// session, there only while it has something to write, sends them.
type TCP struct {
	cfg         TCPConfig
	born        time.Time // what clock counts from
	listener    net.Listener
	table       sessionTable
	memory      sessionMemory
	workers     workerPool
	count       tcpCounters
	idleTimeout atomic.Int64   // ns
	tasks       sync.WaitGroup // the goroutines of the sessions, joined by Run
	handover    handover
	yielder     yielder
}

// NewTCP checks cfg. It opens nothing.
func NewTCP(cfg TCPConfig) (*TCP, error) {
	if cfg.Handler == nil {
		return nil, errors.New("a TCP server needs a handler")
	}
	if cfg.Listener == nil && !cfg.Addr.IsValid() {
		return nil, errors.New("a TCP server needs an address or a listener")
	}
	for _, field := range []struct {
		name  string
		value *int
		fill  int
	}{
		{"MaxSessions", &cfg.MaxSessions, 1024},
		{"MaxPerClient", &cfg.MaxPerClient, 128},
		{"MaxPipeline", &cfg.MaxPipeline, 128},
	} {
		if err := setDefault(field.name, field.value, field.fill); err != nil {
			return nil, err
		}
	}
	for _, field := range []struct {
		name  string
		value *time.Duration
		fill  time.Duration
	}{
		{"Idle", &cfg.IdleTimeout, 10 * time.Second},
		{"FrameTimeout", &cfg.FrameTimeout, 3 * time.Second},
		{"WriteTimeout", &cfg.WriteTimeout, 3 * time.Second},
		{"DrainTimeout", &cfg.DrainTimeout, 5 * time.Second},
	} {
		if err := setDefault(field.name, field.value, field.fill); err != nil {
			return nil, err
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	t := &TCP{cfg: cfg, born: time.Now(), listener: cfg.Listener, handover: newHandover()}
	t.table = newSessionTable(cfg.MaxSessions, cfg.MaxPerClient)
	t.workers.handler = cfg.Handler
	t.idleTimeout.Store(int64(cfg.IdleTimeout))
	t.memory.limit.Store(cfg.MaxMemory)
	return t, nil
}

// SetLimits changes MaxSessions, MaxPerClient, MaxHeld and Idle while the server runs.
// Sessions that are above a new limit stay; a session takes the new idle time
// after its next query.
func (t *TCP) SetLimits(sessions, perClient int, held int64, idle time.Duration) {
	t.table.setLimits(sessions, perClient)
	t.memory.limit.Store(held)
	t.idleTimeout.Store(int64(idle))
}

// idle is how long a session may have nothing to do.
func (t *TCP) idle() time.Duration { return time.Duration(t.idleTimeout.Load()) }

// Close gives up the socket of a server that does not run.
func (t *TCP) Close() {
	if t.listener != nil {
		_ = t.listener.Close()
		t.listener = t.cfg.Listener
	}
}

func setDefault[T int | time.Duration](name string, value *T, standard T) error {
	if *value < 0 {
		return fmt.Errorf("a TCP server cannot have a negative %s", name)
	}
	if *value == 0 {
		*value = standard
	}
	return nil
}

// Listen binds the address, unless a listener was given. It starts no goroutine,
// so that an address that cannot be had is known before anything runs. No other process
// may listen there, where the kernel lets that be asked for; one that does so later gets
// no session, see selectOwn. Sessions that an earlier agent still has do not matter.
func (t *TCP) Listen(ctx context.Context) error {
	if t.listener != nil {
		return nil
	}
	var refused error
	lc := net.ListenConfig{
		Control: controlFunc(func(fd int) error {
			if err := t.setOptions(fd); err != nil {
				return err
			}
			refused = attachSelector(fd, 1)
			return nil
		}),
		KeepAlive: -1, // sessions end by their own time-outs long before a probe would tell
	}
	lc.SetMultipathTCP(false) // whose sockets take a selector and do not use it
	ln, err := lc.Listen(ctx, network("tcp", t.cfg.Addr), t.cfg.Addr.String())
	if err != nil {
		return fmt.Errorf("listening on tcp %s: %w", t.cfg.Addr, unwrapOpError(err))
	}
	t.listener = ln
	warnNoSelector(t.cfg.Log, "tcp", t.Addr(), refused)
	return nil
}

// setOptions prepares the listening socket, and the sessions that inherit from it.
func (t *TCP) setOptions(fd int) error {
	limitSessionBuffers(fd, 2*t.cfg.WriteTimeout)
	if t.cfg.FreeBind {
		if err := setFreeBind(fd, t.cfg.Addr.Addr()); err != nil {
			return err
		}
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
}

// Addr is the address that is served, with the port the kernel chose if port 0
// was asked for. Before Listen it is the address of the configuration.
func (t *TCP) Addr() netip.AddrPort {
	if t.listener == nil {
		return t.cfg.Addr
	}
	return addrPort(t.listener.Addr())
}

// Run accepts sessions until ctx ends, and returns nil then. An error of accept is
// counted and waited out; only a listener closed by another ends Run with an error.
//
// In both cases Run drains: sessions read what has come by then and no more, those that
// were just opened what comes within 100 ms of that; it is answered, and after
// DrainTimeout at most they are closed. No goroutine is left behind.
func (t *TCP) Run(ctx context.Context) error {
	if t.listener == nil {
		return errors.New("serving tcp: Listen was not called")
	}
	t.yielder.poll.open()
	defer t.yielder.poll.close()
	accepting, stop := context.WithCancel(ctx)
	defer stop()
	defer close(t.handover.done)
	var closer sync.WaitGroup
	closer.Go(func() {
		select {
		case <-accepting.Done():
		case <-t.handover.requested:
		}
		_ = t.listener.Close()
	})
	err := t.accept(ctx)
	stop()
	closer.Wait()
	if t.handover.started() {
		close(t.handover.stopped)
		t.awaitSessions(ctx, t.handover.sessionTime)
	}
	t.drain()
	if err != nil && ctx.Err() == nil && !t.handover.started() {
		return fmt.Errorf("serving tcp %s: %w", t.Addr(), err)
	}
	return nil
}

// drain ends every session.
func (t *TCP) drain() {
	t.table.each((*session).stop)
	cut := make(chan struct{})
	limit := time.AfterFunc(t.cfg.DrainTimeout, func() {
		defer close(cut)
		t.table.each((*session).cut)
	})
	t.tasks.Wait()
	if !limit.Stop() {
		<-cut
	}
}

// clock returns now as nanoseconds since the server was made, from 1 on. Times
// before that, the zero time too, give less.
func (t *TCP) clock(now time.Time) int64 { return int64(now.Sub(t.born)) + 1 }

// addrPort returns addr with IPv4 addresses in their 4-byte form, or the zero
// value when addr is not of an IP network.
func addrPort(addr net.Addr) netip.AddrPort {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// Waits after an accept call that failed. The first is short because most such
// errors are of one connection; the last keeps a lasting one, no descriptor left,
// from taking a CPU.
const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
	// acceptWarnInterval sets the warnings apart: whoever opens connections could
	// else fill the log.
	acceptWarnInterval = 10 * time.Second
	// acceptCost is what a new session costs.
	acceptCost = 20 * time.Microsecond
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
			t.yielder.addWork(acceptCost)
			t.yielder.yield()
			continue
		case errors.Is(err, net.ErrClosed):
			return err
		}
		t.count.acceptErrors.Add(1)
		if now := time.Now(); now.Sub(warned) >= acceptWarnInterval {
			warned = now
			t.cfg.Log.WarnContext(ctx, "cannot accept tcp sessions", "addr", t.Addr(), "err", err)
		}
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			if t.shed(netip.Addr{}, false) { // its descriptor serves the next client
				pause = 0
			}
		}
		pause = min(max(2*pause, minAcceptPause), maxAcceptPause)
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
	if (refused == refusedFull || own && refused != refusedNone) && t.shed(client, own) {
		refused = t.table.add(s)
	}
	switch refused {
	case refusedNone:
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
	s.out.closeOrAbort()
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

// TCPStats are the counts of a TCP server. All but Open only grow.
type TCPStats struct {
	Open     int    // sessions at this moment
	Accepted uint64 // sessions admitted
	Queries  uint64 // whole frames taken from clients

	RefusedSessions  uint64 // connections closed at once: MaxSessions reached, and no session had to go for them
	RefusedPerClient uint64 // connections closed at once: MaxPerClient reached
	ShedIdle         uint64 // sessions closed in favour of new ones, idle ones first
	AcceptErrors     uint64 // accept calls that failed, as with no file descriptor left

	IdleClosed    uint64 // sessions that said nothing for Idle
	SlowClosed    uint64 // sessions with a frame unfinished after FrameTimeout
	ShortFrames   uint64 // sessions ended by a frame shorter than a DNS header
	WriteTimeouts uint64 // sessions whose client took no byte for WriteTimeout
	Overflows     uint64 // sessions whose client left too many bytes of answers unread
	ShedMemory    uint64 // sessions closed because all together held MaxHeld bytes
	Oversized     uint64 // answers too long for a frame, not sent
	Stalls        uint64 // times a session stopped reading because MaxPipeline misses were outstanding
	DrainCut      uint64 // sessions not finished at DrainTimeout
	Panics        uint64 // sessions ended by a panic in the handler
}

// tcpCounters is the live form of TCPStats.
type tcpCounters struct {
	accepted, queries                                         atomic.Uint64
	refusedSessions, refusedPerClient, shedIdle, acceptErrors atomic.Uint64
	idleClosed, slowClosed, shortFrames, writeTimeouts        atomic.Uint64
	overflows, oversized, stalls, drainCut, panics            atomic.Uint64
	shedMemory                                                atomic.Uint64
}

// Stats returns the counts so far. It may be called at any time from any goroutine.
func (t *TCP) Stats() TCPStats {
	c := &t.count
	return TCPStats{
		Open:             t.table.count(),
		Accepted:         c.accepted.Load(),
		Queries:          c.queries.Load(),
		RefusedSessions:  c.refusedSessions.Load(),
		RefusedPerClient: c.refusedPerClient.Load(),
		ShedIdle:         c.shedIdle.Load(),
		AcceptErrors:     c.acceptErrors.Load(),
		IdleClosed:       c.idleClosed.Load(),
		SlowClosed:       c.slowClosed.Load(),
		ShortFrames:      c.shortFrames.Load(),
		WriteTimeouts:    c.writeTimeouts.Load(),
		Overflows:        c.overflows.Load(),
		ShedMemory:       c.shedMemory.Load(),
		Oversized:        c.oversized.Load(),
		Stalls:           c.stalls.Load(),
		DrainCut:         c.drainCut.Load(),
		Panics:           c.panics.Load(),
	}
}
