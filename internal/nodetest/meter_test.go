// SPDX-License-Identifier: Apache-2.0

package nodetest_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
)

func TestMeter(t *testing.T) {
	t.Parallel()
	network := nodetest.Start(t, nodetest.Options{Pods: 1})
	addr := netip.AddrPortFrom(network.Upstream.IPv6, 53)
	first := serve(t, network.Upstream, addr, "first")
	m, err := nodetest.StartMeter(nodetest.MeterConfig{
		Host: network.Pods[0], Target: addr, Names: 3, Timeout: 300 * time.Millisecond,
		Loads: []nodetest.Load{
			{Network: "udp", Rate: 1000},
			{Network: "udp", Rate: 200, Fresh: true},
			{Network: "tcp", Rate: 50},
			{Network: "tcp", Rate: 50, Fresh: true},
		},
	})
	assert.NoError(t, err)
	began := time.Now()
	if _, ok := m.Await("first", began, 5*time.Second); !ok {
		t.Fatal("the first server answers no query")
	}
	time.Sleep(200 * time.Millisecond)
	paused := time.Now()
	first.Pause(true)
	silent := time.Now() // from here on at the latest
	time.Sleep(400 * time.Millisecond)
	closed := time.Now()
	first.Close()
	time.Sleep(100 * time.Millisecond)
	second := time.Now()
	serve(t, network.Upstream, addr, "second")
	if at, ok := m.Await("second", second, 5*time.Second); !ok || at.Before(second) {
		t.Fatalf("the second server answers first at %s, %t", at, ok)
	}
	time.Sleep(400 * time.Millisecond)
	r := m.Stop()
	t.Log(r)
	for load := range 4 {
		part := r.Of(load)
		t.Logf("load %d: %s", load, part)
		if by := part.By(); by["first"] == 0 || by["second"] == 0 || len(by) != 2 {
			t.Errorf("load %d: answered by %v; want both servers", load, by)
		}
		at, ok := m.FirstBy(load, "second", second)
		if want, wantOK := part.FirstBy("second", second); at != want || ok != wantOK {
			t.Errorf("load %d: first answered by the second server at %s, %t; the report says %s, %t", load, at, ok, want, wantOK)
		}
		if part.Between(began, paused.Add(-50*time.Millisecond)).Lost() != 0 {
			t.Errorf("load %d: lost while a server was there: %s", load, part.Between(began, paused))
		}
		if part.Between(paused, closed).Lost() == 0 {
			t.Errorf("load %d: a paused server answered all", load)
		}
		// The kernel rate-limits ICMP errors, so few refusals over UDP are seen.
		if load >= 2 && part.Between(paused, second).Count(nodetest.Refused) == 0 {
			t.Errorf("load %d: nothing was refused: %s", load, part.Between(paused, second))
		}
	}
	if n := r.Of(2).Count(nodetest.Lost); n < 1 || n > 2 {
		t.Errorf("%d queries lost over one session; want the one that waited when the server was paused", n)
	}
	gap := r.LongestGap()
	if gap < second.Sub(silent)-50*time.Millisecond || gap > second.Sub(paused)+time.Second {
		t.Errorf("longest gap %s; the server was away for %s", gap, second.Sub(paused))
	}
	if at, ok := r.LastLost(); !ok || at.Before(closed) || at.After(second.Add(500*time.Millisecond)) {
		t.Errorf("last lost %s after the second server came, %t", at.Sub(second), ok)
	}
}

func serve(t *testing.T, h *nodetest.Host, addr netip.AddrPort, name string) *nodetest.Server {
	t.Helper()
	s, err := nodetest.Serve(h, addr, name)
	assert.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}
