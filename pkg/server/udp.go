// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
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
	// option that a stub sends has some 400 bytes.
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
	Addr         netip.AddrPort
	Handler      Handler
	Readers      int           // sockets, each with a reader; 0: one per CPU Go may use
	DrainTimeout time.Duration // longest wait at the end for replies that are due; 0: 5 s
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
	added   chan *udpSocket // of Widen, for Run

	selectorMu sync.Mutex // taken by SelectOwn

	stats      udpCounters
	repliesDue atomic.Int64 // replies that Resolve still owes
	handover   handover
}

// A udpSocket is one of the sockets, with what its reader keeps between batches.
type udpSocket struct {
	server    *UDP
	conn      *net.UDPConn
	raw       syscall.RawConn // of conn
	wildcard  bool            // replies must name the address they leave from
	v6        bool
	worker    Worker
	busy      batchStart
	peer      wire.Peer    // of the query in hand
	resolving wire.Replier // while Resolve runs: what it was given
	replies   replyQueue   // replies of the slow path, gathered
}

// NewUDP checks cfg. It opens nothing.
func NewUDP(cfg UDPConfig) (*UDP, error) {
	if !cfg.Addr.IsValid() || cfg.Handler == nil {
		return nil, errors.New("a UDP server needs an address and a handler")
	}
	if cfg.Readers <= 0 {
		cfg.Readers = runtime.GOMAXPROCS(0)
	}
	if cfg.DrainTimeout <= 0 {
		cfg.DrainTimeout = 5 * time.Second
	}
	if cfg.ReceiveBuffer <= 0 || cfg.ReceiveBuffer > receiveBuffer {
		cfg.ReceiveBuffer = receiveBuffer
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &UDP{cfg: cfg, born: time.Now(), added: make(chan *udpSocket), handover: newHandover()}, nil
}

// Listen opens the sockets. If one cannot be opened none stays. The address must be free:
// other sockets with SO_REUSEPORT may share it later, but get nothing, see selectOwn.
func (u *UDP) Listen(ctx context.Context) error {
	u.sockets.clear() // of another try
	s, err := u.open(ctx, u.cfg.Addr, true)
	if errors.Is(err, errNoSelector) {
		if err = u.checkUnshared(ctx); err == nil {
			s, err = u.open(ctx, u.cfg.Addr, false)
		}
	}
	for err == nil {
		u.sockets.add(s)
		if u.MissingReaders() == 0 {
			warnNoSelector(u.cfg.Log, "udp", u.Addr(), u.AttachSelector())
			return nil
		}
		s, err = u.open(ctx, u.Addr(), false) // at the port the kernel chose, if it was asked to
	}
	u.Close()
	return fmt.Errorf("listening on udp %s: %w", u.cfg.Addr, err)
}

// checkUnshared binds the address without sharing it, and lets it go: two agents that share a
// port would each get half of the queries.
func (u *UDP) checkUnshared(ctx context.Context) error {
	lc := net.ListenConfig{Control: controlFunc(func(fd int) error {
		if u.cfg.FreeBind {
			return setFreeBind(fd, u.cfg.Addr.Addr())
		}
		return nil
	})}
	conn, err := lc.ListenPacket(ctx, network("udp", u.cfg.Addr), u.cfg.Addr.String())
	if err != nil {
		return unwrapOpError(err)
	}
	return conn.Close()
}

// controlFunc makes a net.ListenConfig's Control of what sets options of a socket.
func controlFunc(set func(fd int) error) func(_, _ string, raw syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var err error
		if e := raw.Control(func(fd uintptr) { err = set(int(fd)) }); e != nil {
			return e
		}
		return err
	}
}

// unwrapOpError takes off what the net package adds to an error, the address once more.
func unwrapOpError(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	return err
}

// open binds one more socket; one that is to be alone, only if no other has the address.
func (u *UDP) open(ctx context.Context, addr netip.AddrPort, alone bool) (*udpSocket, error) {
	s := u.newSocket(addr)
	lc := net.ListenConfig{Control: controlFunc(func(fd int) error {
		if err := s.setOptions(fd); err != nil || !alone {
			return err
		}
		if err := attachSelector(fd, 1); err != nil {
			return errors.Join(errNoSelector, err)
		}
		return nil
	})}
	conn, err := lc.ListenPacket(ctx, network("udp", addr), addr.String())
	if err != nil {
		return nil, unwrapOpError(err)
	}
	return s, s.setConn(conn.(*net.UDPConn))
}

func (u *UDP) newSocket(addr netip.AddrPort) *udpSocket {
	return &udpSocket{server: u, wildcard: addr.Addr().IsUnspecified(), v6: addr.Addr().Is6()}
}

// setConn has s read from conn, which is closed after an error.
func (s *udpSocket) setConn(conn *net.UDPConn) (err error) {
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
		if err := setFreeBind(fd, s.server.cfg.Addr.Addr()); err != nil {
			return err
		}
	}
	setReceiveBuffer(fd, s.server.cfg.ReceiveBuffer)
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
	defer close(u.handover.done)
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
		case s := <-u.added:
			g.Go(func() error { return s.run(reading) })
			if reading.Err() != nil { // the others were told to stop before this one was among them
				u.wake()
			}
			continue
		case <-ctx.Done():
			limit := time.Now().Add(u.cfg.DrainTimeout)
			u.awaitReplies(limit)
			stopReading()
			err = <-failed
			u.awaitReplies(limit)
		case <-u.handover.requested:
			stopReading()
			err = <-failed
			close(u.handover.stopped)
			u.awaitReplies(time.Now().Add(u.cfg.DrainTimeout))
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
	for u.repliesDue.Load() > 0 && time.Now().Before(limit) {
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
		return s.readPortable(ctx)
	}
	return s.readBatches(ctx)
}

// recoverPanic, deferred around a packet's handling, keeps a defect that one packet
// shows from ending the service of a node: the packet gets no answer, and the
// reader goes on with a new worker.
func (s *udpSocket) recoverPanic(ctx context.Context) {
	defect := recover()
	if defect == nil {
		return
	}
	s.server.stats.panics.Add(1)
	logPanic(ctx, s.server.cfg.Log, "udp", defect)
	if s.resolving != nil {
		s.resolving.Reply(nil, new(wire.SendBatch)) // of no effect if it was replied to
		s.resolving = nil
	}
	broken := s.worker
	s.worker = s.server.cfg.Handler.NewWorker()
	flushAfterPanic(broken)
}

// flushLane ends a batch.
func (s *udpSocket) flushWorker(ctx context.Context) {
	defer s.recoverPanic(ctx)
	s.worker.Flush(time.Now())
}

// resolve hands the query the worker just missed over, and what its reply is to be
// given to.
func (s *udpSocket) resolve(peer *wire.Peer, to wire.Replier, now time.Time) {
	s.server.repliesDue.Add(1)
	s.resolving = to
	s.worker.Resolve(peer, now, to)
	s.resolving = nil
}

// batchStart says since when a reader is inside a batch. A single store at either
// end of the batch is all that it costs the reader.
type batchStart struct{ at atomic.Int64 } // by UDP.clock; 0: it waits for packets

func (b *batchStart) begin(at int64) { b.at.Store(at) }

func (b *batchStart) end() { b.at.Store(0) }

// BusyFor is the longest time that any reader has been inside one batch by now, zero
// if all of them wait for packets. A batch takes some microseconds, or as long as
// what the worker calls holds it up: a reader that is held up answers nobody.
func (u *UDP) BusyFor(now time.Time) time.Duration {
	var longest int64
	for _, s := range u.sockets.all() {
		if since := s.busy.at.Load(); since > 0 {
			longest = max(longest, u.clock(now)-since)
		}
	}
	return time.Duration(longest)
}

// clock returns now as nanoseconds since the server was made, from 1 on.
func (u *UDP) clock(now time.Time) int64 { return int64(now.Sub(u.born)) + 1 }

// controlLen is room for one packet-info control message of either family.
const controlLen = 64

// clearInterface rewrites a received packet-info message into one to send: the
// address stays, the interface goes, so that the reply takes the route to its
// client. A link-local IPv6 address means nothing without its interface.
func clearInterface(control []byte) {
	const header = unix.SizeofCmsghdr
	if len(control) < header+unix.SizeofInet4Pktinfo {
		return
	}
	level := binary.NativeEndian.Uint32(control[header-8:])
	data := control[header:]
	switch {
	case level == unix.IPPROTO_IP:
		clear(data[:4])
	case level == unix.IPPROTO_IPV6 && len(data) >= unix.SizeofInet6Pktinfo && (data[0] != 0xfe || data[1]&0xc0 != 0x80):
		clear(data[16:20])
	}
}

// sourceControl is a copy of the received control message that makes a reply
// leave from the address that was asked.
func sourceControl(received []byte) []byte {
	control := slices.Clone(received)
	clearInterface(control)
	return control
}

// udpCounters is the live form of UDPStats.
type udpCounters struct {
	received, sent, unsent, oversize, panics atomic.Uint64
}

// UDPStats counts datagrams since the start.
type UDPStats struct {
	Received uint64
	Sent     uint64
	Unsent   uint64 // replies the kernel did not take
	Oversize uint64 // queries too long to be one: dropped
	Panics   uint64 // queries whose handling was cut short by a defect
}

// Stats may be called at any time.
func (u *UDP) Stats() UDPStats {
	return UDPStats{
		Received: u.stats.received.Load(),
		Sent:     u.stats.sent.Load(),
		Unsent:   u.stats.unsent.Load(),
		Oversize: u.stats.oversize.Load(),
		Panics:   u.stats.panics.Load(),
	}
}
