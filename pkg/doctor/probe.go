// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/iptables"
	"github.com/nodecache/node-cache/pkg/nftables"
)

// ask sends the probes from the node, from a pod, and to the fallback.
func (f *Facts) ask(ctx context.Context, c *Config) {
	from := prober{timeout: c.Timeout, now: c.Now}
	t, err := newTracker()
	if err == nil {
		defer t.close()
	}
	note := func(all []Outcome) []Outcome {
		for i := range all {
			if err != nil {
				all[i].TrackedErr = err.Error()
			} else if all[i].Token != "" {
				t.note(&all[i])
			}
		}
		return all
	}
	own := from.probeAll(ctx, c.ownProbes())
	probes := c.probes(f.token(own))
	f.Node = note(append(own, from.probeAll(ctx, probes)...))
	f.askFromPod(ctx, c, probes, note)
	f.Fallback = from.probeAll(ctx, c.fallbackProbes(f.Backends))
}

// ownProbes returns the probes to the agent's own sockets, which no rule redirects.
func (c *Config) ownProbes() []Probe {
	addrs := c.listening()
	list := make([]Probe, 0, 2*len(addrs))
	for _, a := range addrs {
		to := netip.AddrPortFrom(a, c.Rules.Port)
		list = append(list, Probe{To: to, Own: true}, Probe{To: to, TCP: true, Own: true})
	}
	return list
}

// token returns the token of the agent that answered at its own sockets, or else of the
// owner of the rules. Clients have to send it: an agent tells its token only to processes
// of its node.
func (f *Facts) token(own []Outcome) string {
	for _, o := range own {
		if o.Token != "" {
			return o.Token
		}
	}
	return f.owner()
}

// probes returns the queries of clients that show whether agent answers.
func (c *Config) probes(agent string) []Probe {
	var list []Probe
	for _, k := range c.keys() {
		to := netip.AddrPortFrom(k.Key, c.Rules.Port)
		list = append(list, Probe{To: to, Agent: agent}, Probe{To: to, TCP: true, Agent: agent})
		if c.Name != "" {
			list = append(list, Probe{To: to, Name: c.Name})
		}
	}
	return list
}

func (c *Config) fallbackProbes(all []BackendState) []Probe {
	var list []Probe
	for _, h := range all {
		for _, to := range h.State.Fallback {
			if p := (Probe{To: to, Name: c.Name}); !slices.Contains(list, p) {
				list = append(list, p, Probe{To: to, Name: c.Name, TCP: true})
			}
		}
	}
	return list
}

// askFromPod sends probes from a pod. For queries that only the pod gets no answer to, it
// finds the rules that drop them.
func (f *Facts) askFromPod(ctx context.Context, c *Config, probes []Probe, note func([]Outcome) []Outcome) {
	if len(c.keys()) == 0 {
		f.PodErr = errors.New("there is no address to query")
		return
	}
	v6 := false
	for _, k := range c.keys() {
		if k.Key.IsLoopback() {
			f.PodErr = fmt.Errorf("%s is local to the node: pods cannot query it", k.Key)
			return
		}
		v6 = v6 || k.Key.Is6()
	}
	missing := strings.Join(f.Capabilities.Missing, ", ")
	switch {
	case len(c.PodCommand) == 0:
		f.PodErr = errors.New("not requested")
		return
	case missing != "":
		f.PodErr = errors.New("needs the capability " + missing)
		return
	}
	admin := len(capabilities.Missing(sysAdmin)) == 0
	p, err := openPod(ctx, c.PodCommand, admin, v6)
	if err != nil {
		if !admin {
			err = fmt.Errorf("%w (without the capability SYS_ADMIN it takes a kernel and a seccomp profile that allow user namespaces)", err)
		}
		f.PodErr = err
		return
	}
	all, err := p.ask(ctx, probes, c.Timeout)
	f.Pod = note(all)
	if lost := f.lost(); err == nil && len(lost) > 0 {
		f.Drops, f.DropErr = p.drops(ctx, lost, c)
	}
	f.PodErr = errors.Join(err, p.close())
}

// lost returns the pod's probes without an answer that the agent answers from the node.
func (f *Facts) lost() []Probe {
	var list []Probe
	for _, o := range f.Pod {
		if o.Answer != "" || o.Name != "" {
			continue
		}
		if slices.ContainsFunc(f.Node, func(n Outcome) bool { return n.Probe == o.Probe && n.Token != "" }) {
			list = append(list, o.Probe)
		}
	}
	return list
}

// drops sends the lost probes again and finds the rules that drop them. The trace of
// nftables also sees rules of iptables-nft, but not in the syntax of iptables.
func (p *pod) drops(ctx context.Context, lost []Probe, c *Config) ([]Drop, error) {
	var drops []Drop
	var errs []error
	counters := newCounters(ctx)
	for _, own := range p.net.Own {
		mine := slices.DeleteFunc(slices.Clone(lost), func(l Probe) bool { return l.To.Addr().Is4() != own.Addr().Is4() })
		if len(mine) == 0 {
			continue
		}
		send := func(ctx context.Context) error {
			_, err := p.ask(ctx, mine, c.Timeout)
			return err
		}
		found, err := nftables.Trace(ctx, own.Addr(), send)
		if err != nil {
			errs = append(errs, err, send(ctx)) // for the counters
		}
		for _, d := range found {
			drop := Drop{Where: strings.Join([]string{d.Family, d.Table, d.Chain}, " "), Rule: d.Rule, Policy: d.Policy}
			if !slices.Contains(drops, drop) { // by both families
				drops = append(drops, drop)
			}
		}
	}
	if counted := counters.risen(ctx); len(counted) > 0 {
		drops = append(slices.DeleteFunc(drops, Drop.ofIPTables), counted...)
	}
	if len(drops) > 0 {
		return drops, nil
	}
	return nil, errors.Join(errs...)
}

// ofIPTables reports whether d is in a table of iptables-nft.
func (d Drop) ofIPTables() bool {
	where := strings.Fields(d.Where)
	return len(where) == 3 && (where[0] == "ip" || where[0] == "ip6") &&
		slices.Contains([]string{"raw", "mangle", "nat", "filter", "security"}, where[1])
}

// counters holds the counters of iptables rules that drop packets, of both variants.
type counters struct {
	backends []*iptables.Backend
	before   []map[string]uint64
}

func newCounters(ctx context.Context) counters {
	var c counters
	for _, v := range []iptables.Variant{iptables.Nft, iptables.Legacy} {
		if v == iptables.Legacy && !legacyInUse(selfDir) {
			continue
		}
		b, err := iptables.New(iptables.Config{Variant: v}) //nolint:contextcheck // it takes none
		if err != nil {
			continue
		}
		before, err := b.Drops(ctx)
		if err != nil {
			_ = b.Close()
			continue
		}
		c.backends, c.before = append(c.backends, b), append(c.before, before)
	}
	return c
}

// risen returns the rules that dropped packets since c was read, and closes c.
func (c counters) risen(ctx context.Context) []Drop {
	var drops []Drop
	for i, b := range c.backends {
		after, err := b.Drops(ctx)
		_ = b.Close()
		if err != nil {
			continue
		}
		for rule, n := range after {
			if n > c.before[i][rule] {
				drops = append(drops, Drop{Where: b.String(), Rule: rule, Policy: strings.Contains(rule, " -P ")})
			}
		}
	}
	slices.SortFunc(drops, func(a, b Drop) int { return strings.Compare(a.Where+a.Rule, b.Where+b.Rule) })
	return drops
}
