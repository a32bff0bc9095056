// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
)

// The machine is suspended for 20 s (to memory, ended by its clock), then its time of day is set a day ahead. TTLs
// go on in the suspend and are not touched by the clock, and both leases are held again.
func TestSuspendAndClockJump(t *testing.T) {
	const alarm, state, kind, asleep = "/sys/class/rtc/rtc0/wakealarm", "/sys/power/state", "/sys/power/mem_sleep", 20
	states, err := os.ReadFile(state)
	kinds, noKinds := os.ReadFile(kind) // QEMU's machine for arm64 has s2idle only
	if _, noAlarm := os.Stat(alarm); errors.Join(err, noKinds, noAlarm) != nil || !strings.Contains(string(states), "mem") || !strings.Contains(string(kinds), "deep") {
		t.Skipf("this machine cannot be suspended for a time: %v, %q, %q", errors.Join(err, noKinds, noAlarm), states, kinds)
	}
	n := newNode(t)
	n.start(t)
	before, start := n.ttl(t), time.Now()

	var boot, awake [2]unix.Timespec
	clocks := func(i int) {
		_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot[i])
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake[i])
	}
	clocks(0)
	for _, set := range [][2]string{{alarm, "0"}, {alarm, fmt.Sprintf("+%d", asleep)}, {kind, "deep"}, {state, "mem"}} {
		if err := os.WriteFile(set[0], []byte(set[1]), 0); err != nil {
			t.Fatalf("writing %q to %s: %v", set[1], set[0], err)
		}
	}
	clocks(1)
	slept := time.Duration(boot[1].Nano() - boot[0].Nano() - awake[1].Nano() + awake[0].Nano())
	t.Attr("suspended-for", slept.Round(time.Millisecond).String())
	if slept < time.Second {
		t.Fatalf("CLOCK_BOOTTIME and CLOCK_MONOTONIC have moved apart by %s only", slept)
	}
	poll(t, "the TTL is less by the suspend", func() error {
		passed := slept + time.Since(start) // which reads CLOCK_MONOTONIC
		if after := n.ttl(t); before-after < uint32(passed/time.Second) {
			return fmt.Errorf("a TTL of %d before, %d after %s", before, after, passed)
		}
		return nil
	})
	poll(t, "the leases are held", func() error { return n.checkLeases(t) })
	n.awaitServer(t, byAgent)

	before, start = n.ttl(t), time.Now()
	var now unix.Timeval
	assert.NoError(t, unix.Gettimeofday(&now))
	now.Sec += 24 * 60 * 60
	assert.NoError(t, unix.Settimeofday(&now))
	if after := n.ttl(t); before-after > uint32(time.Since(start)/time.Second)+1 {
		t.Errorf("a TTL of %d is %d after the clock was set", before, after)
	}
	if err := n.checkLeases(t); err != nil {
		t.Errorf("after the clock was set: %v", err)
	}
	n.awaitServer(t, byAgent)
}

// ttl asks the agent for a name that it has in its cache.
func (n *node) ttl(t *testing.T) uint32 {
	t.Helper()
	c, err := n.Node.Dial(t.Context(), "udp", netip.AddrPortFrom(addresses()[0], 53).String())
	assert.NoError(t, err)
	conn := dns.Conn{Conn: c}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(limit))
	assert.NoError(t, conn.WriteMsg(new(dns.Msg).SetQuestion("held.nodetest.test.", dns.TypeTXT)))
	r, err := conn.ReadMsg()
	if err != nil || len(r.Answer) == 0 {
		t.Fatalf("no answer: %v, %v", r, err)
	}
	return r.Answer[0].Header().Ttl
}
