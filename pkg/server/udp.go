// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	// maxQuery is the largest query taken over UDP. An EDNS query with every
	// option that a stub sends has some 400 octets.
	maxQuery = 2048
	// maxUDPReply is the largest reply that leaves over UDP, whatever is configured.
	maxUDPReply = 4096
	// receiveBuffer is asked of the kernel for each socket, unless UDPConfig says
	// otherwise: some 10 ms of queries at a million a second; the kernel may give
	// less.
	receiveBuffer = 4 << 20
)

// UDPConfig is what a UDP server is made from.
type UDPConfig struct {
	Addr    netip.AddrPort
	Handler Handler
	Readers int           // sockets, each with a reader; 0: one per CPU Go may use
	Drain   time.Duration // longest wait at the end for replies that are due; 0: 5 s
	// ReceiveBuffer is how many bytes of queries each socket may hold before they are
	// read, at most 4 MiB, which is what 0 stands for. The kernel's own of them count
	// too, and it takes twice that: all of it is memory of this process's container.
	ReceiveBuffer int
	// FreeBind lets Listen bind an address that no link of the machine has yet, and
	// that may go and come back while the server runs. Of Linux only.
	FreeBind bool
	// Portable takes the reader that needs no recvmmsg, which is otherwise for
	// systems without it.
	Portable bool
	Log      *slog.Logger // nil: silent
}

// UDP serves one UDP address through several sockets that share its port.
type UDP struct {
	cfg     UDPConfig
	born    time.Time // what clock counts from
	sockets socketList
	more    chan *udpSocket // of Widen, for Run

	selecting sync.Mutex // taken by SelectOwn

	stats udpCounters
	due   atomic.Int64 // replies that Resolve still owes
	given handing
}

// A udpSocket is one of the sockets, with what its reader keeps between batches.
type udpSocket struct {
	server   *UDP
	conn     *net.UDPConn
	raw      syscall.RawConn // of conn
	wildcard bool            // replies must name the address they leave from
	v6       bool
	worker   Worker
	busy     busySince
	peer     wire.Peer    // of the query in hand
	handing  wire.Replier // while Resolve runs: what it was given
	out      outgoing     // replies of the slow path, gathered
}

// NewUDP checks cfg. It opens nothing.
func NewUDP(cfg UDPConfig) (*UDP, error) {
	if !cfg.Addr.IsValid() || cfg.Handler == nil {
		return nil, errors.New("a UDP server needs an address and a handler")
	}
	if cfg.Readers <= 0 {
		cfg.Readers = runtime.GOMAXPROCS(0)
	}
	if cfg.Drain <= 0 {
		cfg.Drain = 5 * time.Second
	}
	if cfg.ReceiveBuffer <= 0 || cfg.ReceiveBuffer > receiveBuffer {
		cfg.ReceiveBuffer = receiveBuffer
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &UDP{cfg: cfg, born: time.Now(), more: make(chan *udpSocket), given: newHanding()}, nil
}

// Listen opens the sockets. If one cannot be opened none stays. The address must be free:
// other sockets with SO_REUSEPORT may share it later, but get nothing, see selectOwn.
func (u *UDP) Listen(ctx context.Context) error {
	u.sockets.clear() // of another try
	s, err := u.open(ctx, u.cfg.Addr, true)
	if errors.Is(err, errNoSelector) {
		if err = u.probe(ctx); err == nil {
			s, err = u.open(ctx, u.cfg.Addr, false)
		}
	}
	for err == nil {
		u.sockets.add(s)
		if u.Missing() == 0 {
			warnUnselected(u.cfg.Log, "udp", u.Addr(), u.SelectOwn())
			return nil
		}
		s, err = u.open(ctx, u.Addr(), false) // at the port the kernel chose, if it was asked to
	}
	u.Close()
	return fmt.Errorf("listening on udp %s: %w", u.cfg.Addr, err)
}

// probe binds the address without sharing it, and lets it go: two agents that share a
// port would each get half of the queries.
func (u *UDP) probe(ctx context.Context) error {
	lc := net.ListenConfig{Control: controlled(func(fd int) error {
		if u.cfg.FreeBind {
			return bindFreely(fd, u.cfg.Addr.Addr())
		}
		return nil
	})}
	conn, err := lc.ListenPacket(ctx, network("udp", u.cfg.Addr), u.cfg.Addr.String())
	if err != nil {
		return plain(err)
	}
	return conn.Close()
}

// controlled makes a net.ListenConfig's Control of what sets options of a socket.
func controlled(set func(fd int) error) func(_, _ string, raw syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var err error
		if e := raw.Control(func(fd uintptr) { err = set(int(fd)) }); e != nil {
			return e
		}
		return err
	}
}

// plain takes off what the net package adds to an error, the address once more.
func plain(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	return err
}

// open binds one more socket; one that is to be alone, only if no other has the address.
func (u *UDP) open(ctx context.Context, addr netip.AddrPort, alone bool) (*udpSocket, error) {
	s := u.newSocket(addr)
	lc := net.ListenConfig{Control: controlled(func(fd int) error {
		if err := s.setOptions(fd); err != nil || !alone {
			return err
		}
		if err := selectOwn(fd, 1); err != nil {
			return errors.Join(errNoSelector, err)
		}
		return nil
	})}
	conn, err := lc.ListenPacket(ctx, network("udp", addr), addr.String())
	if err != nil {
		return nil, plain(err)
	}
	return s, s.use(conn.(*net.UDPConn))
}

func (u *UDP) newSocket(addr netip.AddrPort) *udpSocket {
	return &udpSocket{server: u, wildcard: addr.Addr().IsUnspecified(), v6: addr.Addr().Is6()}
}

// use has s read from conn, which is closed after an error.
func (s *udpSocket) use(conn *net.UDPConn) (err error) {
	s.conn = conn
	if s.raw, err = s.conn.SyscallConn(); err != nil {
		_ = conn.Close()
		return err
	}
	s.worker = s.server.cfg.Handler.NewWorker()
	return nil
}

// network names the family, so that 0.0.0.0 is not taken for both.
func network(base string, addr netip.AddrPort) string {
	switch {
	case addr.Addr().Is4():
		return base + "4"
	case addr.Addr().IsUnspecified():
		return base // [::] serves IPv4 too
	default:
		return base + "6"
	}
}

func (s *udpSocket) setOptions(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return err
	}
	if s.server.cfg.FreeBind {
		if err := bindFreely(fd, s.server.cfg.Addr.Addr()); err != nil {
			return err
		}
	}
	growBuffer(fd, s.server.cfg.ReceiveBuffer)
	ignorePathMTU(fd)
	if !s.wildcard {
		return nil
	}
	if s.v6 { // covers IPv4 clients of [::] too, as mapped addresses
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
}

// Addr is the address that is served, with the port the kernel chose if Listen
// was given port 0.
func (u *UDP) Addr() netip.AddrPort {
	return u.sockets.all()[0].conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// Run serves until ctx ends, and on until no reply is due any more: while one is,
// its socket must stay open, and what arrives there would else be met with
// silence. Then what the sockets hold is still answered, and they are closed. All
// that takes no longer than the drain time and an answer from memory.
func (u *UDP) Run(ctx context.Context) error {
	defer u.Close()
	base, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReading()
	defer close(u.given.done)
	g, reading := errgroup.WithContext(base) // one reader's failure ends the others
	defer context.AfterFunc(reading, u.wake)()
	for _, s := range u.sockets.all() {
		g.Go(func() error { return s.run(reading) })
	}
	failed := make(chan error, 1)
	go func() { failed <- g.Wait() }()
	var err error
	for serving := true; serving; {
		select {
		case s := <-u.more:
			g.Go(func() error { return s.run(reading) })
			if reading.Err() != nil { // the others were told to stop before this one was among them
				u.wake()
			}
			continue
		case <-ctx.Done():
			limit := time.Now().Add(u.cfg.Drain)
			u.awaitReplies(limit)
			stopReading()
			err = <-failed
			u.awaitReplies(limit)
		case <-u.given.asked:
			stopReading()
			err = <-failed
			close(u.given.quiet)
			u.awaitReplies(time.Now().Add(u.cfg.Drain))
		case err = <-failed:
		}
		serving = false
	}
	if err != nil {
		return fmt.Errorf("serving udp %s: %w", u.cfg.Addr, err)
	}
	return nil
}

// wake makes the readers look whether they are to stop.
func (u *UDP) wake() {
	for _, s := range u.sockets.all() {
		_ = s.conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// awaitReplies waits until no reply is due, at most until limit.
func (u *UDP) awaitReplies(limit time.Time) {
	const look = 2 * time.Millisecond // a stop is rare, and this is short beside it
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for u.due.Load() > 0 && time.Now().Before(limit) {
		<-ticker.C
	}
}

// Close gives up the sockets of a server that does not run.
func (u *UDP) Close() {
	for _, s := range u.sockets.all() {
		_ = s.conn.Close()
	}
}

// run reads until ctx ends.
func (s *udpSocket) run(ctx context.Context) error {
	if s.server.cfg.Portable {
		return s.readEach(ctx)
	}
	return s.readBatches(ctx)
}

// recovered, deferred around a packet's handling, keeps a defect that one packet
// shows from ending the service of a node: the packet gets no answer, and the
// reader goes on with a new worker.
func (s *udpSocket) recovered(ctx context.Context) {
	defect := recover()
	if defect == nil {
		return
	}
	s.server.stats.panics.Add(1)
	logPanic(ctx, s.server.cfg.Log, "udp", defect)
	if s.handing != nil {
		s.handing.Reply(nil, new(wire.SendBatch)) // of no effect if it was replied to
		s.handing = nil
	}
	broken := s.worker
	s.worker = s.server.cfg.Handler.NewWorker()
	flushBroken(broken)
}

// flushLane ends a batch.
func (s *udpSocket) flushWorker(ctx context.Context) {
	defer s.recovered(ctx)
	s.worker.Flush(time.Now())
}

// slow hands the query the worker just missed over, and what its reply is to be
// given to.
func (s *udpSocket) slow(peer *wire.Peer, to wire.Replier, now time.Time) {
	s.server.due.Add(1)
	s.handing = to
	s.worker.Resolve(peer, now, to)
	s.handing = nil
}
