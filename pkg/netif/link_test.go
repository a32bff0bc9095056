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

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// waitLimit bounds waits that normally take milliseconds. The tests log the real time.
const waitLimit = 30 * time.Second

// onLinkAndLo runs a test on a link of its own and on lo, with the fake and the kernel.
func onLinkAndLo(t *testing.T, run func(g *harness, onLo bool)) {
	t.Helper()
	for _, onLo := range []bool{false, true} {
		t.Run(fmt.Sprintf("lo %t", onLo), func(t *testing.T) {
			t.Parallel()
			onFakeAndKernel(t, func(g *harness) { run(g, onLo) })
		})
	}
}

func TestSetupAndRemove(t *testing.T) {
	t.Parallel()
	onLinkAndLo(t, setupAndRemove)
}

func setupAndRemove(g *harness, onLo bool) {
	config, name, kind, alias := g.config("one"), linkName, g.kind, "node-cache one"
	if onLo {
		config.Kind, name, kind, alias = Loopback, "lo", "lo", ""
	}
	before, printed := g.snapshot(), g.ipOutput()
	for range 100 {
		l := g.setup(config)
		if !g.complete(name) {
			g.Fatalf("after setup:\n%s", g.snapshot())
		}
		if dev := g.device(name); dev.alias != alias || dev.kind != kind {
			g.Fatalf("link is a %s with alias %q, want a %s with %q", dev.kind, dev.alias, kind, alias)
		}
		want := Stats{Name: name, Kind: kind, Held: addrs, Missing: []string{}, Duplicates: []string{}}
		if d := diff(want, l.Stats()); d != "" {
			g.Fatalf("stats (-want +got):\n%s", d)
		}
		assert.NoError(g, l.Remove(g.Context()))
		g.unchanged("removal", before)
	}
	if d := diff(printed, g.ipOutput()); d != "" {
		g.Errorf("printed by ip (-before +after):\n%s", d)
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
	onFakeAndKernel(t, func(g *harness) {
		l := g.setup(g.config("one"))
		g.run(l)
		var worst time.Duration
		for round := range 3 * len(harms) {
			harm := harms[round%len(harms)]
			dev := g.device(linkName)
			time.Sleep(300 * time.Millisecond) // else the repairs count as contested
			start := time.Now()
			assert.NoError(g, harm.do(g, dev))
			proctest.Eventually(g, waitLimit, harm.name, func() bool {
				d, err := g.node.link(linkName)
				return err == nil && d.alias == "node-cache one" && g.complete(linkName)
			})
			took := time.Since(start) // the kernel sends the event before the removal is complete
			worst = max(worst, took)
			g.Logf("%s: back after %s", harm.name, took)
		}
		g.Logf("worst: %s", worst)
		proctest.Eventually(g, waitLimit, "repairs counted", func() bool { return l.Stats().Repairs >= uint64(3*len(harms)) })
		if s := l.Stats(); s.Contested || s.LastError != "" {
			g.Errorf("stats after all: %+v", s)
		}
	})
}

func TestRunRepairsLoopback(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(g *harness) {
		config := g.config("one")
		config.Kind = Loopback
		l := g.setup(config)
		g.run(l)
		for _, a := range addrs {
			assert.NoError(g, g.removeAddress(loIndex, host(a)))
			g.Logf("%s: back after %s", a, proctest.Eventually(g, waitLimit, "address", func() bool { return g.has("lo", host(a)) }))
		}
		assert.NoError(g, g.setDown(loIndex))
		proctest.Eventually(g, waitLimit, "lo named", func() bool { return strings.Contains(l.Stats().LastError, "lo: the link is down") })
		assert.NoError(g, g.setUp(loIndex))
		proctest.Eventually(g, waitLimit, "addresses", func() bool { return g.complete("lo") })
	})
}

func TestAdoptExistingLink(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(g *harness) {
		before := g.snapshot()
		assert.NoError(g, g.createOther(linkName, g.kind))
		dev := g.device(linkName)
		assert.NoError(g, g.setUp(dev.index))
		assert.NoError(g, g.addPrefix(dev.index, host(ip4), 0, false))
		other := netip.MustParsePrefix("10.96.0.10/32")
		assert.NoError(g, g.addPrefix(dev.index, other, 0, false))
		config := g.config("one")
		config.Kind = Auto
		l := g.setup(config)
		if now := g.device(linkName); now.index != dev.index || now.alias != "node-cache one" || !g.complete(linkName) || !g.has(linkName, other) {
			g.Errorf("adopted: %+v, was %+v\n%s", now, dev, g.snapshot())
		}
		assert.NoError(g, l.Remove(g.Context()))
		g.unchanged("removal", before)
	})
}

func TestForeignPrefixLengthIsHeld(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(g *harness) {
		wide4, wide6 := netip.PrefixFrom(ip4, 24), netip.PrefixFrom(ip6, 64)
		config := g.config("one")
		config.Kind = Loopback
		assert.NoError(g, g.addPrefix(loIndex, wide4, 0, false))
		assert.NoError(g, g.addPrefix(loIndex, wide6, 0, false))
		before := g.snapshot()
		l := g.setup(config)
		g.unchanged("setup", before)
		if d := diff(addrs, l.Stats().Held); d != "" {
			g.Errorf("held (-want +got):\n%s", d)
		}
		assert.NoError(g, l.Remove(g.Context()))
		g.unchanged("removal", before)
	})
}

func TestForeignLinksStay(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		make func(g *harness) error
		want string
	}{
		{
			name: "veth", want: "it is a link of kind veth",
			make: func(g *harness) error { return g.createOther(linkName, "veth") },
		},
		{
			name: "alias", want: `its alias is "uplink of bob"`,
			make: func(g *harness) error {
				assert.NoError(g, g.createOther(linkName, g.kind))
				return g.setAlias(g.device(linkName).index, "uplink of bob")
			},
		},
		{
			name: "another program's address", want: "it has the address 10.9.9.1/24",
			make: func(g *harness) error {
				assert.NoError(g, g.createOther(linkName, g.kind))
				return g.addPrefix(g.device(linkName).index, netip.MustParsePrefix("10.9.9.1/24"), 0, false)
			},
		},
		{
			name: "bridge with ports", want: "it is a bridge with 1 ports",
			make: func(g *harness) error {
				assert.NoError(g, g.createOther(linkName, "bridge"))
				assert.NoError(g, g.createOther("port", "veth"))
				return g.enslave(g.device("port").index, g.device(linkName).index)
			},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			onFakeAndKernel(t, func(g *harness) {
				if err := c.make(g); errors.Is(err, ErrUnsupported) || errors.Is(err, errors.ErrUnsupported) {
					g.Skipf("this kernel has no such link: %v", err)
				} else if err != nil {
					g.Fatal(err)
				}
				before := g.snapshot()
				l := g.link(g.config("one"))
				err := l.Setup(g.Context())
				if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), c.want) {
					g.Errorf("setup: %v, want %q", err, c.want)
				}
				if s := l.Stats(); s.LastError != err.Error() || len(s.Missing) != len(addrs) {
					g.Errorf("stats: %+v", s)
				}
				assert.NoError(g, l.Remove(g.Context()))
				removed, err := cleanup(g.node, linkName, addrs)
				if err != nil || len(removed) != 0 {
					g.Errorf("cleanup: removed %q, %v", removed, err)
				}
				g.unchanged("all of it", before)
			})
		})
	}
}

func TestNewerOwnerWins(t *testing.T) {
	t.Parallel()
	onLinkAndLo(t, newerOwnerWins)
}

func newerOwnerWins(g *harness, onLo bool) {
	before := g.snapshot()
	first, second, name := g.config("first"), g.config("second"), linkName
	if onLo {
		first.Kind, second.Kind, name = Loopback, Loopback, "lo"
	}
	older := g.setup(first)
	stopOlder := g.run(older)
	proctest.Eventually(g, waitLimit, "first check", func() bool { return len(older.Stats().Held) == len(addrs) })
	newer := g.setup(second)
	stopNewer := g.run(newer)
	proctest.Eventually(g, waitLimit, "older stands down", func() bool { return older.Stats().StoodDown })

	held := g.snapshot()
	stopOlder()
	if err := older.Remove(g.Context()); !errors.Is(err, ErrOwned) {
		g.Errorf("older's removal: %v, want ErrOwned", err)
	}
	g.unchanged("the older's removal", held)
	assert.NoError(g, g.removeAddress(g.device(name).index, host(ip4)))
	proctest.Eventually(g, waitLimit, "repaired by the newer agent", func() bool { return g.complete(name) })
	stopNewer()
	assert.NoError(g, newer.Remove(g.Context()))
	g.unchanged("the newer's removal", before)
}

func TestRunAfterRemoveDoesNothing(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(g *harness) {
		before := g.snapshot()
		l := g.setup(g.config("one"))
		g.run(l)
		assert.NoError(g, l.Remove(g.Context()))
		time.Sleep(300 * time.Millisecond)
		g.unchanged("all of it", before)
	})
}

// TestRemoveDuringCheck ends the wait for a check that hangs in the kernel.
func TestRemoveDuringCheck(t *testing.T) {
	t.Parallel()
	g := newFakeHarness(t, newFake())
	l := g.setup(g.config("one"))
	assert.NoError(g, l.acquire(g.Context()))
	ctx, cancel := context.WithTimeout(g.Context(), time.Millisecond)
	defer cancel()
	if err := l.Remove(ctx); !errors.Is(err, context.DeadlineExceeded) || !g.complete(linkName) {
		g.Errorf("Remove: %v", err)
	}
}

func TestCleanupAfterDeadAgent(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(g *harness) {
		foreign := netip.MustParsePrefix("10.1.2.3/32")
		assert.NoError(g, g.addPrefix(loIndex, foreign, 0, false))
		before := g.snapshot()
		g.setup(g.config("dead")) // never stopped cleanly
		onLo := g.config("dead")
		onLo.Kind = Loopback
		onLo.Addresses = []netip.Addr{netip.MustParseAddr("169.254.20.11"), foreign.Addr()}
		onLo.Name = "other"
		g.setup(onLo)
		removed, err := cleanup(g.node, linkName, append(addrs, onLo.Addresses...))
		want := []string{"link nodelocaldns", "address 169.254.20.11/32 on lo"}
		if d := diff(want, removed); d != "" || err != nil {
			g.Errorf("cleanup: %v, removed (-want +got):\n%s", err, d)
		}
		g.unchanged("all of it", before)
		if removed, err := cleanup(g.node, linkName, nil); err != nil || len(removed) != 0 {
			g.Errorf("second cleanup: %v, %q", err, removed)
		}
		g.setup(g.config("dead"))
		removed, err = cleanup(g.node, "other", nil)
		if d := diff(want[:1], removed); d != "" || err != nil {
			g.Errorf("cleanup with another name: %v, removed (-want +got):\n%s", err, d)
		}
		g.unchanged("that", before)
	})
}

func TestSetupRemovesOldConfiguration(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(g *harness) {
		before := g.snapshot()
		g.setup(g.config("a"))
		fewer := g.config("b")
		fewer.Addresses = addrs[:1]
		g.setup(fewer)
		if g.has(linkName, host(ip6)) || !g.has(linkName, host(ip4)) {
			g.Errorf("after setup with fewer addresses:\n%s", g.snapshot())
		}
		onLo := g.config("c")
		onLo.Kind = Loopback
		g.setup(onLo)
		if _, err := g.node.link(linkName); !errors.Is(err, errNoLink) || !g.complete("lo") {
			g.Errorf("after setup on lo:\n%s", g.snapshot())
		}
		renamed := g.config("d")
		renamed.Name = "old"
		g.setup(renamed)
		elsewhere := g.config("e")
		elsewhere.Name, elsewhere.Addresses = "elsewhere", []netip.Addr{netip.MustParseAddr("169.254.20.12")}
		other := g.setup(elsewhere)
		last := g.setup(g.config("f"))
		if _, err := g.node.link("old"); !errors.Is(err, errNoLink) {
			g.Errorf("a link of another name still has the addresses:\n%s", g.snapshot())
		}
		if !g.has("elsewhere", host(elsewhere.Addresses[0])) {
			g.Errorf("a link with other addresses was removed:\n%s", g.snapshot())
		}
		assert.NoError(g, other.Remove(g.Context()))
		if g.has("lo", host(ip4)) || g.has("lo", host(ip6)) || !g.complete(linkName) {
			g.Errorf("after setup on a link:\n%s", g.snapshot())
		}
		assert.NoError(g, last.Remove(g.Context()))
		g.unchanged("all of it", before)
	})
}

func TestFamiliesAreIndependent(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(g *harness) {
		predecessor := g.config("zero")
		predecessor.Addresses = []netip.Addr{netip.MustParseAddr("169.254.20.11")}
		g.setup(predecessor)
		assert.NoError(g, g.setIPv6(false))
		config := g.config("one")
		config.Poll = 500 * time.Millisecond // a sysctl causes no event
		l := g.link(config)
		err := l.Setup(g.Context())
		if !errors.Is(err, ErrDisabled) {
			g.Fatalf("setup: %v", err)
		}
		if want := "IPv6 address fd00:53::a is missing"; !strings.Contains(err.Error(), want) {
			g.Errorf("error %q does not contain %q", err, want)
		}
		if g.has(linkName, host(predecessor.Addresses[0])) {
			g.Errorf("a predecessor's address is still there:\n%s", g.snapshot())
		}
		s := l.Stats()
		if !slices.Equal(s.Held, addrs[:1]) || s.LastError != err.Error() || len(s.Missing) != 1 || !strings.HasPrefix(s.Missing[0], ip6.String()+": ") || !strings.Contains(s.Missing[0], "disable_ipv6") {
			g.Errorf("stats: %+v", s)
		}
		if !g.has(linkName, host(ip4)) {
			g.Errorf("no IPv4:\n%s", g.snapshot())
		}
		g.run(l)
		assert.NoError(g, g.setIPv6(true))
		g.Logf("IPv6 there after %s", proctest.Eventually(g, waitLimit, "IPv6", func() bool { return g.complete(linkName) && l.Stats().LastError == "" }))
	})
}

func TestReportsDuplicateAddress(t *testing.T) {
	t.Parallel()
	onFakeAndKernel(t, func(g *harness) {
		assert.NoError(g, g.createOther("kube-ipvs0", g.kind))
		assert.NoError(g, g.addPrefix(g.device("kube-ipvs0").index, host(ip4), 0, false))
		assert.NoError(g, g.addPrefix(loIndex, netip.PrefixFrom(ip6, 64), 0, false))
		l := g.setup(g.config("one"))
		want := []string{ip4.String() + ": kube-ipvs0", ip6.String() + ": lo"}
		if d := diff(want, l.Stats().Duplicates); d != "" {
			g.Errorf("duplicates (-want +got):\n%s", d)
		}
		if n := strings.Count(g.logs.String(), "address also on another link"); n != 2 || !g.complete(linkName) {
			g.Errorf("logged %d times\n%s", n, g.snapshot())
		}
	})
}
