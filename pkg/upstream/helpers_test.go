// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Servers in memory.
var (
	addrA = netip.MustParseAddrPort("192.0.2.1:53")
	addrB = netip.MustParseAddrPort("192.0.2.2:53")
	addrC = netip.MustParseAddrPort("192.0.2.3:53")
)

// TestMain fails if goroutines are left after the last test.
func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	if flag.Lookup("test.fuzz").Value.String() != "" {
		os.Exit(code) // the fuzzer keeps its own goroutines
	}
	for looks := 0; runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if looks++; looks == 500 { // not a deadline, which a machine that was stopped in between has passed
			fmt.Fprintf(os.Stderr, "goroutines left: %d before, %d after\n", before, runtime.NumGoroutine())
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			code = 1
			break
		}
	}
	os.Exit(code)
}

// one answers every question for www.example. with the address.
func one(address string) upstreamtest.Action {
	return upstreamtest.Action{Records: []string{"www.example. 60 IN A " + address}}
}

// after delays an action.
func after(d time.Duration, a upstreamtest.Action) upstreamtest.Action {
	a.Delay = d
	return a
}

// rcode answers with a response code and, if requested, an OPT record.
func rcode(code int) upstreamtest.Action { return upstreamtest.Action{Rcode: code} }

func target(network string, addr netip.AddrPort) upstream.Target {
	return upstream.Target{Network: network, Addr: addr}
}

// memory runs a pool with servers in memory, all over network.
func memory(t *testing.T, network string, net upstreamtest.Network, addrs ...netip.AddrPort) *upstream.Pool {
	t.Helper()
	cfg := upstream.Config{Dial: net.Dial}
	for _, addr := range addrs {
		cfg.Targets = append(cfg.Targets, target(network, addr))
	}
	p := newPool(t, cfg)
	run(t, p)
	return p
}

func newPool(tb testing.TB, cfg upstream.Config) *upstream.Pool {
	tb.Helper()
	p, err := upstream.New(cfg)
	assert.NoError(tb, err)
	return p
}

// run runs the pool until the test ends and joins it.
func run(tb testing.TB, p *upstream.Pool) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Errorf("Run: %v", err)
		}
	})
}

// ask asks for www.example. within 4.5 s. It returns the first address of the answer, or the failure in a few words.
func ask(tb testing.TB, p *upstream.Pool) string {
	tb.Helper()
	return askName(tb, p, "www.example.")
}

func askName(tb testing.TB, p *upstream.Pool, name string) string {
	tb.Helper()
	r, err := exchange(p, upstreamtest.Question(tb, name), 4500*time.Millisecond)
	return outcome(tb, r, err)
}

// askFor is ask with another timeout.
func askFor(tb testing.TB, p *upstream.Pool, long time.Duration) string {
	tb.Helper()
	r, err := exchange(p, upstreamtest.Question(tb, "www.example."), long)
	return outcome(tb, r, err)
}

// A receiver receives the answer to one query.
type receiver struct {
	answer []byte
	server string
	err    error
	done   chan struct{}
}

func (r *receiver) Answered(answer *wire.Message, err error, _ *wire.SendBatch) {
	if r.err = err; err == nil {
		r.answer, r.server = bytes.Clone(answer.Raw), answer.Server
	}
	close(r.done)
}

// exchange asks and waits for the answer.
func exchange(p *upstream.Pool, q []byte, long time.Duration) ([]byte, error) {
	r := receive(p, q, long)
	return r.answer, r.err
}

// askBy is ask, and returns the upstream that answered, or that failed last and why.
func askBy(tb testing.TB, p *upstream.Pool) (got, by string) {
	tb.Helper()
	r := receive(p, upstreamtest.Question(tb, "www.example."), 4500*time.Millisecond)
	by = r.server
	if f, ok := errors.AsType[*upstream.Failure](r.err); ok {
		server, cause := f.Details()
		by = strings.TrimSpace(server + " " + cause)
	}
	return outcome(tb, r.answer, r.err), by
}

func receive(p *upstream.Pool, q []byte, long time.Duration) *receiver {
	r := receiver{done: make(chan struct{})}
	var batch wire.SendBatch
	p.Ask(bytes.Clone(q), time.Now().Add(long), &r, &batch)
	batch.Flush()
	<-r.done
	return &r
}

func outcome(tb testing.TB, r []byte, err error) string {
	tb.Helper()
	if err != nil {
		var f *upstream.Failure
		if !errors.As(err, &f) {
			tb.Errorf("error %v (%T), want a *Failure", err, err)
			return err.Error()
		}
		if f.Reason == upstream.Rcode {
			return "rcode " + dns.RcodeToString[int(f.Rcode)]
		}
		return f.Reason.String()
	}
	var m dns.Msg
	if err := m.Unpack(r); err != nil {
		tb.Errorf("unpacking the answer: %v", err)
		return ""
	}
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			return a.A.String()
		}
	}
	return "empty " + dns.RcodeToString[m.Rcode]
}

// failures returns the causes counted for the pool's first server, as "cause=n …".
func failures(p *upstream.Pool) string {
	var out []string
	for cause, n := range p.Stats().Servers[0].Failures {
		if n > 0 {
			out = append(out, fmt.Sprintf("%s=%d", upstream.Cause(cause), n))
		}
	}
	return strings.Join(out, " ")
}

// servers lists the pool's upstreams.
func servers(p *upstream.Pool) []string {
	list := p.Stats().Servers
	if len(list) == 0 {
		return nil
	}
	out := make([]string, 0, len(list))
	for _, s := range list {
		out = append(out, s.Network+" "+s.Addr.String())
	}
	return out
}

// logger returns a log and a function that returns its lines.
func logger() (log *slog.Logger, lines func() []string) {
	out := new(proctest.Output)
	h := slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	return slog.New(h), func() (all []string) {
		for line := range strings.Lines(out.String()) {
			all = append(all, strings.NewReplacer("level=", "", "msg=", "", `"`, "").Replace(strings.TrimSpace(line)))
		}
		return all
	}
}
