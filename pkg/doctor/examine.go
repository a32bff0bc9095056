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

// Examine evaluates the facts for an agent with the configuration c.
func Examine(c Config, f Facts) Report {
	e := checker{Config: c, Facts: f}
	return Report{Title: e.title(), Lines: slices.Concat(
		e.part("This node", e.capabilities(), e.dataPlane(), e.links(), e.sockets(), e.status(), e.leases(), e.conntrackTable()),
		e.part("Asked from the node", e.ownSockets(), e.paths(f.Node, "the node"), e.name(f.Node)),
		e.part("Asked from a pod", e.pod()),
		e.part("Central DNS", e.centralDNS()),
		e.part("What pods ask", e.kubelet(), e.pods()),
	)}
}

// A checker evaluates the facts.
type checker struct {
	Config
	Facts
}

func (e *checker) title() string {
	where := fmt.Sprintf("%s, port %d", joinAddrs(e.Rules.Addresses, " and "), e.Rules.Port)
	if !e.Intercept {
		return "node-cache at " + where + ", without interception"
	}
	return fmt.Sprintf("node-cache at %s, mode %s, backend %s", where, e.Rules.Mode, e.Backend)
}

func (e *checker) part(name string, groups ...[]Line) []Line {
	lines := slices.Concat(groups...)
	for i := range lines {
		lines[i].Part = name
	}
	return lines
}

// singleLine returns one line.
func singleLine(check string, v Verdict, what, fix string) []Line {
	return []Line{{Check: check, Verdict: v, What: what, Fix: fix}}
}

// owner returns the token of the agent that owns the rules; empty: unknown.
func (f *Facts) owner() string {
	for _, h := range f.Backends {
		if h.State.Owner != "" {
			return h.State.Owner
		}
	}
	return ""
}

// leased returns the remaining time of the lease on key, and whether it is held.
func (e *checker) leased(key netip.Addr) (left time.Duration, backend string, ok bool) {
	for _, h := range e.Backends {
		if left, ok := h.State.Leases[key]; ok {
			return left, h.Backend, true
		}
	}
	return 0, "", false
}

// transparentTracked reports whether this is the one configuration in which conntrack
// tracks the agent's packets.
func (e *checker) transparentTracked() bool {
	return e.Rules.Mode == rules.Transparent && slices.ContainsFunc(e.Backends, func(h BackendState) bool {
		return strings.HasPrefix(h.Backend, "iptables")
	})
}

// keys returns the addresses that clients query, with those of the agent's sockets.
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

// listening returns the addresses of the agent's sockets, with the loopback address for
// unspecified ones.
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

func joinAddrs(addrs []netip.Addr, between string) string {
	list := make([]string, 0, len(addrs))
	for _, a := range addrs {
		list = append(list, a.String())
	}
	return strings.Join(list, between)
}

// formatDuration rounds d to a useful precision.
func formatDuration(d time.Duration) string {
	switch {
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}

// count returns "1 pod", "2 pods".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// entries returns "1 entry", "2 entries".
func entries(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}

// queries returns "1 query", "2 queries".
func queries(n int) string {
	if n == 1 {
		return "1 query"
	}
	return fmt.Sprintf("%d queries", n)
}
