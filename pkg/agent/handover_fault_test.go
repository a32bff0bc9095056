// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/handover"
)

// TestHandOverOfUnusedAddress takes over from an agent that has another address: an agent that does not read its
// socket does not keep it open.
func TestHandOverOfUnusedAddress(t *testing.T) {
	t.Parallel()
	cfg := handingConfig(t)
	kept, other := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	cfg.Listen.Addresses = []netip.Addr{kept, other}
	_, stopFirst := startHanding(t, newFakeHost(), cfg)
	cfg.Listen.Addresses = []netip.Addr{kept}
	second, _ := startHanding(t, newFakeHost(), cfg)
	if err := stopFirst(); err != nil {
		t.Errorf("the first one ended with %v", err)
	}
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(other, cfg.Listen.Port)))
	assert.NoError(t, err)
	_ = conn.Close()
	if !answers(t, second) {
		t.Error("no agent answers")
	}
}

// TestHandOverStoppedAfterLink stops the next agent when it has set up the link: it writes no rules, and the first one sets up
// its own again and goes on to serve.
func TestHandOverStoppedAfterLink(t *testing.T) {
	t.Parallel()
	cfg := handingConfig(t)
	m1, m2 := newFakeHost(), newFakeHost()
	m2.kernel = m1.kernel
	first, _ := startHanding(t, m1, cfg)
	var retaken atomic.Bool
	m1.mu.Lock()
	m1.do["link"] = func() { retaken.Store(true) }
	m1.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m2.do["link"] = cancel
	second := agentOnHost(t, m2, cfg)
	assert.NoError(t, second.Listen(ctx))
	if err := second.Run(ctx); err != nil {
		t.Errorf("the second one ended with %v", err)
	}
	if slices.Contains(m2.lines(), "rules") {
		t.Errorf("it wrote rules: %v", m2.lines())
	}
	until(t, "the first one sets up its link", retaken.Load)
	until(t, "the first one counts it as abandoned", func() bool { return first.handover.stats().Abandoned == 1 })
	if st := first.handover.stats(); first.notReady() != nil || !answers(t, first) || st.Given {
		t.Errorf("the first one: %q, %+v", notAnswered(first), st)
	}
}

// TestHandOverEndsSoon stops the next agent as soon as it serves: it answers until the lease that the first one renewed
// has expired, because that lease leads queries to it and it cannot release it.
func TestHandOverEndsSoon(t *testing.T) {
	t.Parallel()
	cfg := handingConfig(t)
	m1, m2 := newFakeHost(), newFakeHost()
	m2.kernel = m1.kernel
	first, _ := startHanding(t, m1, cfg)
	_, stop := startHanding(t, m2, cfg)
	lapse := first.handover.recorder.Stats().GivenAt.Add(cfg.Intercept.Lease)
	if err := stop(); err != nil {
		t.Errorf("the second one ended with %v", err)
	}
	if early := time.Until(lapse); early > 0 {
		t.Errorf("it has ended %s before that, %v", early, lapse)
	}
}

// TestHandOverSocketGoneForATime removes the socket for a time while an agent waits for the addresses: the agent keeps
// waiting.
func TestHandOverSocketGoneForATime(t *testing.T) {
	t.Parallel()
	cfg := handingConfig(t)
	startHanding(t, newFakeHost(), cfg)
	busy := agentOnHost(t, newFakeHost(), cfg) // never listens
	other := agentOnHost(t, newFakeHost(), cfg)
	if got := other.handover.stats(); got.Taken != handover.OutcomeRefused || !strings.Contains(got.Why, handover.ReasonBusy) {
		t.Errorf("while another one is about to take over: %+v", got)
	}
	listening := make(chan error, 1)
	go func() { listening <- other.Listen(t.Context()) }()
	until(t, "it waits", func() bool { return other.handover.recorder.Stats().WaitsFor != "" })
	assert.NoError(t, os.Remove(cfg.Handover.Socket))
	until(t, "the first one listens again", func() bool {
		_, err := os.Lstat(cfg.Handover.Socket)
		return err == nil
	})
	busy.handover.Close()
	assert.NoError(t, <-listening)
	if !other.handover.takesOver() {
		t.Error("it has no predecessor")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // stopped before it serves
	if err := other.Run(ctx); err != nil {
		t.Errorf("one that was stopped before serving ended with %v", err)
	}
}

// TestHandOverWaitsForOtherAddress waits for an address that conflicts with its own, and does not request sockets again
// and again that it cannot use.
func TestHandOverWaitsForOtherAddress(t *testing.T) {
	t.Parallel()
	cfg := handingConfig(t)
	everywhere := cfg
	everywhere.Listen.Addresses = []netip.Addr{netip.IPv4Unspecified()}
	everywhere.Interface.Manage, everywhere.Intercept = false, config.Default(config.Agent).Intercept
	first, _ := startHanding(t, newFakeHost(), everywhere)
	second := agentOnHost(t, newFakeHost(), cfg)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := second.Listen(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Listen: %v", err)
	}
	if st := first.handover.stats(); st.Asked > 2 {
		t.Errorf("the first one was asked %d times", st.Asked)
	}
}
