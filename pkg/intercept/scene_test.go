// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/rules"
)

const (
	lease = 3 * time.Second
	renew = 500 * time.Millisecond
)

var (
	addr4     = netip.MustParseAddr("169.254.20.10")
	addr6     = netip.MustParseAddr("fd00:20::10")
	fallback4 = netip.MustParseAddrPort("10.244.0.3:53")
	fallback6 = netip.MustParseAddrPort("[fd00:244::3]:53")
)

// nodeRules are those of a node of both families.
func nodeRules(owner string) rules.Rules {
	return rules.Rules{
		Owner: owner, Mode: rules.LinkLocal, Addresses: []netip.Addr{addr4, addr6}, Port: 53,
		Fallback: []netip.AddrPort{fallback4, fallback6},
	}
}

// A scene is a node in virtual time: a modelled kernel, an agent and its Keeper.
type scene struct {
	*intercept.Keeper
	t      *testing.T
	kernel *intercept.Fake
	agent  *simAgent
	log    *logLines
	stop   func()      // ends Run and waits for it
	over   func() bool // Run has returned
}

// play runs a scene in a bubble. Its keeper runs and was told to start, unless prepare says otherwise.
func play(t *testing.T, prepare func(*intercept.Config, *scene), run func(s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		kernel := intercept.NewFake(time.Now)
		s := newScene(t, kernel, "ours", prepare)
		s.Start()
		run(s)
		s.stop()
	})
}

func newScene(t *testing.T, kernel *intercept.Fake, owner string, prepare func(*intercept.Config, *scene)) *scene {
	t.Helper()
	s := &scene{t: t, kernel: kernel, agent: &simAgent{token: owner}, log: &logLines{}}
	prober := intercept.NewProber(intercept.ProberConfig{Port: 53, Token: owner, Dial: s.agent.Dial})
	cfg := intercept.Config{
		Backend: kernel.Open(), Rules: nodeRules(owner), Probe: prober.Probe, Busy: s.agent.busy,
		Now: time.Now, Log: s.log.logger(),
	}
	if prepare != nil {
		prepare(&cfg, s)
	}
	var err error
	if s.Keeper, err = intercept.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	s.over = func() bool { return len(ended) > 0 }
	var once sync.Once
	s.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Run: %v", err)
			}
			s.agent.group.Wait()
		})
	}
	t.Cleanup(s.stop)
	return s
}

// way is where a pod's UDP packet to the address goes now.
func (s *scene) way(a netip.Addr) intercept.Way {
	return s.kernel.Route(intercept.Packet{Network: "udp", To: netip.AddrPortFrom(a, 53)}).Way
}

// held says whether the kernel has the leases of all addresses, or of none.
func (s *scene) held() (all, none bool) {
	n := 0
	for _, a := range []netip.Addr{addr4, addr6} {
		if s.way(a) == intercept.ToAgent {
			n++
		}
	}
	return n == 2, n == 0
}

// until lets the time pass until the condition holds, and returns how long that took.
func (s *scene) until(what string, condition func() bool) time.Duration {
	s.t.Helper()
	begun := time.Now()
	for !condition() {
		if time.Since(begun) > 10*time.Minute {
			s.t.Fatalf("after 10 minutes: not %s\nstats: %+v\nlog: %s", what, s.Stats(), s.log)
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
	}
	return time.Since(begun)
}

func (s *scene) untilHeld() time.Duration {
	s.t.Helper()
	return s.until("leased", func() bool { all, _ := s.held(); return all })
}

func (s *scene) untilLapsed() time.Duration {
	s.t.Helper()
	return s.until("lapsed", func() bool { _, none := s.held(); return none })
}

// stays watches that a condition holds for that long.
func (s *scene) stays(what string, d time.Duration, condition func() bool) {
	s.t.Helper()
	for begun := time.Now(); time.Since(begun) < d; time.Sleep(20 * time.Millisecond) {
		synctest.Wait()
		if !condition() {
			s.t.Fatalf("no longer %s after %s\nstats: %+v\nlog: %s", what, time.Since(begun), s.Stats(), s.log)
		}
	}
}

func (s *scene) staysHeld(d time.Duration) {
	s.t.Helper()
	s.stays("leased", d, func() bool { all, _ := s.held(); return all })
}

func (s *scene) staysLapsed(d time.Duration) {
	s.t.Helper()
	s.stays("without a lease", d, func() bool { _, none := s.held(); return none })
}

// within fails when something took longer than it may.
func within(t *testing.T, what string, took, limit time.Duration) {
	t.Helper()
	if took > limit {
		t.Errorf("%s took %s, want at most %s", what, took, limit)
	}
}

// A simAgent answers the self-query in memory.
type simAgent struct {
	token string
	group sync.WaitGroup // of answers

	mu     sync.Mutex // guards what follows
	silent map[netip.Addr]bool
	down   bool                        // nobody listens
	lost   func(network string) bool   // whether a try is lost
	delay  func() time.Duration        // of an answer
	stuck  atomic.Int64                // what busy says
	other  func(network string) string // the token of who answers instead; empty: none; foreign: no agent
}

// foreign stands for the token of a process that is no agent, and refuses the query.
const foreign = "REFUSED"

func (a *simAgent) busy() time.Duration { return time.Duration(a.stuck.Load()) }

// set changes how the agent behaves from now on.
func (a *simAgent) set(change func(*simAgent)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
}

// mute has the agent answer at none of the addresses, but take what comes.
func (a *simAgent) mute(addrs ...netip.Addr) {
	a.set(func(a *simAgent) {
		a.silent = map[netip.Addr]bool{}
		for _, addr := range addrs {
			a.silent[addr] = true
		}
	})
}

// Dial has the signature of a Prober's.
func (a *simAgent) Dial(_ context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	silent := a.silent[to.Addr()] || a.lost != nil && a.lost(network)
	token, delay := a.token, time.Duration(0)
	if a.delay != nil {
		delay = a.delay()
	}
	if a.other != nil {
		if other := a.other(network); other != "" {
			token = other
		}
	}
	ours, theirs := net.Pipe()
	a.group.Go(func() { // ends when the prober closes its end
		defer func() { _ = ours.Close() }()
		answer(ours, network, token, silent, delay)
	})
	return theirs, nil
}

func answer(conn net.Conn, network, token string, silent bool, delay time.Duration) {
	buf := make([]byte, 600)
	n, err := conn.Read(buf)
	if err != nil {
		return
	}
	if silent {
		_, _ = io.Copy(io.Discard, conn)
		return
	}
	q := new(dns.Msg)
	raw := buf[:n]
	if network == "tcp" {
		raw = raw[2:]
	}
	if q.Unpack(raw) != nil || len(q.Question) != 1 || q.Question[0].Name != intercept.SelfName ||
		q.Question[0].Qtype != dns.TypeTXT || q.Question[0].Qclass != dns.ClassCHAOS {
		return
	}
	time.Sleep(delay)
	a := new(dns.Msg).SetReply(q)
	a.Answer = []dns.RR{&dns.TXT{
		Hdr: dns.RR_Header{Name: intercept.SelfName, Rrtype: dns.TypeTXT, Class: dns.ClassCHAOS}, Txt: []string{token},
	}}
	if token == foreign {
		a.Rcode, a.Answer = dns.RcodeRefused, nil
	}
	packed, err := a.Pack()
	if err != nil {
		return
	}
	if network == "tcp" {
		packed = append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...)
	}
	_, _ = conn.Write(packed)
}

// logLines is what was logged.
type logLines struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *logLines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// count is how many lines contain the text.
func (l *logLines) count(text string) int {
	lines := slices.Collect(strings.Lines(l.String()))
	return len(slices.DeleteFunc(lines, func(line string) bool { return !strings.Contains(line, text) }))
}

var errLocked = errors.New("another program holds the xtables lock")
