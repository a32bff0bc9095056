// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// waitLimit bounds waits that normally take milliseconds. The tests log the real time.
const waitLimit = 30 * time.Second

// onLinkAndLo runs a test on a link of its own and on lo, with the fake and the kernel.
func onLinkAndLo(t *testing.T, run func(t *testing.T, g *harness, onLo bool)) {
	t.Helper()
	for _, onLo := range []bool{false, true} {
		t.Run(fmt.Sprintf("lo %t", onLo), func(t *testing.T) {
			t.Parallel()
			onFakeAndKernel(t, func(t *testing.T, g *harness) {
				t.Helper()
				run(t, g, onLo)
			})
		})
	}
}

func TestSetupAndRemove(t *testing.T) {
	t.Parallel()
	onLinkAndLo(t, setupAndRemove)
}

func setupAndRemove(t *testing.T, g *harness, onLo bool) {
	t.Helper()
	config, name, kind, alias := g.config("one"), linkName, g.kind, "node-cache one"
	if onLo {
		config.Kind, name, kind, alias = Loopback, "lo", "lo", ""
	}
	before, printed := g.snapshot(t), g.ipOutput()
	for range 100 {
		l := g.setup(t, config)
		if !g.complete(t, name) {
			t.Fatalf("after setup:\n%s", g.snapshot(t))
		}
		if dev := g.device(t, name); dev.alias != alias || dev.kind != kind {
			t.Fatalf("link is a %s with alias %q, want a %s with %q", dev.kind, dev.alias, kind, alias)
		}
		want := Stats{Kind: kind, Held: addrs, Duplicates: map[netip.Addr]string{}}
		if d := diff(want, l.Stats()); d != "" {
			t.Fatalf("stats (-want +got):\n%s", d)
		}
		must(t, l.Remove(t.Context()))
		g.unchanged(t, "removal", before)
	}
	if d := diff(printed, g.ipOutput()); d != "" {
		t.Errorf("printed by ip (-before +after):\n%s", d)
	}
}

func TestRunRepairs(t *testing.T) {
	t.Parallel()
	harms := []struct {
		name string
		do   func(g *harness, dev device) error
	}{
		{name: "link removed", do: func(g *harness, dev device) error { return g.deleteLink(dev.index) }},
		{name: "link set down", do: func(g *harness, dev device) error { return g.setDown(dev.index) }},
		{name: "IPv4 address removed", do: func(g *harness, dev device) error { return g.removeAddress(dev.index, host(ip4)) }},
		{name: "IPv6 address removed", do: func(g *harness, dev device) error { return g.removeAddress(dev.index, host(ip6)) }},
		{name: "alias cleared", do: func(g *harness, dev device) error { return g.setAlias(dev.index, "") }},
		{name: "removed and created by another program", do: func(g *harness, dev device) error {
			err := errors.Join(g.deleteLink(dev.index), g.createOther(linkName, g.kind))
			if errors.Is(err, errExists) || errors.Is(err, fs.ErrExist) {
				return nil // the agent was faster
			}
			return err
		}},
	}
	onFakeAndKernel(t, func(t *testing.T, g *harness) {
		t.Helper()
		l := g.setup(t, g.config("one"))
		g.run(t, l)
		var worst time.Duration
		for round := range 3 * len(harms) {
			harm := harms[round%len(harms)]
			dev := g.device(t, linkName)
			time.Sleep(300 * time.Millisecond) // else the repairs count as contested
			start := time.Now()
			must(t, harm.do(g, dev))
			waitFor(t, waitLimit, harm.name, func() bool {
				d, err := g.node.link(linkName)
				return err == nil && d.alias == "node-cache one" && g.complete(t, linkName)
			})
			took := time.Since(start) // the kernel sends the event before the removal is complete
			worst = max(worst, took)
			t.Logf("%s: back after %s", harm.name, took)
		}
		t.Logf("worst: %s", worst)
		waitFor(t, waitLimit, "repairs counted", func() bool { return l.Stats().Repairs >= uint64(3*len(harms)) })
		if s := l.Stats(); s.Contested || s.LastError != "" {
			t.Errorf("stats after all: %+v", s)
		}
	})
}

func TestRunRepairsLoopback(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(t *testing.T, g *harness) {
		t.Helper()
		config := g.config("one")
		config.Kind = Loopback
		l := g.setup(t, config)
		g.run(t, l)
		for _, a := range addrs {
			must(t, g.removeAddress(loIndex, host(a)))
			t.Logf("%s: back after %s", a, waitFor(t, waitLimit, "address", func() bool { return g.has(t, "lo", host(a)) }))
		}
		must(t, g.setDown(loIndex))
		waitFor(t, waitLimit, "lo named", func() bool { return strings.Contains(l.Stats().LastError, "lo: the link is down") })
		must(t, g.setUp(loIndex))
		waitFor(t, waitLimit, "addresses", func() bool { return g.complete(t, "lo") })
	})
}

func TestAdoptExistingLink(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(t *testing.T, g *harness) {
		t.Helper()
		before := g.snapshot(t)
		must(t, g.createOther(linkName, g.kind))
		dev := g.device(t, linkName)
		must(t, g.setUp(dev.index))
		must(t, g.addPrefix(dev.index, host(ip4), 0, false))
		other := netip.MustParsePrefix("10.96.0.10/32")
		must(t, g.addPrefix(dev.index, other, 0, false))
		config := g.config("one")
		config.Kind = Auto
		l := g.setup(t, config)
		if now := g.device(t, linkName); now.index != dev.index || now.alias != "node-cache one" || !g.complete(t, linkName) || !g.has(t, linkName, other) {
			t.Errorf("adopted: %+v, was %+v\n%s", now, dev, g.snapshot(t))
		}
		must(t, l.Remove(t.Context()))
		g.unchanged(t, "removal", before)
	})
}

func TestForeignPrefixLengthIsHeld(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(t *testing.T, g *harness) {
		t.Helper()
		wide4, wide6 := netip.PrefixFrom(ip4, 24), netip.PrefixFrom(ip6, 64)
		config := g.config("one")
		config.Kind = Loopback
		must(t, g.addPrefix(loIndex, wide4, 0, false))
		must(t, g.addPrefix(loIndex, wide6, 0, false))
		before := g.snapshot(t)
		l := g.setup(t, config)
		g.unchanged(t, "setup", before)
		if d := diff(addrs, l.Stats().Held); d != "" {
			t.Errorf("held (-want +got):\n%s", d)
		}
		must(t, l.Remove(t.Context()))
		g.unchanged(t, "removal", before)
	})
}

func TestForeignLinksStay(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		make func(t *testing.T, g *harness) error
		want string
	}{
		{
			name: "veth", want: "it is a link of kind veth",
			make: func(_ *testing.T, g *harness) error { return g.createOther(linkName, "veth") },
		},
		{
			name: "alias", want: `its alias is "uplink of bob"`,
			make: func(t *testing.T, g *harness) error {
				t.Helper()
				must(t, g.createOther(linkName, g.kind))
				return g.setAlias(g.device(t, linkName).index, "uplink of bob")
			},
		},
		{
			name: "another program's address", want: "it has the address 10.9.9.1/24",
			make: func(t *testing.T, g *harness) error {
				t.Helper()
				must(t, g.createOther(linkName, g.kind))
				return g.addPrefix(g.device(t, linkName).index, netip.MustParsePrefix("10.9.9.1/24"), 0, false)
			},
		},
		{
			name: "bridge with ports", want: "it is a bridge with 1 ports",
			make: func(t *testing.T, g *harness) error {
				t.Helper()
				must(t, g.createOther(linkName, "bridge"))
				must(t, g.createOther("port", "veth"))
				return g.enslave(g.device(t, "port").index, g.device(t, linkName).index)
			},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			onFakeAndKernel(t, func(t *testing.T, g *harness) {
				t.Helper()
				if err := c.make(t, g); errors.Is(err, ErrUnsupported) || errors.Is(err, errors.ErrUnsupported) {
					t.Skipf("this kernel has no such link: %v", err)
				} else if err != nil {
					t.Fatal(err)
				}
				before := g.snapshot(t)
				l := g.link(t, g.config("one"))
				err := l.Setup(t.Context())
				if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("setup: %v, want %q", err, c.want)
				}
				if s := l.Stats(); s.LastError != err.Error() || len(s.Missing) != len(addrs) {
					t.Errorf("stats: %+v", s)
				}
				must(t, l.Remove(t.Context()))
				removed, err := cleanup(g.node, linkName, addrs)
				if err != nil || len(removed) != 0 {
					t.Errorf("cleanup: removed %q, %v", removed, err)
				}
				g.unchanged(t, "all of it", before)
			})
		})
	}
}

func TestNewerOwnerWins(t *testing.T) {
	t.Parallel()
	onLinkAndLo(t, newerOwnerWins)
}

func newerOwnerWins(t *testing.T, g *harness, onLo bool) {
	t.Helper()
	before := g.snapshot(t)
	first, second, name := g.config("first"), g.config("second"), linkName
	if onLo {
		first.Kind, second.Kind, name = Loopback, Loopback, "lo"
	}
	older := g.setup(t, first)
	stopOlder := g.run(t, older)
	waitFor(t, waitLimit, "first check", func() bool { return len(older.Stats().Held) == len(addrs) })
	newer := g.setup(t, second)
	stopNewer := g.run(t, newer)
	waitFor(t, waitLimit, "older stands down", func() bool { return older.Stats().StoodDown })

	held := g.snapshot(t)
	stopOlder()
	if err := older.Remove(t.Context()); !errors.Is(err, ErrOwned) {
		t.Errorf("older's removal: %v, want ErrOwned", err)
	}
	g.unchanged(t, "the older's removal", held)
	must(t, g.removeAddress(g.device(t, name).index, host(ip4)))
	waitFor(t, waitLimit, "repaired by the newer agent", func() bool { return g.complete(t, name) })
	stopNewer()
	must(t, newer.Remove(t.Context()))
	g.unchanged(t, "the newer's removal", before)
}

func TestRunAfterRemoveDoesNothing(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(t *testing.T, g *harness) {
		t.Helper()
		before := g.snapshot(t)
		l := g.setup(t, g.config("one"))
		g.run(t, l)
		must(t, l.Remove(t.Context()))
		time.Sleep(300 * time.Millisecond)
		g.unchanged(t, "all of it", before)
	})
}

// TestRemoveDuringCheck ends the wait for a check that hangs in the kernel.
func TestRemoveDuringCheck(t *testing.T) {
	t.Parallel()
	g := newFakeHarness(newFake())
	l := g.setup(t, g.config("one"))
	must(t, l.acquire(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := l.Remove(ctx); !errors.Is(err, context.DeadlineExceeded) || !g.complete(t, linkName) {
		t.Errorf("Remove: %v", err)
	}
}

func TestCleanupAfterDeadAgent(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(t *testing.T, g *harness) {
		t.Helper()
		foreign := netip.MustParsePrefix("10.1.2.3/32")
		must(t, g.addPrefix(loIndex, foreign, 0, false))
		before := g.snapshot(t)
		g.setup(t, g.config("dead")) // never stopped cleanly
		onLo := g.config("dead")
		onLo.Kind = Loopback
		onLo.Addresses = []netip.Addr{netip.MustParseAddr("169.254.20.11"), foreign.Addr()}
		onLo.Name = "other"
		g.setup(t, onLo)
		removed, err := cleanup(g.node, linkName, append(addrs, onLo.Addresses...))
		want := []string{"link nodelocaldns", "address 169.254.20.11/32 on lo"}
		if d := diff(want, removed); d != "" || err != nil {
			t.Errorf("cleanup: %v, removed (-want +got):\n%s", err, d)
		}
		g.unchanged(t, "all of it", before)
		if removed, err := cleanup(g.node, linkName, nil); err != nil || len(removed) != 0 {
			t.Errorf("second cleanup: %v, %q", err, removed)
		}
	})
}

func TestCleanupWithOtherName(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(t *testing.T, g *harness) {
		t.Helper()
		before := g.snapshot(t)
		g.setup(t, g.config("dead"))
		removed, err := cleanup(g.node, "other", nil)
		if d := diff([]string{"link nodelocaldns"}, removed); d != "" || err != nil {
			t.Errorf("cleanup: %v, removed (-want +got):\n%s", err, d)
		}
		g.unchanged(t, "all of it", before)
	})
}

func TestSetupRemovesOldConfiguration(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(t *testing.T, g *harness) {
		t.Helper()
		before := g.snapshot(t)
		g.setup(t, g.config("a"))
		fewer := g.config("b")
		fewer.Addresses = addrs[:1]
		g.setup(t, fewer)
		if g.has(t, linkName, host(ip6)) || !g.has(t, linkName, host(ip4)) {
			t.Errorf("after setup with fewer addresses:\n%s", g.snapshot(t))
		}
		onLo := g.config("c")
		onLo.Kind = Loopback
		g.setup(t, onLo)
		if _, err := g.node.link(linkName); !errors.Is(err, errNoLink) || !g.complete(t, "lo") {
			t.Errorf("after setup on lo:\n%s", g.snapshot(t))
		}
		renamed := g.config("d")
		renamed.Name = "old"
		g.setup(t, renamed)
		elsewhere := g.config("e")
		elsewhere.Name, elsewhere.Addresses = "elsewhere", []netip.Addr{netip.MustParseAddr("169.254.20.12")}
		other := g.setup(t, elsewhere)
		last := g.setup(t, g.config("f"))
		if _, err := g.node.link("old"); !errors.Is(err, errNoLink) {
			t.Errorf("a link of another name still has the addresses:\n%s", g.snapshot(t))
		}
		if !g.has(t, "elsewhere", host(elsewhere.Addresses[0])) {
			t.Errorf("a link with other addresses was removed:\n%s", g.snapshot(t))
		}
		must(t, other.Remove(t.Context()))
		if g.has(t, "lo", host(ip4)) || g.has(t, "lo", host(ip6)) || !g.complete(t, linkName) {
			t.Errorf("after setup on a link:\n%s", g.snapshot(t))
		}
		must(t, last.Remove(t.Context()))
		g.unchanged(t, "all of it", before)
	})
}

func TestFamiliesAreIndependent(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(t *testing.T, g *harness) {
		t.Helper()
		predecessor := g.config("zero")
		predecessor.Addresses = []netip.Addr{netip.MustParseAddr("169.254.20.11")}
		g.setup(t, predecessor)
		must(t, g.setIPv6(false))
		config := g.config("one")
		config.Poll = 500 * time.Millisecond // a sysctl causes no event
		l := g.link(t, config)
		err := l.Setup(t.Context())
		if !errors.Is(err, ErrDisabled) {
			t.Fatalf("setup: %v", err)
		}
		if want := "IPv6 address fd00:53::a is missing"; !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not contain %q", err, want)
		}
		if g.has(t, linkName, host(predecessor.Addresses[0])) {
			t.Errorf("a predecessor's address is still there:\n%s", g.snapshot(t))
		}
		s := l.Stats()
		if !slices.Equal(s.Held, addrs[:1]) || s.LastError != err.Error() || len(s.Missing) != 1 || !strings.Contains(s.Missing[ip6], "disable_ipv6") {
			t.Errorf("stats: %+v", s)
		}
		if !g.has(t, linkName, host(ip4)) {
			t.Errorf("no IPv4:\n%s", g.snapshot(t))
		}
		g.run(t, l)
		must(t, g.setIPv6(true))
		t.Logf("IPv6 there after %s", waitFor(t, waitLimit, "IPv6", func() bool { return g.complete(t, linkName) && l.Stats().LastError == "" }))
	})
}

func TestReportsDuplicateAddress(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(t *testing.T, g *harness) {
		t.Helper()
		must(t, g.createOther("kube-ipvs0", g.kind))
		must(t, g.addPrefix(g.device(t, "kube-ipvs0").index, host(ip4), 0, false))
		must(t, g.addPrefix(loIndex, netip.PrefixFrom(ip6, 64), 0, false))
		l := g.setup(t, g.config("one"))
		want := map[netip.Addr]string{ip4: "kube-ipvs0", ip6: "lo"}
		if d := diff(want, l.Stats().Duplicates); d != "" {
			t.Errorf("duplicates (-want +got):\n%s", d)
		}
		if n := g.logs.count("address also on another link"); n != 2 || !g.complete(t, linkName) {
			t.Errorf("logged %d times\n%s", n, g.snapshot(t))
		}
	})
}
