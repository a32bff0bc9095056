// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// addrL is the last resort.
var addrL = netip.MustParseAddrPort("10.96.0.10:53")

// A harness has the servers A, B, C and L in memory. Each answers with its own address after a millisecond, until the
// test changes it.
type harness struct {
	a, b, c, l *upstreamtest.Server
	servers    upstreamtest.Network

	mu   sync.Mutex // guards dial
	dial map[netip.AddrPort]error

	dialTCP error // of all connections, set before the first one
}

var errNoAnswer = errors.New("no answer")

func healthy(address string) upstreamtest.Script {
	return upstreamtest.Always(after(time.Millisecond, one(address)))
}

func newHarness() *harness {
	h := &harness{
		a: upstreamtest.New(healthy("192.0.2.10")), b: upstreamtest.New(healthy("192.0.2.20")),
		c: upstreamtest.New(healthy("192.0.2.30")), l: upstreamtest.New(healthy("192.0.2.99")),
		dial: map[netip.AddrPort]error{},
	}
	h.servers = upstreamtest.Network{addrA: h.a, addrB: h.b, addrC: h.c, addrL: h.l}
	return h
}

func (h *harness) Dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	h.mu.Lock()
	err := h.dial[addr]
	h.mu.Unlock()
	if network == "tcp" && err == nil {
		err = h.dialTCP
	}
	switch {
	case errors.Is(err, errNoAnswer):
		<-ctx.Done()
		return nil, ctx.Err()
	case err != nil:
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return h.servers.Dial(ctx, network, addr)
}

func (h *harness) set(addr netip.AddrPort, script upstreamtest.Script, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.servers[addr].SetScript(script)
	h.dial[addr] = err
}

// vanish makes a server stop answering without closing its connections.
func (h *harness) vanish(addr netip.AddrPort) {
	h.set(addr, upstreamtest.Always(upstreamtest.Action{Drop: true}), errNoAnswer)
}

// end ends the server process: its connections close with the next query, and new ones are refused.
func (h *harness) end(addr netip.AddrPort) {
	h.set(addr, upstreamtest.Always(upstreamtest.Action{Close: true}), syscall.ECONNREFUSED)
}

// pool makes a pool of the Endpoints in the harness.
func (h *harness) pool(t *testing.T, e *upstream.Endpoints) *upstream.Pool {
	t.Helper()
	p := newPool(t, upstream.Config{Endpoints: e, Dial: h.Dial})
	run(t, p)
	return p
}

func list(addrs ...netip.AddrPort) []upstream.Server {
	servers := make([]upstream.Server, 0, len(addrs))
	for _, addr := range addrs {
		servers = append(servers, upstream.Server{Addr: addr})
	}
	return servers
}

func endpoints(ready, last []upstream.Server) *upstream.Endpoints {
	e := new(upstream.Endpoints)
	e.Set(ready, last)
	return e
}

// A load is a query every five milliseconds.
type load struct {
	answers map[string]int
	late    int           // took longer than 10 ms
	longest time.Duration // of all
}

// during runs a load for the time and waits for its last answer.
func during(t *testing.T, p *upstream.Pool, long time.Duration) load {
	t.Helper()
	var (
		mu    sync.Mutex // guards sum
		sum   = load{answers: map[string]int{}}
		group sync.WaitGroup
	)
	for range long / (5 * time.Millisecond) {
		group.Go(func() {
			start := time.Now()
			answer := ask(t, p)
			took := time.Since(start)
			mu.Lock()
			defer mu.Unlock()
			sum.answers[answer]++
			sum.longest = max(sum.longest, took)
			if took > 10*time.Millisecond {
				sum.late++
			}
		})
		time.Sleep(5 * time.Millisecond)
	}
	group.Wait()
	return sum
}

// only fails if there was anything but answers of these servers.
func (l load) only(t *testing.T, phase string, want ...string) {
	t.Helper()
	for answer, n := range l.answers {
		if !strings.Contains(strings.Join(want, " "), answer) {
			t.Errorf("%s: %q %d times, want only %v", phase, answer, n, want)
		}
	}
}
