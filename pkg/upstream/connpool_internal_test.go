// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

var peer = netip.MustParseAddrPort("192.0.2.1:853")

// The queries of a batch share a connection and get their own answers, even out of order.
func TestConnPoolOutOfOrder(t *testing.T) {
	t.Parallel()
	for _, split := range []int{0, 1, 7} {
		t.Run(fmt.Sprintf("in pieces of %d", split), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
					a := answerIndex(q)
					a.Split = split
					return a
				})
				h := newHarness(t, Target{Network: "tcp", Addr: peer}, 1, upstreamtest.Network{peer: s}.Dial)
				for range 2 {
					var batch wire.SendBatch
					var all []*pendingAnswer
					for n := range 50 {
						all = append(all, h.queryInBatch(t, fmt.Sprintf("n%d.example.", n), &batch))
					}
					batch.Flush()
					for n, p := range all {
						if got, want := p.wait(5e9), fmt.Sprintf("192.0.2.%d", n); got != want {
							t.Errorf("answer %q, want %q", got, want)
						}
					}
				}
				assert.Equal(t, "connections", 1, s.Connections())
			})
		})
	}
}

// The same over real sockets, with TCP, TLS and HTTPS. The user timeout is set on sockets of a custom Dial too.
func TestTransportsOverSockets(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp", "tls", "https"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			s := upstreamtest.New(answerIndex)
			target := Target{Network: network, Addr: s.Listen(t)}
			if network != "tcp" {
				target.CAFile = secure(t, s, "127.0.0.1")
			}
			dialled := make(chan *net.TCPConn, 16)
			h := newHarness(t, target, 2, func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr.String())
				if err == nil {
					dialled <- conn.(*net.TCPConn)
				}
				return conn, err
			})
			var all []*pendingAnswer
			for n := range 50 {
				all = append(all, h.query(t, fmt.Sprintf("n%d.example.", n)))
			}
			for n, p := range all {
				if got, want := p.wait(10e9), fmt.Sprintf("192.0.2.%d", n); got != want {
					t.Errorf("answer %q, want %q", got, want)
				}
			}
			withFD(t, <-dialled, func(fd int) error {
				limit, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
				assert.Equal(t, "TCP_USER_TIMEOUT", userTimeout, limit)
				return err
			})
		})
	}
}

// If the peer closes a connection, its queries move to another one at once and without an error.
func TestConnPoolQueriesMove(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp", "tls"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(answerOrRefuse)
				target := Target{Network: network, Addr: peer}
				if network == "tls" {
					target.CAFile = secure(t, s, peer.Addr().String())
				}
				h := newHarness(t, target, 2, upstreamtest.Network{peer: s}.Dial)
				h.ask(t)
				synctest.Wait()
				s.SetScript(func(q upstreamtest.Query) upstreamtest.Action {
					if q.Conn <= 2 {
						return upstreamtest.Action{Close: true, Delay: 100 * time.Millisecond}
					}
					return answerOrRefuse(q)
				})
				start := time.Now()
				var all []*pendingAnswer
				for range 200 {
					all = append(all, h.query(t, "www.example."))
				}
				for _, p := range all {
					assert.Equal(t, "answer", "192.0.2.10", p.wait(1e9))
				}
				if took := time.Since(start); took != 100*time.Millisecond {
					t.Errorf("it took %v, want no longer than until the connections were closed, 100ms", took)
				}
			})
		})
	}
}

// slowDial connects with a slow handshake.
func slowDial(servers upstreamtest.Network, long time.Duration) dialFunc {
	return func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
		time.Sleep(long)
		return servers.Dial(ctx, network, addr)
	}
}

// Connections that age are replaced before a query has to wait, and lose none.
func TestConnPoolConnAge(t *testing.T) {
	t.Parallel()
	for _, connections := range []int{1, 3} {
		t.Run(fmt.Sprint(connections), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
					a := answerOrRefuse(q)
					a.Delay = 150 * time.Millisecond // some queries are always pending
					return a
				})
				h := newHarness(t, Target{Network: "tcp", Addr: peer}, connections, slowDial(upstreamtest.Network{peer: s}, time.Second))
				h.ask(t)
				time.Sleep(2 * time.Second)
				const minutes = 10
				var group sync.WaitGroup
				most := 0
				for range minutes * 60 * 20 {
					p := h.query(t, "www.example.")
					group.Go(func() {
						assert.Equal(t, "answer", "192.0.2.10", p.wait(200*time.Millisecond))
					})
					open, _ := h.openCount()
					most = max(most, open)
					time.Sleep(50 * time.Millisecond)
				}
				group.Wait()
				_, opened := h.openCount()
				if low, high := minutes*60/90*connections, minutes*connections+connections; int(opened) < low || int(opened) > high {
					t.Errorf("%d connections in %d minutes, want %d to %d", opened, minutes, low, high)
				}
				if most > 2*connections {
					t.Errorf("%d connections at once, want at most two for each of %d", most, connections)
				}
			})
		})
	}
}

// After the first answer all connections are kept open while queries come. The TCP fallback of UDP opens none in
// advance.
func TestConnPoolPreopen(t *testing.T) {
	t.Parallel()
	for network, want := range map[string]int{"tcp": 4, "udp": 1} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(answerOrRefuse)
				var mu sync.Mutex // guards theirs
				var theirs []net.Conn
				h := newHarness(t, Target{Network: network, Addr: peer}, 4, func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
					conn, err := upstreamtest.Network{peer: s}.Dial(ctx, network, addr)
					mu.Lock()
					defer mu.Unlock()
					theirs = append(theirs, conn)
					return conn, err
				})
				open := func(when string, want int) {
					t.Helper()
					synctest.Wait()
					if now, _ := h.openCount(); now != want {
						t.Errorf("%s %d are open, want %d", when, now, want)
					}
				}
				open("before the first query", 0)
				for range 5 {
					h.ask(t)
					open("after a query", want)
					time.Sleep(9 * time.Second)
				}
				h.ask(t)
				mu.Lock()
				all := slices.Clone(theirs)
				mu.Unlock()
				for _, conn := range all {
					_ = conn.Close() // like the peer
				}
				if network == "udp" {
					want = 0
				}
				open("after they were closed", want)
				time.Sleep(idleTimeout)
				open("without a query for long", 0)
			})
		})
	}
}

// An upstream that closes every connection does not cause a storm of new ones.
func TestConnPoolReconnectStorm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Close: true}))
		h := newHarness(t, Target{Network: "tcp", Addr: peer}, 4, upstreamtest.Network{peer: s}.Dial)
		outcomes := map[string]int{}
		const seconds = 10
		for range seconds * 100 {
			outcomes[h.ask(t)]++
			outcomes[h.ask(t)]++
			time.Sleep(10 * time.Millisecond)
		}
		if got, most := s.Connections(), openBurst+seconds*int(time.Second/openInterval)+1; got < openBurst || got > most {
			t.Errorf("%d connections, want %d to %d", got, openBurst, most)
		}
		if outcomes["network"]+outcomes["refused: network"] != 2*seconds*100 {
			t.Errorf("outcomes %v, want network errors only", outcomes)
		}
		if h.transport.(*connPool).lastError() == nil {
			t.Error("no last error, want what ended the connections")
		}
		s.SetScript(answerOrRefuse)
		time.Sleep(openInterval)
		if got := h.ask(t); got != "192.0.2.10" || h.transport.(*connPool).lastError() != nil {
			t.Errorf("afterwards %q, last error %v, want an answer and none", got, h.transport.(*connPool).lastError())
		}
	})
}
