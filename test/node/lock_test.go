// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestLockHeld has another program hold the lock of iptables when the agent starts, and go on.
func TestLockHeld(t *testing.T) {
	t.Parallel()
	b := newHarness(t, options{backend: iptablesLegacy})
	lock, err := os.OpenFile(b.Node.XtablesLock(), os.O_CREATE|os.O_RDWR, 0o600)
	assert.NoError(t, err)
	defer func() { _ = lock.Close() }()
	hold := func() {
		assert.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX)) // the agent may hold it for a moment
	}
	release := func() { _ = unix.Flock(int(lock.Fd()), unix.LOCK_UN) }
	length := proctest.OrdinaryOrSoak(5*time.Second, time.Minute)

	hold()
	// Before the address is there, a client that keeps its port may be led astray for good: these do not.
	var starts []*nodetest.Meter
	for _, addr := range b.dnsAddrs {
		m, err := nodetest.StartMeter(nodetest.MeterConfig{Host: b.Pods[0], Target: addr, Loads: []nodetest.Load{{Network: "udp", Rate: 100, Fresh: true}}})
		assert.NoError(t, err)
		starts = append(starts, m)
	}
	a := b.launch(t)
	answered := time.Duration(0)
	for _, m := range starts {
		at, ok := m.Await(byAgent, a.started, 10*time.Second)
		if !ok {
			t.Fatalf("the agent does not answer though only its rules are kept from it: %v", a.Err())
		}
		answered = max(answered, at.Sub(a.started))
	}
	if limit := b.scaled(t, 2*time.Second); answered > limit {
		t.Errorf("the agent answers after %s, want %s", ms(answered), ms(limit))
	}
	l := b.load(t)
	time.Sleep(length / 2)
	if rules := b.normalizedRules(t); rules != "" {
		t.Errorf("the lock does not keep others from writing rules:\n%s", rules)
	}
	released := time.Now()
	release()
	proctest.Eventually(t, time.Minute, "the rules are there", func() bool { return len(b.normalizedRules(t)) > 0 })
	written := time.Since(released)
	// With its rules in place the agent is to renew its lease also while another process holds the lock.
	time.Sleep(lease)
	before := b.fallbackQueries()
	held := time.Now()
	hold()
	time.Sleep(max(length/2, lease+time.Second))
	if n := b.fallbackQueries() - before; n > 0 {
		t.Errorf("%d queries went to the central DNS while the lock was held", n)
	}
	end := time.Now()
	release()
	for _, m := range starts {
		m.Stop()
	}
	reports := l.stop(t)
	l.expectNoneLost(t, reports, l.began, released.Add(-100*time.Millisecond), "the lock is held at the start")
	l.expectNoneLost(t, reports, held, end.Add(-200*time.Millisecond), "the lock is held later")
	proctest.Figure(t, "xtables lock held for %d s: answers %s after the start, rules %s after the lock was released, %s", int(length.Seconds()),
		ms(answered), ms(written), l.merge(reports))
}
