// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"bytes"
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
)

const linkName = "nodelocaldns"

var (
	ip4   = netip.MustParseAddr("169.254.20.10")
	ip6   = netip.MustParseAddr("fd00:53::a")
	addrs = []netip.Addr{ip4, ip6}
)

// A node is a kernel, and what others can do to it.
type node interface {
	kernel
	createOther(name, kind string) error // "veth"; "dummy" and "bridge" as others make them
	addPrefix(index int, p netip.Prefix, mark uint32, replace bool) error
	setDown(index int) error
	enslave(port, master int) error
	setIPv6(on bool) error
	dump() (string, error) // all links, addresses and routes
	printed() string       // the same by other programs
}

// A ground is where a test takes place: on a fake node in virtual time, or in a
// network namespace of the kernel below.
type ground struct {
	node
	t      *testing.T
	opener func() (kernel, error)
	enter  func() // makes the calling goroutine's thread one of the node's; for each new goroutine
	kind   Kind   // of the links that it can have: Dummy or Bridge
	logs   *logBuffer
}

// everywhere runs the same test on the fake and on the real kernel.
func everywhere(t *testing.T, test func(*ground)) {
	t.Helper()
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { test(onFake(t, newFake())) })
	})
	for _, kind := range []Kind{Dummy, Bridge} {
		t.Run("kernel with "+kind.String(), func(t *testing.T) {
			t.Parallel()
			test(onKernel(t, kind))
		})
	}
}

func onFake(t *testing.T, f *fakeKernel) *ground {
	t.Helper()
	return &ground{node: f, t: t, opener: f.open, enter: func() {}, kind: Dummy, logs: &logBuffer{}}
}

// config is that of an agent whose links are of the ground's kind.
func (g *ground) config(owner string) Config {
	return Config{
		Name: linkName, Kind: g.kind, Addresses: addrs, Owner: owner, Poll: 10 * time.Second,
		Log: slog.New(slog.NewTextHandler(g.logs, nil)), Now: time.Now,
	}
}

func (g *ground) link(t *testing.T, c Config) *Link {
	t.Helper()
	l, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	l.open = g.opener
	return l
}

// setup is link and Setup, which has to succeed.
func (g *ground) setup(t *testing.T, c Config) *Link {
	t.Helper()
	l := g.link(t, c)
	if err := l.Setup(t.Context()); err != nil {
		t.Fatalf("setup of %s: %v", c.Owner, err)
	}
	return l
}

// run starts Run, and has the end of the test wait for its end.
func (g *ground) run(t *testing.T, l *Link) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		g.enter()
		if err := l.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

func (g *ground) device(t *testing.T, name string) device {
	t.Helper()
	dev, err := g.node.link(name)
	if err != nil {
		t.Fatalf("link %s: %v", name, err)
	}
	return dev
}

func (g *ground) has(t *testing.T, name string, p netip.Prefix) bool {
	t.Helper()
	dev, err := g.node.link(name)
	if err != nil {
		return false
	}
	list, err := g.addresses(dev.index)
	return err == nil && slices.ContainsFunc(list, func(a address) bool {
		return a.prefix == p && !a.tentative && !a.failed
	})
}

// whole says whether a link has all addresses and is up.
func (g *ground) whole(t *testing.T, name string) bool {
	t.Helper()
	dev, err := g.node.link(name)
	return err == nil && dev.up && g.has(t, name, host(ip4)) && g.has(t, name, host(ip6))
}

// snapshot is the node when it has come to rest.
func (g *ground) snapshot(t *testing.T) string {
	t.Helper()
	for last, start := "", time.Now(); ; time.Sleep(20 * time.Millisecond) {
		now, err := g.dump()
		if err != nil {
			t.Fatal(err)
		}
		if now == last {
			return now
		}
		if time.Since(start) > far {
			t.Fatalf("the node does not come to rest:\n%s", diff(last, now))
		}
		last = now
	}
}

// unchanged fails the test unless the node is, or comes to be, what it was.
func (g *ground) unchanged(t *testing.T, when, before string) {
	t.Helper()
	now, err := g.dump()
	if err == nil && now != before {
		now = g.snapshot(t)
	}
	if d := diff(before, now); d != "" || err != nil {
		t.Fatalf("node after %s: %v (-before +after):\n%s", when, err, d)
	}
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// diff compares values that may hold addresses.
func diff(want, got any) string {
	return cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}))
}

// must is for what others do.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// within waits until a condition holds, and returns how long that took.
func within(t *testing.T, limit time.Duration, what string, condition func() bool) time.Duration {
	t.Helper()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		if condition() {
			return time.Since(start)
		}
		if time.Since(start) > limit {
			t.Fatalf("%s: not within %s", what, limit)
		}
	}
}

type logBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) count(s string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Count(b.buf.Bytes(), []byte(s))
}
