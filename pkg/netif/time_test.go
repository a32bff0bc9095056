// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// inVirtualTime runs a test on a fake node in virtual time.
func inVirtualTime(t *testing.T, f *fakeKernel, test func(*harness, *fakeKernel)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newFakeHarness(t, f), f) })
}

func TestAutoUsesFirstSupportedKind(t *testing.T) {
	t.Parallel()
	lack := "this kernel does not support it"
	for _, c := range []struct {
		name     string
		lacks    []Kind
		noBridge bool
		kind     Kind
		reason   string
	}{
		{name: "all", kind: "dummy"},
		{name: "no dummy", lacks: []Kind{Dummy}, kind: "bridge", reason: "dummy: " + lack},
		{name: "no bridge wanted", noBridge: true, kind: "dummy"},
		{name: "no dummy and no bridge wanted", noBridge: true, lacks: []Kind{Dummy}, kind: "lo", reason: "dummy: " + lack + "; " + bridgeRefused},
		{name: "neither", lacks: []Kind{Dummy, Bridge}, kind: "lo", reason: "dummy: " + lack + "; bridge: " + lack},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			inVirtualTime(t, newFake(c.lacks...), func(g *harness, _ *fakeKernel) {
				config := g.config("one")
				config.Kind, config.NoBridge = Auto, func() bool { return c.noBridge }
				l := g.setup(config)
				want := Stats{Name: l.linkName(), Kind: c.kind, Reason: c.reason, Held: addrs, Missing: []string{}, Duplicates: []string{}}
				if d := diff(want, l.Stats()); d != "" {
					g.Errorf("stats (-want +got):\n%s", d)
				}
				if strings.Count(g.logs.String(), "kind="+string(c.kind)) != 1 {
					g.Errorf("log does not name the kind")
				}
			})
		})
	}
}

// TestBridgeIsLeft: a predecessor used a bridge, and now none is wanted. The addresses move to lo.
func TestBridgeIsLeft(t *testing.T) {
	t.Parallel()
	inVirtualTime(t, newFake(Dummy), func(g *harness, _ *fakeKernel) {
		config := g.config("one")
		config.Kind = Auto
		old := g.setup(config)
		if _, err := g.node.link(linkName); err != nil {
			g.Fatal(err)
		}
		config.Owner, config.NoBridge = "two", func() bool { return true }
		l := g.setup(config)
		if s := l.Stats(); s.Kind != Loopback || s.Reason != bridgeRefused || !g.complete("lo") {
			g.Errorf("after the move: %+v\n%s", s, g.snapshot())
		}
		if _, err := g.node.link(linkName); !errors.Is(err, errNoLink) {
			g.Errorf("the bridge is still there: %v", err)
		}
		if old.Stats().Kind != Bridge {
			g.Errorf("the predecessor's link was a %s", old.Stats().Kind)
		}
		configured := g.config("three")
		configured.Kind, configured.NoBridge = Bridge, func() bool { return true }
		if s := g.setup(configured).Stats(); s.Kind != Bridge {
			g.Errorf("a configured kind gives way: %+v", s)
		}
	})
}

func TestUnsupportedKind(t *testing.T) {
	t.Parallel()
	inVirtualTime(t, newFake(Dummy), func(g *harness, _ *fakeKernel) {
		err := g.link(g.config("one")).Setup(g.Context())
		if want := "creating dummy nodelocaldns: this kernel does not support it"; !errors.Is(err, ErrUnsupported) || err.Error() != want {
			g.Errorf("setup: %v, want %q", err, want)
		}
	})
}

func TestWithoutNetAdmin(t *testing.T) {
	t.Parallel()
	inVirtualTime(t, newFake(), func(g *harness, f *fakeKernel) {
		config := g.config("one")
		config.Kind = Auto
		f.set(func() { f.noCapability = true })
		l := g.link(config)
		err := l.Setup(g.Context())
		if !errors.Is(err, ErrNotPermitted) || !strings.Contains(err.Error(), "NET_ADMIN") {
			g.Errorf("setup without a link: %v", err)
		}

		// A link that another program maintains works, and stays that program's.
		f.set(func() { f.noCapability = false })
		g.setup(g.config("installer"))
		assert.NoError(g, g.setAlias(g.device(linkName).index, ""))
		f.set(func() { f.noCapability = true })
		before := g.snapshot()
		assert.NoError(g, l.Setup(g.Context()))
		assert.NoError(g, l.Remove(g.Context()))
		g.unchanged("all of it", before)
	})
}

func TestIdleRunCost(t *testing.T) {
	t.Parallel()
	inVirtualTime(t, newFake(), func(g *harness, f *fakeKernel) {
		l := g.setup(g.config("one"))
		stop := g.run(l)
		time.Sleep(time.Hour)
		stop()
		if l.Stats().Repairs != 0 || f.count(&f.reads) > 2*360+10 {
			g.Errorf("in an idle hour: %d repairs, %d reads", l.Stats().Repairs, f.count(&f.reads))
		}
	})
}

func TestPollFindsMissedChanges(t *testing.T) {
	t.Parallel()
	inVirtualTime(t, newFake(), func(g *harness, f *fakeKernel) {
		l := g.setup(g.config("one"))
		g.run(l)
		time.Sleep(time.Second)
		f.set(func() { f.lossy = true })
		assert.NoError(g, g.deleteLink(g.device(linkName).index))
		if took := proctest.Eventually(g, 11*time.Second, "link", func() bool { return g.complete(linkName) }); took < time.Second {
			g.Errorf("repaired after %s without an event", took)
		}
	})
}

func TestEventStreamReopened(t *testing.T) {
	t.Parallel()
	inVirtualTime(t, newFake(), func(g *harness, f *fakeKernel) {
		l := g.setup(g.config("one"))
		g.run(l)
		time.Sleep(time.Second)
		f.set(func() { f.broken = errors.New("out of files") })
		f.closeEvents()
		proctest.Eventually(g, time.Second, "error named", func() bool { return l.Stats().LastError == "out of files" })
		f.set(func() { f.broken = nil })
		proctest.Eventually(g, 11*time.Second, "well again", func() bool { return l.Stats().LastError == "" })
		assert.NoError(g, g.removeAddress(g.device(linkName).index, host(ip4)))
		if took := proctest.Eventually(g, time.Second, "address", func() bool { return g.complete(linkName) }); took > 100*time.Millisecond {
			g.Errorf("repaired after %s: no event", took)
		}
		if n := strings.Count(g.logs.String(), "out of files"); n != 1 {
			g.Errorf("error logged %d times", n)
		}
	})
}

// A daemon removes the address each time it is added.
func TestContestedRepairsAreBoundedAndLogged(t *testing.T) {
	t.Parallel()
	inVirtualTime(t, newFake(), func(g *harness, f *fakeKernel) {
		l := g.setup(g.config("one"))
		index := g.device(linkName).index
		f.set(func() { f.onPut = func(a netip.Addr) { _ = f.removeAddress(index, host(a)) } })
		g.run(l)
		before := f.count(&f.puts)
		assert.NoError(g, g.removeAddress(index, host(ip4)))
		time.Sleep(time.Minute)
		s, puts := l.Stats(), f.count(&f.puts)-before
		g.Logf("in a minute: %d repairs, %d addresses added", s.Repairs, puts)
		if !s.Contested || puts < 20 || puts > repairBurst+120+1 {
			g.Errorf("in a minute: %d addresses added, %+v", puts, s)
		}
		if n, m := strings.Count(g.logs.String(), "level=WARN"), strings.Count(g.logs.String(), "unmanaged"); n > repairBurst+1 || m != 1 {
			g.Errorf("%d warnings, %d of contested repairs", n, m)
		}
		f.set(func() { f.onPut = nil })
		proctest.Eventually(g, 11*time.Second, "held for good", func() bool { return g.complete(linkName) })
		proctest.Eventually(g, 25*time.Second, "over", func() bool { return !l.Stats().Contested })
		synctest.Wait() // the log entry follows the change
		if strings.Count(g.logs.String(), "no longer contested") != 1 {
			g.Error("its end is not logged")
		}
	})
}

// A flag flips constantly, but nothing needs a repair.
func TestEventStormIsRateLimited(t *testing.T) {
	t.Parallel()
	inVirtualTime(t, newFake(), func(g *harness, f *fakeKernel) {
		l := g.setup(g.config("one"))
		g.run(l)
		before := f.count(&f.reads)
		for range 10_000 {
			f.set(f.notify)
			time.Sleep(100 * time.Microsecond)
		}
		if n := f.count(&f.reads) - before; n > 120 {
			g.Errorf("%d checks in a second", n)
		}
	})
}

func TestRetryBackoff(t *testing.T) {
	t.Parallel()
	inVirtualTime(t, newFake(), func(g *harness, f *fakeKernel) {
		f.set(func() { f.noIPv6 = true })
		l := g.link(g.config("one"))
		if err := l.Setup(g.Context()); !errors.Is(err, ErrDisabled) {
			g.Fatal(err)
		}
		g.run(l)
		before := f.count(&f.puts)
		time.Sleep(10 * time.Minute)
		if n := f.count(&f.puts) - before; n < 60 || n > 90 {
			g.Errorf("tried %d times in 10 minutes", n)
		}
		if n := strings.Count(g.logs.String(), "link not as configured"); n != 1 {
			g.Errorf("logged %d times", n)
		}
	})
}

func TestFailedDuplicateDetectionIsRepaired(t *testing.T) {
	t.Parallel()
	inVirtualTime(t, newFake(), func(g *harness, f *fakeKernel) {
		assert.NoError(g, g.createOther(linkName, "dummy"))
		assert.NoError(g, g.addPrefix(g.device(linkName).index, host(ip6), 0, false))
		f.set(func() { f.addrs[len(f.addrs)-1].failed, f.addrs[len(f.addrs)-1].tentative = true, true })
		g.setup(g.config("one"))
		if !g.complete(linkName) {
			g.Errorf("after setup:\n%s", g.snapshot())
		}
	})
}

func TestPortOfAnotherLinkIsForeign(t *testing.T) {
	t.Parallel()
	inVirtualTime(t, newFake(), func(g *harness, _ *fakeKernel) {
		assert.NoError(g, g.createOther(linkName, "dummy"))
		assert.NoError(g, g.createOther("vrf", "vrf"))
		assert.NoError(g, g.enslave(g.device(linkName).index, g.device("vrf").index))
		before := g.snapshot()
		if err := g.link(g.config("one")).Setup(g.Context()); !errors.Is(err, ErrForeign) {
			g.Errorf("setup: %v", err)
		}
		g.unchanged("setup", before)
	})
}

func TestTentativeAddressIsReported(t *testing.T) {
	t.Parallel()
	inVirtualTime(t, newFake(), func(g *harness, f *fakeKernel) {
		assert.NoError(g, g.createOther(linkName, "dummy"))
		assert.NoError(g, g.addPrefix(g.device(linkName).index, host(ip6), 0, false))
		f.set(func() { f.addrs[len(f.addrs)-1].tentative = true })
		l := g.link(g.config("one"))
		if err := l.Setup(g.Context()); !errors.Is(err, errTentative) {
			g.Errorf("setup: %v", err)
		}
		g.run(l)
		f.set(func() { f.addrs[len(f.addrs)-2].tentative = false })
		proctest.Eventually(g, 11*time.Second, "held", func() bool { return len(l.Stats().Held) == 2 })
	})
}

func TestNewRejects(t *testing.T) {
	t.Parallel()
	for _, a := range []string{"127.0.0.53", "::", "224.0.0.1", "fe80::1"} {
		_, err := New(Config{Name: linkName, Addresses: []netip.Addr{netip.MustParseAddr(a)}})
		if want := "address " + a + ": not a unicast address that a link can hold"; err == nil || err.Error() != want {
			t.Errorf("New: %v, want %q", err, want)
		}
	}
	if l, err := New(Config{Kind: Loopback, Addresses: addrs, Log: slog.Default()}); err != nil || l.String() != "link lo" {
		t.Errorf("New of lo: %v, %v", l, err)
	}
}

func TestMarksDifferByOwner(t *testing.T) {
	t.Parallel()
	if !isMark(markOf("a")) || markOf("a") == markOf("b") || isMark(0) || isMark(100) {
		t.Errorf("marks %#x and %#x", markOf("a"), markOf("b"))
	}
}
