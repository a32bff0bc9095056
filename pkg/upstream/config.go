// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/dnstap"
	"github.com/nodecache/node-cache/pkg/panics"
)

// Config configures a pool.
type Config struct {
	// Targets are the upstreams of a route, in the order of the configuration.
	Targets []Target
	// Policy is the order in which targets are asked.
	Policy Policy
	// Endpoints are servers that change over time. They replace Targets.
	Endpoints *Endpoints
	// Secure says how Endpoints are asked over TLS. Zero: over TCP.
	Secure Secure
	// Connections is how many TCP, TLS or HTTPS connections the queries to one upstream share, 1 to 16. There are up
	// to twice as many and two more while some are full, silent or being replaced. 0: 1.
	Connections int
	// Rate is the limit of queries per second to each upstream, with bursts of a tenth of it. Excess queries go to
	// another upstream. 0: no limit.
	Rate float64
	// RandomCase turns on 0x20: names are sent over UDP in random case, which the answer must repeat, except to
	// upstreams and for domains that are known not to ignore the case. Otherwise names are sent as they are.
	RandomCase bool
	// TrustAD keeps the AD flag of all answers. By default only answers over TLS and HTTPS keep it: on other
	// transports any host on the path may set it (RFC 6840 section 5.8).
	TrustAD bool
	// LoopDetector finds the upstreams that lead back to this process. Nil: no detection.
	LoopDetector *LoopDetector
	// Zone is the name at or below which the pool is asked, canonical and in wire form. Loop probes ask for names
	// below it.
	Zone []byte
	// Dial opens a connected socket; network is "udp" or "tcp". It must honor ctx. Nil: a net.Dialer.
	Dial func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	// Mark is the SO_MARK of the packets to the upstreams if Dial is nil. Without the capability NET_ADMIN the
	// sockets stay unmarked and Log gets one error. 0: none.
	Mark uint32
	// Rand is the source of IDs, case and ports. It must be safe for concurrent use. Nil: crypto/rand.
	Rand io.Reader
	// Now is the clock, which must run as fast as timers do. Nil: time.Now.
	Now func() time.Time
	// Tap gets the queries to the upstreams and their answers, unless it holds nil. Nil: none does.
	Tap *atomic.Pointer[dnstap.Tap]
	// Log gets warnings about excluded upstreams. Nil: none.
	Log *slog.Logger
	// Self reports whether an address is one of this process's listeners. Nil: never.
	Self func(netip.AddrPort) bool
	// SystemdResolvConf is read instead of a resolv.conf that names only the stub of systemd-resolved. Empty:
	// /run/systemd/resolve/resolv.conf.
	SystemdResolvConf string
}

// A Target is one entry of a route's list: an address, or a file of addresses.
type Target struct {
	Network    string // "udp", "tcp", "tls" or "https"; unused with ResolvConf
	Addr       netip.AddrPort
	Name       string // TLS and HTTPS: server name in the certificate; empty: the address
	CAFile     string // TLS and HTTPS: path of the CA certificates in PEM, reloaded when the file changes; empty: those of the system
	Path       string // HTTPS: path of the URL; empty: /dns-query
	Method     string // HTTPS: "GET" or "POST"; empty: POST
	ResolvConf string // path of a resolv.conf with the nameservers to use
	far        bool   // the server is in another zone, see [Server]
}

// Secure is what equivalent servers over TLS have in common.
type Secure struct {
	Port         uint16
	Name, CAFile string // see [Target]
}

// Targets returns the targets of servers. With TLS each is asked at the port of s. The zero value asks them over TCP.
func (s Secure) Targets(addrs []netip.AddrPort) []Target {
	targets := make([]Target, 0, len(addrs))
	for _, addr := range addrs {
		targets = append(targets, s.target(Server{Addr: addr}))
	}
	return targets
}

func (s Secure) target(server Server) Target {
	if s.Port == 0 {
		return Target{Network: "tcp", Addr: server.Addr, far: server.Far}
	}
	return Target{Network: "tls", Addr: netip.AddrPortFrom(server.Addr.Addr(), s.Port), Name: s.Name, CAFile: s.CAFile, far: server.Far}
}

// A Policy is the order in which a pool asks its targets. Failing ones always come last.
type Policy uint8

// The policies.
const (
	Fastest    Policy = iota // by measured latency
	Sequential               // in the order of the configuration
	Random                   // in a new order for each query
)

// String returns the policy as it is configured.
func (p Policy) String() string { return label(int(p), "fastest", "sequential", "random") }

// common is what all upstreams of a pool share: the configuration, in which defaults are filled in.
type common struct {
	Config
	panics atomic.Uint64
}

func newCommon(cfg Config) *common {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Connections = cmp.Or(cfg.Connections, 1)
	cfg.SystemdResolvConf = cmp.Or(cfg.SystemdResolvConf, "/run/systemd/resolve/resolv.conf")
	if cfg.Dial == nil {
		cfg.Dial = newDial(cfg.Mark, cfg.Log)
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Reader
	}
	if cfg.Now == nil {
		cfg.Now = time.Now //nolint:forbidigo // the default of an injected clock
	}
	if cfg.Tap == nil {
		cfg.Tap = new(atomic.Pointer[dnstap.Tap])
	}
	if cfg.Self == nil {
		cfg.Self = func(netip.AddrPort) bool { return false }
	}
	return &common{Config: cfg}
}

// recoverPanic counts and logs a panic at the root of a goroutine, and then calls onPanic. It must be deferred
// directly.
func (c *common) recoverPanic(ctx context.Context, onPanic func()) {
	r := recover()
	if r == nil {
		return
	}
	c.logPanic(ctx, r)
	onPanic()
}

// logPanic counts and logs a recovered panic. Call it while the deferred function runs.
func (c *common) logPanic(ctx context.Context, panicked any) {
	c.panics.Add(1)
	panics.Log(ctx, c.Log, "upstream", panicked)
}

// newDial returns the default of Config.Dial. It opens a socket that is connected to addr. The kernel chooses the source
// port. If the mark cannot be set, the socket is used without, and log gets the first failure: a process that may not
// set marks has not installed rules for them either, as both need NET_ADMIN.
func newDial(mark uint32, log *slog.Logger) func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	var warned sync.Once
	setMark := func(ctx context.Context, raw syscall.RawConn) {
		if mark == 0 {
			return
		}
		if err := setOption(raw, "SO_MARK", unix.SOL_SOCKET, unix.SO_MARK, int(mark)); err != nil {
			warned.Do(func() { log.ErrorContext(ctx, "cannot mark upstream sockets", "err", err) })
		}
	}
	return func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
		switch network {
		case "udp":
			// No Control function here: with one, package net formats the address of every socket, a tenth of the cost of
			// a miss. The mark is set after connect, which is before the first packet.
			conn, err := new(net.Dialer).DialUDP(ctx, network, netip.AddrPort{}, addr)
			if err != nil {
				return nil, err
			}
			if raw := rawConn(conn); raw != nil {
				setMark(ctx, raw)
			}
			return conn, nil
		case "tcp":
			nd := net.Dialer{ControlContext: func(ctx context.Context, _, _ string, raw syscall.RawConn) error {
				setMark(ctx, raw)
				return nil
			}}
			return nd.DialTCP(ctx, network, netip.AddrPort{}, addr)
		}
		return nil, fmt.Errorf("network %q: %w", network, net.UnknownNetworkError(network))
	}
}

// setOption sets an option of a socket.
func setOption(raw syscall.RawConn, name string, level, option, value int) error {
	var failed error
	err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, option, value) })
	if err = cmp.Or(err, failed); errors.Is(err, unix.EPERM) {
		return fmt.Errorf("setting %s without the capability NET_ADMIN: %w", name, err)
	}
	if err != nil {
		return fmt.Errorf("setting %s: %w", name, err)
	}
	return nil
}

// rawConn returns access to the kernel socket of nc, or nil if nc has none or is closed.
func rawConn(nc net.Conn) syscall.RawConn {
	if sc, ok := nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}
