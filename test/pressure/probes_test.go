// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
)

// TestProbesUnderLoad has an agent on one CPU do as much as it can, and far more than that asked of it: cold names and hot
// ones over UDP and TCP, connections to its admin server that idle, others that do not take what they asked for, walks
// through its full cache, and scrapes. Public reports describe what follows: the liveness probe fails, and the kubelet
// restarts a DNS server because it is busy. Here not one probe may fail.
func TestProbesUnderLoad(t *testing.T) {
	proctest.ReserveCPU(t)
	up := startSlowServer(t, time.Millisecond)
	a := start(t, settings{ownCPU: true, rest: fmt.Sprintf("forward: [{zone: ., to: [%q]}]\ncache: {size: 64Mi}\n", up)})
	fill(t, a)
	k := startKubelet(t, a)
	time.Sleep(time.Second)
	for _, p := range k.probes {
		p.forget(t, "idle")
	}

	crowd := startIdleConns(t, a, 200, 20)
	pages := startPageReaders(t, a, "/cache/top?n=1000", "/cache/top?by=size&n=1000", "/metrics", "/status")
	cold := startFlood(t, a.listen, asFastAsPossible)
	hot := startClients(t, clientsOptions{to: a.listen, rate: proctest.OrdinaryOrSoak(100_000, 200_000), suffix: "fill.test", name: func(i int) int { return i % hotNames }}, false)
	busy, from := a.Usage(t).CPU, time.Now()
	time.Sleep(proctest.OrdinaryOrSoak(5*time.Second, time.Minute))
	share := 100 * float64(a.Usage(t).CPU-busy) / float64(time.Since(from))
	proctest.Figure(t, "the agent took %.0f %% of a CPU", share)
	if share < minCPUShare && k.failures() > 0 {
		t.Skipf("%d probes failed, and the agent got no more than %.0f %% of a CPU: other programs on this machine take it all", k.failures(), share)
	}
	k.check(t, nil)
	end(cold)
	hot.end()
	proctest.Figure(t, "cold names: %s", cold)
	proctest.Figure(t, "hot names: %s", hot)
	proctest.Figure(t, "pages: %s", pages.end())
	proctest.Figure(t, "connections that idled: %d made anew", crowd.end()-220)
	if pages.good[0].Load() == 0 {
		t.Error("no walk through the cache came to an end")
	}
}

// fill fills the cache.
func fill(t *testing.T, a *agent) {
	t.Helper()
	c := startClients(t, clientsOptions{to: a.listen, rate: 30_000, suffix: "fill.test", name: func(i int) int { return i }, from: clientAddrs(64), ports: 4}, false)
	time.Sleep(proctest.OrdinaryOrSoak(3*time.Second, 10*time.Second))
	c.end()
	proctest.Figure(t, "to fill the cache: %s", c)
}

// forget logs what a probe took so far and begins anew.
func (p *kubeletProbe) forget(t *testing.T, when string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	proctest.Figure(t, "%s, %s: %d probes, %d failed", p.path, when, len(p.took), len(p.failed))
	p.took = nil
}

// A idleConns keeps connections to an admin server open and does next to nothing with them. One that is closed is made anew.
type idleConns struct {
	made    atomic.Int64
	quit    chan struct{}
	running sync.WaitGroup
}

// startIdleConns has so many connections idle, and so many more ask for /metrics and not take it. They come from one address,
// as those of a pod do.
func startIdleConns(t *testing.T, a *agent, idle, slow int) *idleConns {
	t.Helper()
	c := &idleConns{quit: make(chan struct{})}
	for i := range idle + slow {
		request := ""
		switch {
		case i >= idle:
			request = strings.Repeat("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 50)
		case i%3 == 1:
			request = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
		case i%3 == 2:
			request = "GET /livez HTTP/1.1\r\nHo"
		}
		c.running.Go(func() {
			for c.idle(a.admin, request) {
			}
		})
	}
	t.Cleanup(func() { c.end() })
	return c
}

// idle makes one connection, sends a request and waits for its end. It reports whether to make another.
func (c *idleConns) idle(to netip.AddrPort, request string) bool {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: time.Second}
	conn, err := d.Dial("tcp", to.String())
	if err == nil {
		c.made.Add(1)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.WriteString(conn, request)
			buf := make([]byte, 1)
			for range 1000 { // slowly
				if _, err := conn.Read(buf); err != nil {
					return
				}
				select {
				case <-c.quit:
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		}()
		select {
		case <-c.quit:
		case <-ended:
		}
		_ = conn.Close()
		<-ended
	}
	select {
	case <-c.quit:
		return false
	case <-time.After(100 * time.Millisecond):
		return true
	}
}

// end closes the connections and says how many there were. It may be called twice.
func (c *idleConns) end() int64 {
	select {
	case <-c.quit:
	default:
		close(c.quit)
	}
	c.running.Wait()
	return c.made.Load()
}

// pageReaders ask for pages repeatedly.
type pageReaders struct {
	paths   []string
	good    []atomic.Int64 // by path
	bad     []atomic.Int64
	quit    chan struct{}
	running sync.WaitGroup
}

func startPageReaders(t *testing.T, a *agent, paths ...string) *pageReaders {
	t.Helper()
	r := &pageReaders{paths: paths, good: make([]atomic.Int64, len(paths)), bad: make([]atomic.Int64, len(paths)), quit: make(chan struct{})}
	for i, path := range paths {
		r.running.Go(func() {
			for {
				select {
				case <-r.quit:
					return
				case <-time.After(10 * time.Millisecond):
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				_, err := proctest.OverSocket(ctx, a.socket, http.MethodGet, path)
				cancel()
				if err == nil {
					r.good[i].Add(1)
				} else {
					r.bad[i].Add(1)
				}
			}
		})
	}
	t.Cleanup(func() { r.end() })
	return r
}

// end ends the reading and sums up. It may be called twice.
func (r *pageReaders) end() string {
	select {
	case <-r.quit:
	default:
		close(r.quit)
	}
	r.running.Wait()
	var parts []string
	for i, path := range r.paths {
		parts = append(parts, fmt.Sprintf("%s %d and %d not", path, r.good[i].Load(), r.bad[i].Load()))
	}
	return strings.Join(parts, ", ")
}
