// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/vishvananda/netlink"
)

// damage is what another program does to a node, and how soon it must be undone.
type damage struct {
	name       string
	apply      func()
	repaired   func() bool // it was undone
	within     time.Duration
	staleRoute bool // the addresses are gone for a moment
}

// TestDamage damages link and rules under load.
func TestDamage(t *testing.T) {
	t.Parallel()
	for _, backend := range loadedBackends() {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t, options{backend: backend})
			b.start(t)
			for _, d := range append(b.linkDamages(t), b.ruleDamages(t)...) {
				t.Run(d.name, func(t *testing.T) { b.damage(t, &d) })
			}
		})
	}
}

func (b *harness) linkDamages(t *testing.T) []damage {
	t.Helper()
	link, held := b.link(t), func() bool { return len(b.addresses(t)) == 2 }
	const within = 200 * time.Millisecond
	damages := []damage{{"address deleted", func() { b.deleteAddresses(t) }, held, within, true}}
	if link != "lo" {
		damages = append(damages, damage{"link deleted", func() { b.deleteLink(t, link) }, held, within, true})
	}
	return damages
}

func (b *harness) ruleDamages(t *testing.T) []damage {
	t.Helper()
	shape := b.normalizedRules(t)
	whole := func() bool { return b.normalizedRules(t) == shape }
	const within = 2 * time.Second
	flush := damage{"nft flush ruleset", func() { b.run(t, "nft", "flush", "ruleset") }, whole, within, false}
	if b.backend == nftables {
		return []damage{{"nft delete table", func() { b.run(t, "nft", "delete", "table", "inet", "node-cache") }, whole, within, false}, flush}
	}
	damages := []damage{{"iptables -F", func() { b.flush(t) }, whole, within, false}}
	if b.backend == iptablesNFT {
		damages = append(damages, flush)
	}
	return damages
}

// flush empties the built-in chains and the agent's.
func (b *harness) flush(t *testing.T) {
	t.Helper()
	for _, program := range b.programs() {
		for _, table := range []string{"raw", "nat", "filter"} {
			b.run(t, program, "-t", table, "-F")
		}
	}
}

// damage does the damage under load and waits until it is undone.
func (b *harness) damage(t *testing.T, d *damage) {
	t.Helper()
	l := b.load(t)
	l.awaitServer(t, byAgent, l.began, 5*time.Second)
	began := time.Now()
	d.apply() // which may return when it was undone already
	proctest.Eventually(t, time.Minute, d.name+" is undone", d.repaired)
	healed := time.Since(began)
	if limit := b.scaled(t, d.within); healed > limit {
		t.Errorf("undone after %s, want %s", ms(healed), ms(limit))
	}
	again := time.Now()
	l.staleRoute = d.staleRoute
	l.awaitServer(t, byAgent, again, 5*time.Second)
	time.Sleep(300 * time.Millisecond)
	end := time.Now().Add(-200 * time.Millisecond)
	reports := l.stop(t)
	l.expectNoneLost(t, reports, again.Add(200*time.Millisecond), end, "after "+d.name)
	proctest.Figure(t, "%s, %s: undone after %s, %s, longest gap %s", d.name, b.backend, ms(healed), l.merge(reports).Between(began, end), ms(l.longestGap(reports)))
}

// addresses are those of the agent's that the node has.
func (b *harness) addresses(t *testing.T) []netlink.Addr {
	t.Helper()
	var held []netlink.Addr
	assert.NoError(t, b.Node.Do(func() error {
		addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		for errors.Is(err, netlink.ErrDumpInterrupted) { // by an address that comes or goes
			addrs, err = netlink.AddrList(nil, netlink.FAMILY_ALL)
		}
		for _, a := range addrs {
			if ip := a.IP.String(); ip == agentIPv4.String() || ip == agentIPv6.String() {
				held = append(held, a)
			}
		}
		return err
	}))
	return held
}

// link is the name of the link that has the agent's addresses.
func (b *harness) link(t *testing.T) (name string) {
	t.Helper()
	held := b.addresses(t)
	if len(held) != 2 || held[0].LinkIndex != held[1].LinkIndex {
		t.Fatalf("one link has not all of the agent's addresses: %v", held)
	}
	assert.NoError(t, b.Node.Do(func() error {
		link, err := netlink.LinkByIndex(held[0].LinkIndex)
		if err == nil {
			name = link.Attrs().Name
		}
		return err
	}))
	return name
}

func (b *harness) deleteLink(t *testing.T, name string) {
	t.Helper()
	assert.NoError(t, b.Node.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}))
}

func (b *harness) deleteAddresses(t *testing.T) {
	t.Helper()
	held := b.addresses(t)
	assert.NoError(t, b.Node.Do(func() error {
		for _, a := range held {
			link, err := netlink.LinkByIndex(a.LinkIndex)
			if err == nil {
				err = netlink.AddrDel(link, &a)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// normalizedRules is the rules that are there, without counters, leases and what is not the agent's.
func (b *harness) normalizedRules(t *testing.T) string {
	t.Helper()
	if b.backend == nftables {
		return regexp.MustCompile(`elements = \{[^}]*\}`).ReplaceAllString(b.rules(t), "")
	}
	var lines []string
	for line := range strings.Lines(b.rules(t)) {
		if strings.HasPrefix(line, "-A") && !strings.Contains(line, "KUBE-") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
