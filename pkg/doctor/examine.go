// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/rules"
)

// Examine says what facts mean for an agent that is configured by c.
func Examine(c Config, f Facts) Report {
	e := examiner{Config: c, Facts: f}
	return Report{Title: e.title(), Lines: slices.Concat(
		e.part("This node", e.rights(), e.dataPlane(), e.links(), e.sockets(), e.status(), e.leases(), e.table()),
		e.part("Asked from the node", e.own(), e.paths(f.Node, "the node"), e.name(f.Node)),
		e.part("Asked from a pod", e.pod()),
		e.part("Central DNS", e.central()),
		e.part("What pods ask", e.kubelet(), e.pods()),
	)}
}

// An examiner judges the facts.
type examiner struct {
	Config
	Facts
}

func (e *examiner) title() string {
	where := fmt.Sprintf("%s, port %d", spell(e.Rules.Addresses, " and "), e.Rules.Port)
	if !e.Intercept {
		return "node-cache at " + where + ", without interception"
	}
	return fmt.Sprintf("node-cache at %s, mode %s, backend %s", where, e.Rules.Mode, e.Backend)
}

func (e *examiner) part(name string, groups ...[]Line) []Line {
	lines := slices.Concat(groups...)
	for i := range lines {
		lines[i].Part = name
	}
	return lines
}

// one is a group of a single line.
func one(check string, v Verdict, what, fix string) []Line {
	return []Line{{Check: check, Verdict: v, What: what, Fix: fix}}
}

// owner is the token of the agent whose rules are there; empty: unknown.
func (f *Facts) owner() string {
	for _, h := range f.Held {
		if h.State.Owner != "" {
			return h.State.Owner
		}
	}
	return ""
}

// leased says whether the lease on key is held, and what is left of it.
func (e *examiner) leased(key netip.Addr) (left time.Duration, backend string, ok bool) {
	for _, h := range e.Held {
		if left, ok := h.State.Leases[key]; ok {
			return left, h.Backend, true
		}
	}
	return 0, "", false
}

// transparentTracked says whether this is the one set-up whose packets are tracked
// although the agent has them.
func (e *examiner) transparentTracked() bool {
	return e.Rules.Mode == rules.Transparent && slices.ContainsFunc(e.Held, func(h Held) bool {
		return strings.HasPrefix(h.Backend, "iptables")
	})
}

// keys are the addresses that clients ask, with those where the agent's sockets are.
func (c *Config) keys() []rules.Lease {
	if c.Intercept {
		return c.Rules.Leases()
	}
	list := make([]rules.Lease, 0, len(c.Rules.Addresses))
	for _, a := range c.listening() {
		list = append(list, rules.Lease{Key: a, Probe: a})
	}
	return list
}

// listening are the addresses of the agent's sockets, those that stand for others as
// the loopback address.
func (c *Config) listening() []netip.Addr {
	list := make([]netip.Addr, 0, len(c.Rules.Addresses))
	for _, a := range c.Rules.Addresses {
		switch {
		case a.IsUnspecified() && a.Is4():
			a = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		case a.IsUnspecified():
			a = netip.IPv6Loopback()
		}
		list = append(list, a)
	}
	return list
}

func spell(addrs []netip.Addr, between string) string {
	list := make([]string, 0, len(addrs))
	for _, a := range addrs {
		list = append(list, a.String())
	}
	return strings.Join(list, between)
}

// shown is a duration as short as it is of use.
func shown(d time.Duration) string {
	switch {
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}

// count is "1 pod", "2 pods".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// entries is "1 entry", "2 entries".
func entries(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}

// queries is "1 query", "2 queries".
func queries(n int) string {
	if n == 1 {
		return "1 query"
	}
	return fmt.Sprintf("%d queries", n)
}
