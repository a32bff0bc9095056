// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"crypto/tls"
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
	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/pkg/listen"
	"github.com/nodecache/node-cache/pkg/retry"
)

// TCPConfig configures a TCP server. Zero values mean the default.
type TCPConfig struct {
	Addr     netip.AddrPort // the address that Listen binds
	FreeBind bool           // Listen may bind an address that no link has yet, and that may come and go; Linux only
	Listener net.Listener   // used instead of Addr if set, and closed by Run
	TLS      *tls.Config    // of DNS over TLS (RFC 7858); nil: plain TCP
	Handler  Handler        // required
	Stateful Stateful       // nil: the Handler gets messages of opcode 6

	MaxSessions  int // sessions in all; default 1024
	MaxPerClient int // sessions of one address; default 128
	MaxPipeline  int // outstanding misses of one session, above which it is not read; default 128

	// MaxMemory bounds the bytes held for clients that do not read their answers or do not
	// finish their queries, including kernel buffers; 0: no limit.
	MaxMemory int64

	IdleTimeout  time.Duration // a session with nothing to do is closed after this; default 10 s
	FrameTimeout time.Duration // time to receive a whole frame; default 3 s
	WriteTimeout time.Duration // time in which a client must read some bytes; default 3 s
	DrainTimeout time.Duration // longest wait at shutdown for outstanding answers; default 5 s

	Log *slog.Logger // nil: silent
}

// TCP serves DNS over TCP (RFC 7766), or over TLS, on one address.
//
// Each session has a goroutine that reads. It answers all queries of one read that are in memory
// with one write, and passes the others to Resolve. Their answers come from goroutines of the
// handler, in any order. They are queued, and one writer goroutine per session sends them; it
// exists only while there is something to write.
type TCP struct {
	cfg         TCPConfig
	born        time.Time // what clock counts from
	listener    net.Listener
	table       sessionTable
	memory      atomic.Int64   // bytes of all sessions, see memoryUse
	memoryLimit atomic.Int64   // limit of memory in bytes; 0: no limit
	shedding    sync.Mutex     // serializes shedMemory: a call that finds it locked does nothing
	workersMu   sync.Mutex     // guards workers
	workers     []*batchWorker // idle workers; the one used last is taken next, because it is in the CPU cache
	handshakes  *rate.Limiter  // bounds the handshakes of TLS
	statsMu     sync.Mutex     // guards stats; no other lock is taken while it is held
	stats       TCPStats
	idleTimeout atomic.Int64   // current IdleTimeout in ns
	tasks       sync.WaitGroup // goroutines of the sessions, joined by Run
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
	cfg.MaxSessions = cmp.Or(cfg.MaxSessions, 1024)
	cfg.MaxPerClient = cmp.Or(cfg.MaxPerClient, 128)
	cfg.MaxPipeline = cmp.Or(cfg.MaxPipeline, 128)
	cfg.IdleTimeout = cmp.Or(cfg.IdleTimeout, 10*time.Second)
	cfg.FrameTimeout = cmp.Or(cfg.FrameTimeout, 3*time.Second)
	cfg.WriteTimeout = cmp.Or(cfg.WriteTimeout, 3*time.Second)
	cfg.DrainTimeout = cmp.Or(cfg.DrainTimeout, 5*time.Second)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	t := &TCP{cfg: cfg, born: time.Now(), listener: cfg.Listener, handover: newHandover(), handshakes: rate.NewLimiter(handshakeRate, handshakeRate)}
	if cfg.TLS != nil {
		t.cfg.TLS = cfg.TLS.Clone()
		t.cfg.TLS.NextProtos = []string{"dot"} // RFC 7858 section 3.1 names no protocol; clients that do name this one
		t.cfg.TLS.GetConfigForClient = t.admitHandshake
	}
	t.table = sessionTable{limit: cfg.MaxSessions, perClient: cfg.MaxPerClient, clients: map[netip.Addr][]*session{}}
	t.idleTimeout.Store(int64(cfg.IdleTimeout))
	t.memoryLimit.Store(cfg.MaxMemory)
	return t, nil
}

// admitHandshake delays a handshake while there are more than handshakeRate. The configuration stays: it returns none.
func (t *TCP) admitHandshake(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	if err := t.handshakes.Wait(hello.Context()); err != nil {
		return nil, err
	}
	t.yielder.addWork(handshakeCost)
	t.yielder.yield()
	return nil, nil //nolint:nilnil // as GetConfigForClient has it
}

// idle returns the current idle timeout.
func (t *TCP) idle() time.Duration { return time.Duration(t.idleTimeout.Load()) }

// Close closes the socket of a server that does not run.
func (t *TCP) Close() {
	if t.listener != nil {
		_ = t.listener.Close()
		t.listener = t.cfg.Listener
	}
}

// Listen binds the address, unless a listener was given. It starts no goroutine, so a bind error is
// known before anything runs. No other process may listen on the address, as far as the kernel can
// check that. A process that listens later gets no connection, see attachSelector. Open sessions of
// an earlier agent do not matter.
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
		KeepAlive: -1, // sessions time out long before a keepalive probe
	}
	lc.SetMultipathTCP(false) // MPTCP sockets accept a selector and ignore it
	ln, err := lc.Listen(ctx, network("tcp", t.cfg.Addr), t.cfg.Addr.String())
	if err != nil {
		return fmt.Errorf("listening on tcp %s: %w", t.cfg.Addr, unwrapOpError(err))
	}
	t.listener = ln
	warnNoSelector(t.cfg.Log, "tcp", t.Addr(), refused)
	return nil
}

// setOptions sets the options of the listening socket, which its sessions inherit.
func (t *TCP) setOptions(fd int) error {
	limitSessionBuffers(fd, 2*t.cfg.WriteTimeout)
	if t.cfg.FreeBind {
		if err := listen.FreeBind(fd, t.cfg.Addr.Addr()); err != nil {
			return err
		}
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
}

// Addr returns the served address, with the port that the kernel chose for port 0. Before Listen it
// is the configured address.
func (t *TCP) Addr() netip.AddrPort {
	if t.listener == nil {
		return t.cfg.Addr
	}
	return addrPort(t.listener.Addr())
}

// Run accepts sessions until ctx ends or HandOver stops it, and then returns nil. It counts accept errors
// and retries after a pause. It returns an error only if the listener was closed from outside.
//
// In all cases Run drains at the end: a session reads only what has arrived by then. A session that was
// just opened also reads what arrives within 100 ms of its start. Run answers these queries and closes the
// sessions, after DrainTimeout at the latest. It leaves no goroutine behind.
func (t *TCP) Run(ctx context.Context) error {
	if t.listener == nil {
		return errors.New("serving tcp: Listen was not called")
	}
	t.yielder.open()
	defer t.yielder.close()
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
	if t.cfg.Stateful != nil {
		t.cfg.Stateful.EndAll() // to a successor, or another server
	}
	if t.handover.started() {
		close(t.handover.stopped)
		await(time.Now().Add(t.handover.sessionTime), func() bool { return t.table.count() == 0 || ctx.Err() != nil })
	}
	t.drain()
	if err != nil && ctx.Err() == nil && !t.handover.started() {
		return fmt.Errorf("serving tcp %s: %w", t.Addr(), err)
	}
	return nil
}

// drain ends every session and waits for them. After DrainTimeout it cuts those that are left.
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

// clock returns now as nanoseconds since the server was created, starting at 1. Earlier times, such
// as the zero time, give less.
func (t *TCP) clock(now time.Time) int64 { return int64(now.Sub(t.born)) + 1 }

// addrPort returns addr with IPv4 addresses in 4-byte form, or the zero value for other networks.
func addrPort(addr net.Addr) netip.AddrPort {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// Pauses after a failed accept. The first is short because most errors concern one
// connection. The last prevents a lasting error, such as no free descriptor, from
// using a CPU.
const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
	// acceptWarnInterval is the least time between warnings, so that clients cannot fill the log.
	acceptWarnInterval = 10 * time.Second
	// acceptCost is the CPU time of a new session, as counted by the yielder.
	acceptCost = 20 * time.Microsecond
	// handshakeCost is that of a handshake of TLS with a key of RSA, the slowest kind.
	handshakeCost = time.Millisecond
	// handshakeRate bounds the handshakes of TLS in a second, so that clients that do nothing else cost at most half a CPU. A client waits
	// for those before it: MaxSessions of them take 2 s.
	handshakeRate = 500
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
		t.count(&t.stats.AcceptErrors, 1)
		if now := time.Now(); now.Sub(warned) >= acceptWarnInterval {
			warned = now
			t.cfg.Log.WarnContext(ctx, "tcp accept failed", "addr", t.Addr(), "err", err)
		}
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			if t.shed(netip.Addr{}, false) { // frees a descriptor for the next client
				pause = 0
			}
		}
		pause = min(max(2*pause, minAcceptPause), maxAcceptPause)
		if retry.Sleep(ctx, pause) != nil {
			return nil //nolint:nilerr // it was asked to end
		}
	}
}

// admit starts a session for conn, or closes conn if there is no place. A connection from the
// served address itself always gets a place: this process checks itself that way.
func (t *TCP) admit(ctx context.Context, conn net.Conn) {
	s := newSession(t, conn)
	client, own := s.peer.Addr.Addr(), s.peer.Addr.Addr() == addrPort(conn.LocalAddr()).Addr()
	admitted, full := t.table.add(s)
	if !admitted && (full || own) && t.shed(client, own) {
		admitted, full = t.table.add(s)
	}
	switch {
	case admitted:
		t.count(&t.stats.Accepted, 1)
		t.tasks.Go(func() { s.run(ctx) })
		return
	case full:
		t.count(&t.stats.RefusedSessions, 1)
	default:
		t.count(&t.stats.RefusedPerClient, 1)
	}
	_ = conn.Close()
}

// shed closes a session to make room for one of client, and reports whether it found one.
func (t *TCP) shed(client netip.Addr, own bool) bool {
	s := t.table.evict(client, own, t.clock(time.Now()))
	if s == nil {
		return false
	}
	t.count(&t.stats.ShedIdle, 1)
	s.out.closeOrAbort()
	return true
}

// getWorker returns an unused worker with an empty buffer.
func (t *TCP) getWorker() *batchWorker {
	t.workersMu.Lock()
	defer t.workersMu.Unlock()
	if last := len(t.workers) - 1; last >= 0 {
		k := t.workers[last]
		t.workers = t.workers[:last]
		return k
	}
	return &batchWorker{worker: t.cfg.Handler.NewWorker(), out: make([]byte, 0, gatherBuffer)}
}

// putWorker takes a worker back. A worker that panicked must not come back.
func (t *TCP) putWorker(k *batchWorker) {
	t.workersMu.Lock()
	defer t.workersMu.Unlock()
	if k.out = k.out[:0]; len(t.workers) < maxIdleWorkers && cap(k.out) <= 2*gatherBuffer {
		t.workers = append(t.workers, k)
	}
}

// TCPStats are the counters of a TCP server. All but Open only grow.
type TCPStats struct {
	Open     int    // open sessions
	Accepted uint64 // sessions admitted
	Queries  uint64 // whole frames received

	RefusedSessions  uint64 // connections closed at once: MaxSessions reached and no session could be shed
	RefusedPerClient uint64 // connections closed at once: MaxPerClient reached
	ShedIdle         uint64 // sessions closed to admit new ones, idle ones first
	AcceptErrors     uint64 // failed accept calls, for example without free file descriptors

	IdleClosed    uint64 // sessions without a query for IdleTimeout
	SlowClosed    uint64 // sessions with an incomplete frame after FrameTimeout
	Handshakes    uint64 // sessions whose handshake of TLS failed, or was not done after FrameTimeout
	ShortFrames   uint64 // sessions ended by a frame shorter than a DNS header
	WriteTimeouts uint64 // sessions whose client read no byte for WriteTimeout
	Overflows     uint64 // sessions whose client left too many bytes of answers unread
	ShedMemory    uint64 // sessions closed because all together held MaxMemory bytes
	Oversized     uint64 // answers too long for a frame, not sent
	Stalls        uint64 // times a session stopped reading because MaxPipeline misses were outstanding
	DrainCut      uint64 // sessions not finished at DrainTimeout
	Panics        uint64 // sessions ended by a panic in the handler
}

// count adds n to a counter of t.stats.
func (t *TCP) count(counter *uint64, n int) {
	t.statsMu.Lock()
	defer t.statsMu.Unlock()
	*counter += uint64(n)
}

// Stats returns the counters. It may be called at any time from any goroutine.
func (t *TCP) Stats() TCPStats {
	open := t.table.count()
	t.statsMu.Lock()
	defer t.statsMu.Unlock()
	stats := t.stats
	stats.Open = open
	return stats
}
