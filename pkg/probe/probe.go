// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// udpSize is the largest answer over UDP that is asked for, in bytes: what no path
// has to fragment.
const udpSize = 1232

// Config is what a prober is made from.
type Config struct {
	Label    string // for the log
	Network  string // "udp", with TCP for answers that are cut, or "tcp"
	Server   netip.AddrPort
	Name     string // absolute
	Type     uint16
	Interval time.Duration // from one question to the next
	Timeout  time.Duration // for an answer, at most Interval
	// Mark is what the packets of the sockets carry, 0 for none. A socket that cannot
	// be marked goes without.
	Mark uint32
	Now  func() time.Time
	// Dial opens a connected socket; nil: as the net package does, with the mark.
	Dial func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	Log  *slog.Logger // nil: silent
}

func (c *Config) server() string { return c.Network + "://" + c.Server.String() }

func (c *Config) question() string { return c.Name + " " + dns.Type(c.Type).String() }

// A Prober asks one server one question again and again.
type Prober struct {
	cfg Config

	mu    sync.Mutex // guards what follows
	stats Stats
}

// New checks cfg. It opens nothing.
func New(cfg Config) (*Prober, error) {
	_, isName := dns.IsDomainName(cfg.Name)
	switch {
	case cfg.Network != "udp" && cfg.Network != "tcp":
		return nil, fmt.Errorf("probe %q: network %q is not udp or tcp", cfg.Label, cfg.Network)
	case !cfg.Server.IsValid() || cfg.Server.Port() == 0:
		return nil, fmt.Errorf("probe %q: %s is nobody to ask", cfg.Label, cfg.Server)
	case !isName || !dns.IsFqdn(cfg.Name) || cfg.Type == 0:
		return nil, fmt.Errorf("probe %q: %s is no question", cfg.Label, cfg.question())
	case cfg.Timeout <= 0 || cfg.Interval < cfg.Timeout:
		return nil, fmt.Errorf("probe %q: a timeout of %s within an interval of %s", cfg.Label, cfg.Timeout, cfg.Interval)
	case cfg.Now == nil:
		return nil, fmt.Errorf("probe %q: needs a clock", cfg.Label)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Dial == nil {
		cfg.Dial = newDial(cfg.Mark)
	}
	return &Prober{cfg: cfg}, nil
}

// String names the prober.
func (p *Prober) String() string { return "probe " + p.cfg.Label }

// Run asks until ctx ends, at once and then every interval.
func (p *Prober) Run(ctx context.Context) error {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		begun := p.cfg.Now()
		p.probeOnce(ctx, begun)
		next.Reset(max(p.cfg.Interval-p.cfg.Now().Sub(begun), 0))
	}
}

// probeOnce asks once and books how that went.
func (p *Prober) probeOnce(ctx context.Context, begun time.Time) {
	err := p.ask(ctx)
	if ctx.Err() != nil {
		return // it was not given its time
	}
	if f, bad := errors.AsType[*failure](err); bad {
		if p.recordFailure(f) {
			p.cfg.Log.WarnContext(ctx, "probe without a good answer", "probe", p.cfg.Label, "server", p.cfg.server(),
				"question", p.cfg.question(), "reason", f.reason.String(), "err", f.what)
		}
		return
	}
	if took := p.cfg.Now().Sub(begun); p.recordSuccess(took) {
		p.cfg.Log.InfoContext(ctx, "probe has a good answer again", "probe", p.cfg.Label, "took", took)
	}
}

// ask asks once. Its error is a *failure. A defect in what reads the answer costs this
// question only.
func (p *Prober) ask(ctx context.Context) (err error) {
	defer func() {
		if defect := recover(); defect != nil {
			p.mu.Lock()
			p.stats.Panics++
			p.mu.Unlock()
			p.cfg.Log.ErrorContext(ctx, "recovered from a panic", "where", "probe", "panic", fmt.Sprint(defect), "stack", string(debug.Stack()))
			err = &failure{Malformed, "a defect: the log has its stack"}
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	q := new(dns.Msg).SetQuestion(p.cfg.Name, p.cfg.Type)
	q.SetEdns0(udpSize, false)
	r, err := p.exchange(ctx, p.cfg.Network, q)
	if err == nil && r.Truncated && p.cfg.Network == "udp" {
		r, err = p.exchange(ctx, "tcp", q)
	}
	if err != nil {
		return p.cfg.classify(err)
	}
	if f := checkAnswer(q, r); f != nil {
		return f
	}
	return nil
}

// exchange sends the question over a socket of its own and waits for the answer.
func (p *Prober) exchange(ctx context.Context, network string, q *dns.Msg) (*dns.Msg, error) {
	conn, err := p.cfg.Dial(ctx, network, p.cfg.Server)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	// What ends the prober ends the wait; its deadline the socket has itself.
	defer context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			_ = conn.Close()
		}
	})()
	client := dns.Client{Net: network, Timeout: p.cfg.Timeout}
	r, _, err := client.ExchangeWithConnContext(ctx, q, &dns.Conn{Conn: conn})
	return r, err
}

// newDial is what Config.Dial is by default.
func newDial(mark uint32) func(context.Context, string, netip.AddrPort) (net.Conn, error) {
	d := &net.Dialer{}
	if mark != 0 {
		d.Control = func(_, _ string, raw syscall.RawConn) error { return markSocket(raw, mark) }
	}
	return func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
		return d.DialContext(ctx, network, addr.String())
	}
}
