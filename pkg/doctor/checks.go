// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/dataplane"
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
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// conntrackWarnRatio is the fill ratio of the conntrack table above which the doctor warns:
// a burst of the remaining size then loses packets.
const conntrackWarnRatio = 0.9

func (e *checker) capabilities() []Line {
	var lines []Line
	if missing := strings.Join(e.Capabilities.Missing, ", "); missing != "" {
		lines = singleLine("capabilities", Warn, "this command lacks "+missing+", so some checks are skipped",
			"run it as root on the node, or in the agent's container")
	} else {
		lines = singleLine("capabilities", OK, "this command has all that it uses", "")
	}
	switch {
	case !e.Intercept, e.Capabilities.AgentPID == 0:
	case len(e.Capabilities.AgentMissing) > 0:
		lines = append(lines, singleLine("agent capabilities", Fail, fmt.Sprintf("process %d lacks %s", e.Capabilities.AgentPID, strings.Join(e.Capabilities.AgentMissing, ", ")),
			"add it to securityContext.capabilities.add of the agent's container")...)
	default:
		lines = append(lines, singleLine("agent capabilities", OK, fmt.Sprintf("process %d has NET_ADMIN", e.Capabilities.AgentPID), "")...)
	}
	return lines
}

func (e *checker) dataPlane() []Line {
	const check = "data plane"
	if e.DataPlaneErr != nil {
		return singleLine(check, Skip, "unknown: "+e.DataPlaneErr.Error(), "")
	}
	p := e.DataPlane
	what := "no data plane for Services found"
	switch p.Proxy {
	case dataplane.None:
		if len(p.Evidence) > 0 && strings.HasPrefix(p.Evidence[0], "cannot read ") {
			return singleLine(check, Skip, "none found, but "+p.Evidence[0], "run this command as root on the node, or in the agent's container")
		}
	case dataplane.IPTables, dataplane.NFTables, dataplane.IPVS:
		what = "kube-proxy, " + string(p.Proxy)
	case dataplane.Cilium, dataplane.Calico, dataplane.OVS, dataplane.EBPF:
		what = string(p.Proxy) + ", before netfilter"
	}
	if len(p.Evidence) > 0 {
		what += " (" + p.Evidence[0] + ")"
	}
	if e.Intercept && e.Backend == "auto" {
		what += fmt.Sprintf("; backend auto is %s: %s", p.Backend, p.Reason)
	}
	switch {
	case p.Early && e.Intercept && e.Rules.Mode == rules.Transparent:
		return singleLine(check, Fail, what+". "+p.Note, "use intercept.mode: link-local, or the data plane's own redirection to a node-local DNS")
	case p.Note != "" && e.Intercept:
		return singleLine(check, Warn, what, p.Note)
	}
	return singleLine(check, OK, what, "")
}

// links checks for each address the link that has it, and the link's owner.
func (e *checker) links() []Line {
	if !e.Intercept && !e.ManageLink {
		return nil
	}
	if e.AddressErr != nil {
		return singleLine("addresses", Skip, "unknown: "+e.AddressErr.Error(), "")
	}
	var lines []Line
	for _, a := range e.Rules.Addresses {
		lines = append(lines, e.link(a)...)
	}
	return lines
}

func (e *checker) link(a netip.Addr) []Line {
	there := slices.DeleteFunc(slices.Clone(e.Addresses), func(has Address) bool { return has.Addr != a })
	switch {
	case len(there) == 0 && !e.ManageLink:
		return singleLine(a.String(), Fail, "on no link of this node", "add it to a link, or set interface.manage: true")
	case len(there) == 0:
		return singleLine(a.String(), Fail, "on no link of this node", "start the agent, which creates the link "+e.Link+"; if it runs, its log has the cause")
	}
	h := there[0]
	what := fmt.Sprintf("on link %s (%s)", h.Link, h.Kind)
	if h.Alias != "" {
		what += fmt.Sprintf(", alias %q", h.Alias)
	}
	ours := strings.HasPrefix(h.Alias, "node-cache ")
	switch {
	case len(there) > 1:
		return singleLine(a.String(), Warn, what+", and on link "+there[1].Link, "remove it from the link that is not the agent's: `ip addr del "+a.String()+" dev LINK`")
	case h.Link == "lo", ours, !e.ManageLink:
		return singleLine(a.String(), OK, what, "")
	}
	return singleLine(a.String(), Warn, what+": not created by an agent", "if another node-local DNS runs here, stop it; the agent then takes over the link")
}

// sockets checks which processes listen on the addresses.
func (e *checker) sockets() []Line {
	if e.SocketsErr != nil {
		return singleLine("listener", Skip, "unknown: "+e.SocketsErr.Error(), "")
	}
	var lines []Line
	for _, a := range e.listening() {
		lines = append(lines, e.listeners(a)...)
	}
	return lines
}

func (e *checker) listeners(a netip.Addr) []Line {
	check := "listener " + a.String()
	var missing, who []string
	for _, tcp := range []bool{false, true} {
		n := 0
		for _, s := range e.Sockets {
			if s.TCP == tcp && s.Accepts(a) {
				n++
				if name := s.Owner(); !slices.Contains(who, name) {
					who = append(who, name)
				}
			}
		}
		if n == 0 {
			missing = append(missing, network(tcp))
		}
	}
	list := strings.Join(who, " and ")
	switch {
	case len(who) == 0:
		return singleLine(check, Fail, fmt.Sprintf("no process listens on port %d", e.Rules.Port), "start the agent; if it runs, its log has the cause")
	case len(missing) > 0:
		return singleLine(check, Fail, fmt.Sprintf("%s, but no process over %s", list, missing[0]), "restart the agent: it listens on both or exits")
	case len(who) > 1:
		return singleLine(check, Warn, list+": they share the address and port", "stop the wrong one, unless an upgrade is in progress")
	}
	return singleLine(check, OK, list, "")
}

func network(tcp bool) string {
	if tcp {
		return "tcp"
	}
	return "udp"
}

func (e *checker) status() []Line {
	const check = "status page"
	switch {
	case !e.Admin.IsValid():
		return singleLine(check, Skip, "admin.address is empty", "")
	case e.StatusErr != nil:
		return singleLine(check, Fail, fmt.Sprintf("http://%s/status: %v", e.Admin, e.StatusErr), "start the agent; if it runs, compare admin.address with its configuration")
	case e.Status != "ready":
		return singleLine(check, Fail, "the agent reports: "+e.Status, fmt.Sprintf("see `curl 'http://%s/status?format=text'`", e.Admin))
	}
	return singleLine(check, OK, "ready", "")
}

// leases checks for each address that clients query whether the agent holds the lease.
func (e *checker) leases() []Line {
	if !e.Intercept {
		return singleLine("lease", Skip, "interception is not configured", "")
	}
	var lines []Line
	for _, k := range e.keys() {
		lines = append(lines, e.lease(k.Key)...)
	}
	if len(lines) == 0 {
		lines = singleLine("lease", Fail, "neither a lease nor the configuration has the address of the DNS service",
			"see the agent's log; pass the address with --service to test it")
	}
	if len(e.Backends) > 1 {
		lines = append(lines, singleLine("rules", Warn, fmt.Sprintf("in %s and in %s", e.Backends[0].Backend, e.Backends[1].Backend),
			"stop the agent, run `node-cache cleanup`, and start it again")...)
	}
	return lines
}

func (e *checker) lease(key netip.Addr) []Line {
	check := "lease " + key.String()
	if left, backend, ok := e.leased(key); ok {
		what := fmt.Sprintf("held, %s left (%s", formatDuration(left), backend)
		if o := e.owner(); o != "" {
			what += ", agent " + o
		}
		return singleLine(check, OK, what+")", "")
	}
	switch {
	case len(e.Backends) == 0 && len(e.BackendErrs) > 0:
		return singleLine(check, Skip, "unknown: "+e.BackendErrs[0].Error(), "run this command with the capability NET_ADMIN")
	case len(e.Backends) == 0:
		return singleLine(check, Fail, "no agent has rules on this node", "start the agent; if it runs, its log has the cause")
	}
	return singleLine(check, Fail, "not held: the agent does not answer its self-query, so other servers get the queries", "see the agent's log and status page")
}

// conntrackTable checks how full the conntrack table is. Queries to the agent need no
// entries; queries to a fallback do.
func (e *checker) conntrackTable() []Line {
	const check = "conntrack table"
	c := e.Conntrack
	switch {
	case c.Err != nil:
		return singleLine(check, Skip, "unknown: "+c.Err.Error(), "")
	case c.Max == 0:
		return singleLine(check, OK, fmt.Sprintf("%d entries, no limit", c.Count), "")
	}
	what := fmt.Sprintf("%d of %d entries", c.Count, c.Max)
	if float64(c.Count) > conntrackWarnRatio*float64(c.Max) {
		return singleLine(check, Warn, what+": new tracked connections may be dropped", "raise net.netfilter.nf_conntrack_max, or find the source of the connections")
	}
	return singleLine(check, OK, what, "")
}
