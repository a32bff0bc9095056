// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// agentProcess is the environment variable that makes this test binary an agent. Its
// value is the fallback.
const agentProcess = "NODE_CACHE_TEST_AGENT"

// traceProcess is the environment variable that makes it trace packets until it is killed.
const traceProcess = "NODE_CACHE_TEST_TRACE"

func TestMain(m *testing.M) {
	if fallback := os.Getenv(agentProcess); fallback != "" {
		if err := runAgent(fallback); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if src := os.Getenv(traceProcess); src != "" {
		if _, err := NewTracer(netip.MustParseAddr(src)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("ready")
		time.Sleep(time.Hour)
	}
	code := m.Run()
	if left := leakedGoroutines(); left != "" {
		fmt.Fprintln(os.Stderr, "goroutines of this package are left:", left)
		code = 1
	}
	os.Exit(code)
}

// leakedGoroutines returns the stacks of goroutines that still use a Backend.
func leakedGoroutines() string {
	stacks := ""
	for range 100 { // goroutines that are ending need some time
		buf := make([]byte, 1<<20)
		stacks = string(buf[:runtime.Stack(buf, true)])
		if !strings.Contains(stacks, "nftables.(*Backend)") && !strings.Contains(stacks, "nftables.(*socket)") {
			return ""
		}
		time.Sleep(10 * time.Millisecond)
	}
	return stacks
}

// runAgent answers at the agent's addresses and holds their leases until it is killed.
func runAgent(fallback string) error {
	r := linkLocalRules()
	r.Owner = "child"
	for target := range strings.SplitSeq(fallback, ",") {
		r.Fallback = append(r.Fallback, netip.MustParseAddrPort(target))
	}
	for _, a := range r.Addresses {
		conn, err := net.ListenPacket("udp", netip.AddrPortFrom(a, r.Port).String())
		if err != nil {
			return err
		}
		server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			a := new(dns.Msg).SetReply(q)
			a.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{agentName}}}
			_ = w.WriteMsg(a)
		})}
		go func() { _ = server.ActivateAndServe() }()
	}
	b, err := New(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	if _, err := b.Apply(context.Background(), r); err != nil {
		return err
	}
	for first := true; ; first = false {
		if err := b.Renew(context.Background(), keys(r), time.Hour); err != nil {
			return err
		}
		if first {
			fmt.Println("ready")
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// startAgent starts an agent process on the node and waits until it holds its leases.
func (s *harness) startAgent(t *testing.T, fallback []netip.AddrPort) *exec.Cmd {
	t.Helper()
	targets := make([]string, len(fallback))
	for i, f := range fallback {
		targets[i] = f.String()
	}
	return startProcess(t, s.Node, agentProcess+"="+strings.Join(targets, ","))
}

// startProcess starts this test binary on a host with an environment variable, and waits until it is ready.
func startProcess(t *testing.T, h *nodetest.Host, variable string) *exec.Cmd {
	t.Helper()
	cmd := h.Command(context.Background(), os.Args[0])
	cmd.Env = append(cmd.Env, variable)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = nil // it must not end with the thread that starts it: TestMissingCapability ends some
	out, err := cmd.StdoutPipe()
	assert.NoError(t, err)
	assert.NoError(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the process printed %q, %v", line, err)
	}
	return cmd
}

// A query is a query with its outcome.
type query struct {
	begin, end time.Time
	server     string
	err        error
	again      string // the server that answered a repetition, if the query was lost
}

// queriesPerSecond is the load of the pods while the agent is killed.
const queriesPerSecond = 2000

// TestKilled kills an agent that holds a lease of an hour, under load. The fallback gets
// all queries as soon as the kernel has ended the process.
func TestKilled(t *testing.T) {
	t.Parallel()
	s := newHarness(t, rules.Rules{})
	for _, a := range []netip.Addr{agent4(), agent6()} {
		assert.NoError(t, s.Node.AddAddress(a))
	}
	agent := s.startAgent(t, s.central())

	var (
		mu   sync.Mutex
		seen []query
		wg   sync.WaitGroup
	)
	ask := func(i int) {
		begin := time.Now()
		pod, to := s.Pods[i/2%2], netip.AddrPortFrom([]netip.Addr{agent4(), agent6()}[i%2], dnsPort)
		server, err := nodetest.Ask(pod, to, "udp")
		o := query{begin: begin, end: time.Now(), server: server, err: err}
		if err != nil {
			o.again, _ = nodetest.Ask(pod, to, "udp")
		}
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, o)
	}
	var killed, ended time.Time
	ticks := time.NewTicker(time.Second / queriesPerSecond)
	defer ticks.Stop()
	for i := range 2 * queriesPerSecond { // without waiting for the last answer
		if i == queriesPerSecond {
			killed = time.Now()
			assert.NoError(t, agent.Process.Kill())
			_, _ = agent.Process.Wait() // the kernel closes the sockets of a process before its end
			ended = time.Now()
		}
		<-ticks.C
		wg.Go(func() { ask(i) })
	}
	wg.Wait()

	var first, lastBad time.Duration
	counts := map[string]int{}
	for _, o := range seen {
		when := "before"
		switch {
		case o.end.Before(killed):
		case !o.begin.After(ended): // sent before or after the end
			when = "around"
		default:
			when = "after"
			if o.server == centralName && (first == 0 || o.begin.Sub(killed) < first) {
				first = o.begin.Sub(killed)
			}
			// On a busy host one query may be lost at any time. If the lease stayed, all would be.
			if o.server != centralName && o.again != centralName {
				lastBad = max(lastBad, o.begin.Sub(killed))
			}
		}
		if o.err != nil {
			counts[when+" lost"]++
		} else {
			counts[when+" "+o.server]++
		}
	}
	t.Logf("%v; the process ended %v after the kill; the first query that the fallback answered began at %v, the last that it did not at %v", counts, ended.Sub(killed), first, lastBad)
	if counts["before central"] > 0 || counts["before agent"] == 0 || first == 0 {
		t.Error("the lease did not hold before, or the fallback did not answer after")
	}
	if lastBad > 0 {
		t.Error("a lease of an hour outlived its process")
	}
	state, err := s.backend.State(t.Context())
	if err != nil || len(state.Leases) > 0 || state.Owner != "child" || len(state.Fallback) != 2 {
		t.Errorf("State: %+v, %v", state, err)
	}
}
