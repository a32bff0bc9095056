// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
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

	"github.com/nodecache/node-cache/pkg/listen"
)

const (
	// maxQuery is the largest query accepted over UDP. An EDNS query with every option of a stub
	// has about 400 bytes.
	maxQuery = 2048
	// receiveBuffer is the default receive buffer of a socket: about 10 ms of queries at a million
	// a second. The kernel may give less.
	receiveBuffer = 4 << 20
)

// UDPConfig configures a UDP server.
type UDPConfig struct {
	Addr         netip.AddrPort
	Handler      Handler
	Readers      int           // number of sockets, each with a reader; 0: GOMAXPROCS
	DrainTimeout time.Duration // longest wait at the end for outstanding replies; 0: 5 s
	// ReceiveBuffer bounds the bytes of unread queries in each socket. The maximum, and the default
	// for 0, is 4 MiB. The kernel counts its own overhead and doubles the value. All of it is
	// charged to this container.
	ReceiveBuffer int
	// FreeBind lets Listen bind an address that no link has yet, and that may come and go while the
	// server runs. Linux only.
	FreeBind bool
	Log      *slog.Logger // nil: silent
}

// UDP serves one UDP address through several sockets that share its port.
type UDP struct {
	cfg   UDPConfig
	born  time.Time       // what clock counts from
	added chan *udpSocket // sockets that AddReaders passes to Run

	mu   sync.Mutex   // guards list
	list []*udpSocket // the sockets; some may be added while others are read

	selectorMu sync.Mutex // serializes AttachSelector, so that the last selector counts all sockets

	stats      UDPStats     // its fields change by package atomic only
	repliesDue atomic.Int64 // replies outstanding after Resolve
	handover   handover
}

// NewUDP checks cfg. It opens nothing.
func NewUDP(cfg UDPConfig) (*UDP, error) {
	if !cfg.Addr.IsValid() || cfg.Handler == nil {
		return nil, errors.New("a UDP server needs an address and a handler")
	}
	if cfg.Readers <= 0 {
		cfg.Readers = runtime.GOMAXPROCS(0)
	}
	cfg.DrainTimeout = cmp.Or(cfg.DrainTimeout, 5*time.Second)
	cfg.ReceiveBuffer = min(cmp.Or(cfg.ReceiveBuffer, receiveBuffer), receiveBuffer)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &UDP{cfg: cfg, born: time.Now(), added: make(chan *udpSocket), handover: newHandover()}, nil
}

// Listen opens the sockets, all or none. The address must be free. Other sockets with SO_REUSEPORT
// may share it later, but get no queries, see attachSelector.
func (u *UDP) Listen(ctx context.Context) error {
	u.clear() // of the sockets of an earlier attempt that failed
	s, err := u.open(ctx, u.cfg.Addr, true)
	if errors.Is(err, errNoSelector) {
		if err = u.checkUnshared(ctx); err == nil {
			s, err = u.open(ctx, u.cfg.Addr, false)
		}
	}
	for err == nil {
		u.add(s)
		if u.MissingReaders() == 0 {
			warnNoSelector(u.cfg.Log, "udp", u.Addr(), u.AttachSelector())
			return nil
		}
		s, err = u.open(ctx, u.Addr(), false) // the port that the kernel chose, if Addr has port 0
	}
	u.Close()
	return fmt.Errorf("listening on udp %s: %w", u.cfg.Addr, err)
}

// checkUnshared returns an error if another socket has the address: two agents that share a port
// would each get half of the queries. It binds without SO_REUSEPORT, and closes that socket.
func (u *UDP) checkUnshared(ctx context.Context) error {
	lc := net.ListenConfig{Control: controlFunc(func(fd int) error {
		if u.cfg.FreeBind {
			return listen.FreeBind(fd, u.cfg.Addr.Addr())
		}
		return nil
	})}
	conn, err := lc.ListenPacket(ctx, network("udp", u.cfg.Addr), u.cfg.Addr.String())
	if err != nil {
		return unwrapOpError(err)
	}
	return conn.Close()
}

// controlFunc returns a net.ListenConfig.Control that calls set with the descriptor.
func controlFunc(set func(fd int) error) func(_, _ string, raw syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var err error
		if e := raw.Control(func(fd uintptr) { err = set(int(fd)) }); e != nil {
			return e
		}
		return err
	}
}

// unwrapOpError removes the net.OpError, which repeats the address.
func unwrapOpError(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	return err
}

// open binds one more socket. With alone it fails if any other socket has the address.
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

// network returns the network with the address family, so that 0.0.0.0 does not mean both families.
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

// Addr returns the served address, with the port that the kernel chose if Listen was given port 0.
func (u *UDP) Addr() netip.AddrPort {
	return u.sockets()[0].conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// Run serves until ctx ends, HandOver stops it, or a reader fails. After the end of ctx it continues until no reply is
// outstanding, answers what the sockets still hold and closes them. That takes at most DrainTimeout and the time to answer
// from memory.
func (u *UDP) Run(ctx context.Context) error {
	defer u.Close()
	base, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReading()
	defer close(u.handover.done)
	g, reading := errgroup.WithContext(base) // one reader's failure ends the others
	defer context.AfterFunc(reading, u.wake)()
	for _, s := range u.sockets() {
		g.Go(func() error { return s.readBatches(reading) })
	}
	failed := make(chan error, 1)
	go func() { failed <- g.Wait() }()
	var err error
	for serving := true; serving; {
		select {
		case s := <-u.added:
			g.Go(func() error { return s.readBatches(reading) })
			if reading.Err() != nil { // the readers were woken before this one was in the list
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

// wake makes the readers check whether to stop.
func (u *UDP) wake() {
	for _, s := range u.sockets() {
		_ = s.conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// awaitReplies waits until no reply is outstanding, at most until limit.
func (u *UDP) awaitReplies(limit time.Time) {
	await(limit, func() bool { return u.repliesDue.Load() == 0 })
}

// await waits until done returns true, or limit.
func await(limit time.Time, done func() bool) {
	const interval = 5 * time.Millisecond // short compared with a shutdown
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for !done() && time.Now().Before(limit) {
		<-ticker.C
	}
}

// sockets returns the sockets. The caller must not change the list.
func (u *UDP) sockets() []*udpSocket {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.list
}

func (u *UDP) add(s *udpSocket) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.list = append(u.list, s)
}

func (u *UDP) clear() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.list = nil
}

// Close closes the sockets of a server that does not run.
func (u *UDP) Close() {
	for _, s := range u.sockets() {
		_ = s.conn.Close()
	}
}

// UDPStats counts datagrams since the start.
type UDPStats struct {
	Received uint64
	Sent     uint64
	Unsent   uint64 // replies that the kernel refused
	Oversize uint64 // datagrams too long for a query: dropped
	Panics   uint64 // recovered panics of workers
}

// Stats returns the counters. It may be called at any time.
func (u *UDP) Stats() UDPStats {
	return UDPStats{
		Received: atomic.LoadUint64(&u.stats.Received),
		Sent:     atomic.LoadUint64(&u.stats.Sent),
		Unsent:   atomic.LoadUint64(&u.stats.Unsent),
		Oversize: atomic.LoadUint64(&u.stats.Oversize),
		Panics:   atomic.LoadUint64(&u.stats.Panics),
	}
}
