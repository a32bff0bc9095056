// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

const linkName = "nodelocaldns"

var (
	ip4   = netip.MustParseAddr("169.254.20.10")
	ip6   = netip.MustParseAddr("fd00:53::a")
	addrs = []netip.Addr{ip4, ip6}
)

// A node is a kernel with the changes that other programs can make.
type node interface {
	kernel
	createOther(name string, kind Kind) error // "veth", or "dummy" and "bridge" of other programs
	addPrefix(index int, p netip.Prefix, mark uint32, replace bool) error
	setDown(index int) error
	enslave(port, master int) error
	setIPv6(on bool) error
	dump() (string, error) // all links, addresses and routes
	ipOutput() string      // the same, printed by the program ip
}

// A harness runs a test on a fake node in virtual time, or in a network namespace of
// the real kernel.
type harness struct {
	*testing.T
	node
	opener func() (kernel, error)
	enter  func() // moves the calling goroutine's thread into the node's namespace
	kind   Kind   // of the node's links: Dummy or Bridge
	logs   *proctest.Output
}

// onFakeAndKernel runs the same test on the fake and on the real kernel.
func onFakeAndKernel(t *testing.T, test func(*harness)) {
	t.Helper()
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { test(newFakeHarness(t, newFake())) })
	})
	for _, kind := range []Kind{Dummy, Bridge} {
		t.Run("kernel with "+string(kind), func(t *testing.T) {
			t.Parallel()
			test(newKernelHarness(t, kind))
		})
	}
}

func newFakeHarness(t *testing.T, f *fakeKernel) *harness {
	t.Helper()
	return &harness{T: t, node: f, opener: f.open, enter: func() {}, kind: Dummy, logs: new(proctest.Output)}
}

// config returns the configuration of an agent with links of the harness's kind.
func (h *harness) config(owner string) Config {
	return Config{
		Name: linkName, Kind: h.kind, Addresses: addrs, Owner: owner, Poll: 10 * time.Second,
		Log: slog.New(slog.NewTextHandler(h.logs, nil)), Now: time.Now,
	}
}

func (h *harness) link(c Config) *Link {
	h.Helper()
	l, err := New(c)
	assert.NoError(h, err)
	l.open = h.opener
	return l
}

// setup creates a Link and calls Setup, which has to succeed.
func (h *harness) setup(c Config) *Link {
	h.Helper()
	l := h.link(c)
	if err := l.Setup(h.Context()); err != nil {
		h.Fatalf("setup of %s: %v", c.Owner, err)
	}
	return l
}

// run starts Run. The test waits for it in a cleanup.
func (h *harness) run(l *Link) (stop func()) {
	h.Helper()
	ctx, cancel := context.WithCancel(h.Context())
	var running sync.WaitGroup
	running.Go(func() {
		h.enter()
		if err := l.Run(ctx); err != nil {
			h.Errorf("run: %v", err)
		}
	})
	stop = func() {
		cancel()
		running.Wait()
	}
	h.Cleanup(stop)
	return stop
}

func (h *harness) device(name string) device {
	h.Helper()
	dev, err := h.node.link(name)
	if err != nil {
		h.Fatalf("link %s: %v", name, err)
	}
	return dev
}

func (h *harness) has(name string, p netip.Prefix) bool {
	h.Helper()
	dev, err := h.node.link(name)
	if err != nil {
		return false
	}
	list, err := h.addresses(dev.index)
	return err == nil && slices.ContainsFunc(list, func(a address) bool {
		return a.prefix == p && !a.tentative && !a.failed
	})
}

// complete reports whether a link has all addresses and is up.
func (h *harness) complete(name string) bool {
	h.Helper()
	dev, err := h.node.link(name)
	return err == nil && dev.up && h.has(name, host(ip4)) && h.has(name, host(ip6))
}

// snapshot dumps the node once it no longer changes.
func (h *harness) snapshot() string {
	h.Helper()
	for last, start := "", time.Now(); ; time.Sleep(20 * time.Millisecond) {
		now, err := h.dump()
		assert.NoError(h, err)
		if now == last {
			return now
		}
		if time.Since(start) > waitLimit {
			h.Fatalf("the node keeps changing:\n%s", diff(last, now))
		}
		last = now
	}
}

// unchanged fails the test unless the node returns to the state before.
func (h *harness) unchanged(when, before string) {
	h.Helper()
	now, err := h.dump()
	if err == nil && now != before {
		now = h.snapshot()
	}
	if d := diff(before, now); d != "" || err != nil {
		h.Fatalf("node after %s: %v (-before +after):\n%s", when, err, d)
	}
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// diff compares values that may contain addresses.
func diff(want, got any) string {
	return cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}))
}
