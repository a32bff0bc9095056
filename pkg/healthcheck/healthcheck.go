// SPDX-License-Identifier: Apache-2.0

package healthcheck

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/panics"
)

// udpSize is the advertised EDNS size in bytes, which passes unfragmented everywhere.
const udpSize = 1232

// Config configures a Prober.
type Config struct {
	Label    string // for the log
	Network  string // "udp", with TCP after truncation, or "tcp"
	Server   netip.AddrPort
	Name     string // fully qualified, with the trailing dot
	Type     uint16
	Interval time.Duration // from the start of one query to the start of the next
	Timeout  time.Duration // limit of one query, at most Interval
	// Mark is the packet mark of the sockets; 0: none. If it cannot be set, packets stay unmarked.
	Mark uint32
	Now  func() time.Time // the clock; required
	// Dial opens a connected socket; nil: a net.Dialer with the mark.
	Dial func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	Log  *slog.Logger // nil: silent
}

func (c *Config) server() string { return c.Network + "://" + c.Server.String() }

func (c *Config) question() string { return c.Name + " " + dns.Type(c.Type).String() }

// A Prober sends one question to one server periodically.
type Prober struct {
	cfg Config

	mu    sync.Mutex // guards the fields below
	stats Stats
}

// New checks cfg. It opens nothing.
func New(cfg Config) (*Prober, error) {
	_, isName := dns.IsDomainName(cfg.Name)
	switch {
	case cfg.Network != "udp" && cfg.Network != "tcp":
		return nil, fmt.Errorf("probe %q: network %q is not udp or tcp", cfg.Label, cfg.Network)
	case !cfg.Server.IsValid() || cfg.Server.Port() == 0:
		return nil, fmt.Errorf("probe %q: %s is not a server address", cfg.Label, cfg.Server)
	case !isName || !dns.IsFqdn(cfg.Name) || cfg.Type == 0:
		return nil, fmt.Errorf("probe %q: %s is not a valid question", cfg.Label, cfg.question())
	case cfg.Timeout <= 0 || cfg.Interval < cfg.Timeout:
		return nil, fmt.Errorf("probe %q: timeout %s must be positive and at most the interval %s", cfg.Label, cfg.Timeout, cfg.Interval)
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

// String returns the prober's name.
func (p *Prober) String() string { return "probe " + p.cfg.Label }

// Run sends a query at once and then every interval, until ctx ends.
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

// probeOnce sends one query and records the result.
func (p *Prober) probeOnce(ctx context.Context, begun time.Time) {
	err := p.ask(ctx)
	if ctx.Err() != nil {
		return // shutting down: the query had no time to finish
	}
	if f, bad := errors.AsType[*failure](err); bad {
		if p.recordFailure(f) {
			p.cfg.Log.WarnContext(ctx, "probe failed", "probe", p.cfg.Label, "server", p.cfg.server(),
				"question", p.cfg.question(), "reason", f.reason.String(), "err", f.what)
		}
		return
	}
	if took := p.cfg.Now().Sub(begun); p.recordSuccess(took) {
		p.cfg.Log.InfoContext(ctx, "probe recovered", "probe", p.cfg.Label, "took", took)
	}
}

// ask sends one query. Its error is a *failure. A panic while reading the answer fails this query
// only.
func (p *Prober) ask(ctx context.Context) (err error) {
	defer func() {
		if defect := recover(); defect != nil {
			p.mu.Lock()
			p.stats.Panics++
			p.mu.Unlock()
			panics.Log(ctx, p.cfg.Log, "probe", defect)
			err = &failure{Malformed, "internal error: see the log for the stack"}
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

// exchange sends the query over its own socket and waits for the answer.
func (p *Prober) exchange(ctx context.Context, network string, q *dns.Msg) (*dns.Msg, error) {
	conn, err := p.cfg.Dial(ctx, network, p.cfg.Server)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	// Closing the socket ends the wait when the prober ends. At the timeout the deadline of the socket ends it.
	defer context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			_ = conn.Close()
		}
	})()
	client := dns.Client{Net: network, Timeout: p.cfg.Timeout}
	r, _, err := client.ExchangeWithConnContext(ctx, q, &dns.Conn{Conn: conn})
	return r, err
}

// newDial returns the default of Config.Dial.
func newDial(mark uint32) func(context.Context, string, netip.AddrPort) (net.Conn, error) {
	d := &net.Dialer{}
	if mark != 0 {
		d.Control = func(_, _ string, raw syscall.RawConn) error { return markSocket(raw, mark) }
	}
	return func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
		return d.DialContext(ctx, network, addr.String())
	}
}

// markSocket sets the packet mark of a socket. Without CAP_NET_ADMIN packets stay unmarked. That is
// safe: rules that match the mark need the same capability, so this process has installed none.
func markSocket(raw syscall.RawConn, mark uint32) error {
	return raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	})
}

// NumBuckets is the number of bounds of [Buckets].
const NumBuckets = 12

// Buckets returns the upper bounds of Stats.Took.
func Buckets() [NumBuckets]time.Duration {
	return [NumBuckets]time.Duration{
		250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond,
		25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, time.Second, 5 * time.Second,
	}
}

// ErrPending is the result of a prober before its first query is done.
var ErrPending = errors.New("no result yet: the first query is in progress")

// Stats are the state and the counters of a Prober.
type Stats struct {
	Label, Server, Question string // from Config; Question is the name and the type

	Known bool // a query is done; before that Up and Last are not valid
	Up    bool // the latest query succeeded
	// Last is the duration of the latest successful query; 0: none succeeded.
	Last time.Duration

	Failures [NumReasons]uint64     // failed queries
	Took     [NumBuckets + 1]uint64 // successful queries by duration; the last counts those above every bound
	TookSum  time.Duration          // sum of the durations of successful queries

	Row       uint64 // failed queries since the latest successful one
	LastError string // why the latest query failed; empty: it did not
	Panics    uint64 // recovered panics, each also logged with its stack
}

// Stats returns the counters.
func (p *Prober) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Label, s.Server, s.Question = p.cfg.Label, p.cfg.server(), p.cfg.question()
	return s
}

// Result returns nil if the latest query succeeded, else its error; ErrPending before the first is
// done.
func (p *Prober) Result() error {
	s := p.Stats()
	switch {
	case !s.Known:
		return ErrPending
	case s.Up:
		return nil
	case s.Row > 1:
		return fmt.Errorf("%s for %s from %s, %d times in a row", s.LastError, s.Question, s.Server, s.Row)
	}
	return fmt.Errorf("%s for %s from %s", s.LastError, s.Question, s.Server)
}

// recordSuccess counts a success and reports whether the query before had failed.
func (p *Prober) recordSuccess(took time.Duration) (changed bool) {
	bucket := 0
	for bounds := Buckets(); bucket < NumBuckets && took > bounds[bucket]; {
		bucket++
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	changed = p.stats.Known && !p.stats.Up
	p.stats.Known, p.stats.Up, p.stats.LastError, p.stats.Row, p.stats.Last = true, true, "", 0, took
	p.stats.Took[bucket]++
	p.stats.TookSum += took
	return changed
}

// recordFailure counts a failure and reports whether it is the first one since the start or a success.
func (p *Prober) recordFailure(f *failure) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed = !p.stats.Known || p.stats.Up
	p.stats.Known, p.stats.Up, p.stats.LastError = true, false, f.what
	p.stats.Row++
	p.stats.Failures[f.reason]++
	return changed
}

// A Reason is why a query failed.
type Reason uint8

// The reasons, a closed set.
const (
	Timeout     Reason = iota // no answer in time
	Unreachable               // the server could not be reached, or closed the connection
	Malformed                 // the message is not an answer to the question
	ServFail                  // SERVFAIL
	NXDomain                  // the name does not exist
	NoData                    // NOERROR without a record
	OtherRcode                // another response code, such as REFUSED
	NumReasons  = int(iota)
)

// String returns the reason in lower case with underscores.
func (r Reason) String() string {
	names := [NumReasons]string{"timeout", "unreachable", "malformed", "servfail", "nxdomain", "nodata", "other_rcode"}
	if int(r) >= len(names) {
		return "unknown"
	}
	return names[r]
}

// Reasons returns the names of all reasons.
func Reasons() []string {
	list := make([]string, NumReasons)
	for i := range list {
		list[i] = Reason(i).String()
	}
	return list
}

// A failure is why a query failed, with a description.
type failure struct {
	reason Reason
	what   string
}

// Error implements error.
func (f *failure) Error() string { return f.what }

// classify maps an error of exchange to a failure.
func (c *Config) classify(err error) *failure {
	var unread *dns.Error
	var timeout net.Error
	var op *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return &failure{Timeout, fmt.Sprintf("no answer within %s", c.Timeout)}
	case errors.As(err, &unread):
		return &failure{Malformed, "unreadable answer: " + unread.Error()}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &failure{Unreachable, "connection closed without an answer"}
	case errors.As(err, &op):
		err = op.Err // without the addresses: the local port changes each time
	}
	return &failure{Unreachable, err.Error()}
}

// checkAnswer returns why an answer is not good, or nil.
func checkAnswer(q, r *dns.Msg) *failure {
	switch {
	case !r.Response, len(r.Question) != 1, !sameQuestion(q.Question[0], r.Question[0]):
		return &failure{Malformed, "message does not answer the question"}
	case r.Rcode == dns.RcodeServerFailure:
		return &failure{ServFail, "SERVFAIL" + extendedError(r)}
	case r.Rcode == dns.RcodeNameError:
		return &failure{NXDomain, "NXDOMAIN: the name does not exist"}
	case r.Rcode != dns.RcodeSuccess:
		return &failure{OtherRcode, rcode(r.Rcode) + extendedError(r)}
	case len(r.Answer) == 0:
		return &failure{NoData, "no record of that type"}
	}
	return nil
}

// sameQuestion reports whether an answer repeats the question, in any case.
func sameQuestion(a, b dns.Question) bool {
	return a.Qtype == b.Qtype && a.Qclass == b.Qclass && dns.CanonicalName(a.Name) == dns.CanonicalName(b.Name)
}

func rcode(code int) string {
	if name, ok := dns.RcodeToString[code]; ok {
		return name
	}
	return fmt.Sprintf("response code %d", code)
}

// extendedError returns the server's Extended DNS Error (RFC 8914) if its code is known. It omits
// the free text, which may contain anything.
func extendedError(r *dns.Msg) string {
	opt := r.IsEdns0()
	if opt == nil {
		return ""
	}
	for _, o := range opt.Option {
		if e, ok := o.(*dns.EDNS0_EDE); ok && dns.ExtendedErrorCodeToString[e.InfoCode] != "" {
			return ": " + dns.ExtendedErrorCodeToString[e.InfoCode]
		}
	}
	return ""
}
