// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"context"
	"errors"
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

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

const (
	lease = 3 * time.Second
	renew = time.Second
)

var (
	addr4     = netip.MustParseAddr("169.254.20.10")
	addr6     = netip.MustParseAddr("fd00:20::10")
	fallback4 = netip.MustParseAddrPort("10.244.0.3:53")
	fallback6 = netip.MustParseAddrPort("[fd00:244::3]:53")
)

// nodeRules returns the rules of a dual-stack node.
func nodeRules(owner string) rules.Rules {
	return rules.Rules{
		Owner: owner, Mode: rules.LinkLocal, Addresses: []netip.Addr{addr4, addr6}, Port: 53,
		Fallback: []netip.AddrPort{fallback4, fallback6},
	}
}

// A harness is a node in virtual time: a fake kernel, an agent and its Keeper.
type harness struct {
	*intercept.Keeper
	t      *testing.T
	kernel *intercepttest.Fake
	agent  *fakeAgent
	log    *logBuffer
	stop   func()      // ends Run and waits for it
	over   func() bool // whether Run has returned
}

// run runs a test in a bubble. The Keeper runs and is started, unless prepare prevents it.
func run(t *testing.T, prepare func(*intercept.Config, *harness), test func(s *harness)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newHarness(t, intercepttest.NewFake(time.Now), "ours", prepare)
		s.Start()
		test(s)
		s.stop()
	})
}

// runHeld is run once the leases are held.
func runHeld(t *testing.T, prepare func(*intercept.Config, *harness), test func(s *harness)) {
	t.Helper()
	run(t, prepare, func(s *harness) {
		s.waitHeld()
		test(s)
	})
}

func newHarness(t *testing.T, kernel *intercepttest.Fake, owner string, prepare func(*intercept.Config, *harness)) *harness {
	t.Helper()
	s := &harness{t: t, kernel: kernel, agent: &fakeAgent{token: owner}, log: &logBuffer{}}
	prober := &intercept.Prober{Port: 53, Token: owner, Dial: s.agent.Dial}
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
		})
	}
	t.Cleanup(s.stop)
	return s
}

// decision returns where a pod's UDP packet to the address goes now.
func (s *harness) decision(a netip.Addr) intercepttest.Decision {
	return s.kernel.Route(intercepttest.Packet{Network: "udp", To: netip.AddrPortFrom(a, 53)}).Decision
}

// held reports whether the kernel holds the leases on all addresses, or on none.
func (s *harness) held() (all, none bool) {
	n := 0
	for _, a := range []netip.Addr{addr4, addr6} {
		if s.decision(a) == intercepttest.ToAgent {
			n++
		}
	}
	return n == 2, n == 0
}

// waitFor lets time pass until the condition is true, and returns the duration.
func (s *harness) waitFor(what string, condition func() bool) time.Duration {
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

func (s *harness) waitHeld() time.Duration {
	s.t.Helper()
	return s.waitFor("leased", func() bool { all, _ := s.held(); return all })
}

func (s *harness) waitLapsed() time.Duration {
	s.t.Helper()
	return s.waitFor("lapsed", func() bool { _, none := s.held(); return none })
}

// stays checks that a condition stays true for d.
func (s *harness) stays(what string, d time.Duration, condition func() bool) {
	s.t.Helper()
	for begun := time.Now(); time.Since(begun) < d; time.Sleep(20 * time.Millisecond) {
		synctest.Wait()
		if !condition() {
			s.t.Fatalf("no longer %s after %s\nstats: %+v\nlog: %s", what, time.Since(begun), s.Stats(), s.log)
		}
	}
}

func (s *harness) staysHeld(d time.Duration) {
	s.t.Helper()
	s.stays("leased", d, func() bool { all, _ := s.held(); return all })
}

func (s *harness) staysLapsed(d time.Duration) {
	s.t.Helper()
	s.stays("without a lease", d, func() bool { _, none := s.held(); return none })
}

// checkDuration fails the test if took exceeds limit.
func (s *harness) checkDuration(what string, took, limit time.Duration) {
	s.t.Helper()
	if took > limit {
		s.t.Errorf("%s took %s, want at most %s", what, took, limit)
	}
}

// A fakeAgent answers the self-query in memory.
type fakeAgent struct {
	token string

	mu     sync.Mutex // guards the fields below
	silent map[netip.Addr]bool
	down   bool                        // no process listens
	lost   func(network string) bool   // whether an attempt is lost
	delay  func() time.Duration        // of an answer
	stuck  atomic.Int64                // since when a reader hangs, in nanoseconds of Unix time; 0: none does
	other  func(network string) string // the token of another process that answers; empty: none; foreign: not an agent
}

// foreign is the token of a process that is not an agent and refuses the query.
const foreign = "REFUSED"

func (a *fakeAgent) busy() time.Duration {
	since := a.stuck.Load()
	if since == 0 {
		return 0
	}
	return time.Since(time.Unix(0, since))
}

// set changes the agent's behavior.
func (a *fakeAgent) set(change func(*fakeAgent)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
}

// silence makes the agent receive but not answer at these addresses.
func (a *fakeAgent) silence(addrs ...netip.Addr) {
	a.set(func(a *fakeAgent) {
		a.silent = map[netip.Addr]bool{}
		for _, addr := range addrs {
			a.silent[addr] = true
		}
	})
}

// Dial is the Dial of a Prober.
func (a *fakeAgent) Dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
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
	server := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
		switch {
		case silent || q.Name != intercept.SelfName || q.Type != dns.TypeTXT:
			return upstreamtest.Action{Drop: true}
		case token == foreign:
			return upstreamtest.Action{Delay: delay, Rcode: dns.RcodeRefused}
		}
		return upstreamtest.Action{Delay: delay, Raw: []upstreamtest.Raw{func(q []byte) []byte { // the name is in the question
			r := append(slices.Clone(q), 0xc0, 12, 0, byte(dns.TypeTXT), 0, dns.ClassCHAOS, 0, 0, 0, 0, 0, byte(1+len(token)), byte(len(token)))
			r[2], r[7] = r[2]|0x80, 1
			return append(r, token...)
		}}}
	})
	return upstreamtest.Network{to: server}.Dial(ctx, network, to)
}

// A logBuffer collects the log.
type logBuffer struct{ proctest.Output }

func (l *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// count returns how many lines contain the text.
func (l *logBuffer) count(text string) int {
	lines := slices.Collect(strings.Lines(l.String()))
	return len(slices.DeleteFunc(lines, func(line string) bool { return !strings.Contains(line, text) }))
}

var errLocked = errors.New("another program holds the xtables lock")
