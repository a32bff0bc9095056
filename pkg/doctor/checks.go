// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/listen"
)

// Examine makes all checks of the facts, for an agent with the configuration c, and returns the report.
func Examine(c Config, f Facts) Report {
	e := checker{Config: c, Facts: f}
	for _, part := range []struct {
		name   string
		checks []func()
	}{
		{"This node", []func(){
			e.checkCapabilities, e.checkDataPlane, func() { checkCilium(&e) }, e.checkLinks, e.checkListeners, e.checkStatus, e.checkLeases, e.checkConntrackTable,
			func() { checkKernel(&e) },
		}},
		{"Asked from the node", []func(){e.checkOwnSockets, e.checkNode}},
		{"Asked from a pod", []func(){e.checkPod}},
		{"Central DNS", []func(){e.checkFallback, func() { checkWithoutLease(&e) }, func() { checkZones(&e) }, func() { checkPush(&e) }}},
		{"What pods ask", []func(){e.checkKubelet, e.checkPods}},
	} {
		e.part = part.name
		for _, check := range part.checks {
			check()
		}
	}
	return Report{Title: e.title(), Lines: e.lines}
}

// A checker evaluates the facts.
type checker struct {
	Config
	Facts
	part  string
	lines []Line
}

// A row is a possible result of a check: it applies if when holds.
type row struct {
	when      bool
	verdict   Verdict
	what, fix string
}

// first returns the line of the first row that applies.
func first(check string, rows ...row) Line {
	r := rows[slices.IndexFunc(rows, func(r row) bool { return r.when })]
	return Line{Check: check, Verdict: r.verdict, What: r.what, Fix: r.fix}
}

// add adds the first row that applies to the report.
func (e *checker) add(check string, rows ...row) { e.addLine(first(check, rows...)) }

func (e *checker) addLine(l Line) {
	l.Part = e.part
	e.lines = append(e.lines, l)
}

// unknown is the row that applies if err is set: the fact could not be read.
func unknown(err error, fix string) row {
	return row{err != nil, Skip, fmt.Sprint("unknown: ", err), fix}
}

// These are the fixes of several checks.
const (
	fixCapability = "run this command with the capability NET_ADMIN"
	fixRoot       = "run it as root on the node, or in the agent's container"
	fixVisible    = "run this command on the node, or in a pod with hostPID: true"
	fixStart      = "start the agent; if it runs, its log has the cause"
	fixListener   = "stop the program that `listener` names"
	fixLease      = "pods have DNS, but not the agent's: see `lease` and the agent's log"
)

func (e *checker) title() string {
	where := fmt.Sprintf("%s, port %d", joinAddrs(e.Rules.Addresses, " and "), e.Rules.Port)
	if !e.Intercept {
		return "node-cache at " + where + ", without interception"
	}
	return fmt.Sprintf("node-cache at %s, mode %s, backend %s", where, e.Rules.Mode, e.Backend)
}

// owner returns the token of the agent that owns the interception rules; empty: unknown.
func (f *Facts) owner() string {
	for _, h := range f.Backends {
		if h.Owner != "" {
			return h.Owner
		}
	}
	return ""
}

// leased returns the remaining time of the lease on key and the backend that has it; ok: it is held.
func (e *checker) leased(key netip.Addr) (left time.Duration, backend string, ok bool) {
	for _, h := range e.Backends {
		if left, ok := h.Leases[key]; ok {
			return left, h.Backend, true
		}
	}
	return 0, "", false
}

// keys returns the addresses that clients query, each with the address of the agent's own socket.
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
		list = append(list, listen.Reachable(a))
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

func network(tcp bool) string {
	if tcp {
		return "tcp"
	}
	return "udp"
}

// conntrackWarnRatio is the fill ratio of the conntrack table above which the doctor warns:
// a burst of the remaining size then loses packets.
const conntrackWarnRatio = 0.9

func (e *checker) checkCapabilities() {
	missing := strings.Join(e.Missing, ", ")
	e.add("capabilities",
		row{missing != "", Warn, "this command lacks " + missing + ", so some checks are skipped", fixRoot},
		row{true, OK, "this command has all that it uses", ""})
	if !e.Intercept || e.AgentPID == 0 {
		return
	}
	e.add("agent capabilities",
		row{
			len(e.AgentMissing) > 0, Fail, fmt.Sprintf("process %d lacks %s", e.AgentPID, strings.Join(e.AgentMissing, ", ")),
			"add it to securityContext.capabilities.add of the agent's container",
		},
		row{true, OK, fmt.Sprintf("process %d has NET_ADMIN", e.AgentPID), ""})
}

func (e *checker) checkDataPlane() {
	p := e.DataPlane
	evidence := strings.Join(p.Evidence[:min(1, len(p.Evidence))], "")
	what := "no data plane for Services found"
	switch p.Proxy {
	case dataplane.None:
	case dataplane.IPTables, dataplane.NFTables, dataplane.IPVS:
		what = "kube-proxy, " + string(p.Proxy)
	case dataplane.Cilium, dataplane.Calico, dataplane.OVS, dataplane.EBPF:
		what = string(p.Proxy) + ", before netfilter"
	}
	if evidence != "" {
		what += " (" + evidence + ")"
	}
	if e.Intercept && e.Backend == "auto" {
		what += fmt.Sprintf("; backend auto is %s: %s", p.Backend, p.Reason)
	}
	excluded := e.Rules.Excluded && p.Proxy != dataplane.Cilium
	e.add("data plane",
		unknown(e.DataPlaneErr, ""),
		row{
			p.Proxy == dataplane.None && strings.HasPrefix(evidence, "cannot read "), Skip, "none found, but " + evidence,
			"run this command as root on the node, or in the agent's container",
		},
		row{excluded && p.Early, OK, what + "; it leaves the Service's packets to the agent", ""},
		row{
			p.Early && e.Intercept && e.Rules.Mode == rules.Transparent, Fail, what + ". " + p.Note,
			"use intercept.mode: link-local, or the data plane's own redirection to a node-local DNS; for Cilium daemonset/overlays/cilium",
		},
		row{p.Note != "" && e.Intercept && p.Proxy != dataplane.Cilium, Warn, what, p.Note}, // checkCilium says more
		row{true, OK, what, ""})
}

// checkLinks checks for each listen address which link has it, and whether an agent created the link.
func (e *checker) checkLinks() {
	switch {
	case !e.Intercept && !e.ManageLink:
	case e.AddressErr != nil:
		e.add("addresses", unknown(e.AddressErr, ""))
	default:
		for _, a := range e.Rules.Addresses {
			e.checkLink(a)
		}
	}
}

func (e *checker) checkLink(a netip.Addr) {
	there := slices.DeleteFunc(slices.Clone(e.Addresses), func(has Address) bool { return has.Addr != a })
	if len(there) == 0 {
		const nowhere = "on no link of this node"
		e.add(a.String(),
			row{!e.ManageLink, Fail, nowhere, "add it to a link, or set interface.manage: true"},
			row{true, Fail, nowhere, "start the agent, which creates the link " + e.Link + "; if it runs, its log has the cause"})
		return
	}
	h, other := there[0], there[min(1, len(there)-1)]
	what := fmt.Sprintf("on link %s (%s)", h.Link, h.Kind)
	if h.Alias != "" {
		what += fmt.Sprintf(", alias %q", h.Alias)
	}
	e.add(a.String(),
		row{
			len(there) > 1, Warn, what + ", and on link " + other.Link,
			"remove it from the link that is not the agent's: `ip addr del " + a.String() + " dev LINK`",
		},
		row{h.Link == "lo" || strings.HasPrefix(h.Alias, "node-cache ") || !e.ManageLink, OK, what, ""},
		row{
			true, Warn, what + ": not created by an agent",
			"if another node-local DNS runs here, stop it; the agent then takes over the link",
		})
}

// checkListeners checks which processes listen on the addresses.
func (e *checker) checkListeners() {
	if e.SocketsErr != nil {
		e.add("listener", unknown(e.SocketsErr, ""))
		return
	}
	for _, a := range e.listening() {
		var who []string
		open := map[bool]bool{} // whether any socket listens, by Socket.TCP
		for _, s := range e.Sockets {
			if !s.Accepts(a) {
				continue
			}
			if name := s.Owner(); !slices.Contains(who, name) {
				who = append(who, name)
			}
			open[s.TCP] = true
		}
		list := strings.Join(who, " and ")
		e.add("listener "+a.String(),
			row{len(who) == 0, Fail, fmt.Sprintf("no process listens on port %d", e.Rules.Port), fixStart},
			row{!open[false], Fail, list + ", but no process over udp", "restart the agent: it listens on both or exits"},
			row{!open[true], Fail, list + ", but no process over tcp", "restart the agent: it listens on both or exits"},
			row{len(who) > 1, Warn, list + ": they share the address and port", "stop the wrong one, unless an upgrade is in progress"},
			row{true, OK, list, ""})
	}
}

func (e *checker) checkStatus() {
	e.add("status page",
		row{!e.Admin.IsValid(), Skip, "admin.address is empty", ""},
		row{
			e.StatusErr != nil, Fail, fmt.Sprintf("http://%s/readyz: %v", e.Admin, e.StatusErr),
			"start the agent; if it runs, compare admin.address with its configuration",
		},
		row{
			e.Status != "ready", Fail, "the agent reports: " + e.Status,
			"see `node-cache status`",
		},
		row{true, OK, "ready", ""})
}

// checkLeases checks for each address that clients query whether the agent holds the lease.
func (e *checker) checkLeases() {
	if !e.Intercept {
		e.add("lease", row{true, Skip, "interception is not configured", ""})
		return
	}
	keys := e.keys()
	for _, k := range keys {
		e.checkLease(k.Key)
	}
	if len(keys) == 0 {
		e.add("lease", row{
			true, Fail, "neither a lease nor the configuration has the address of the DNS service",
			"see the agent's log; pass the address with --service to test it",
		})
	}
	if len(e.Backends) > 1 {
		e.add("rules", row{
			true, Warn, fmt.Sprintf("in %s and in %s", e.Backends[0].Backend, e.Backends[1].Backend),
			"stop the agent, run `node-cache cleanup`, and start it again",
		})
	}
}

func (e *checker) checkLease(key netip.Addr) {
	left, backend, held := e.leased(key)
	if owner := e.owner(); owner != "" {
		backend += ", agent " + owner
	}
	var unread row
	if len(e.Backends) == 0 && len(e.BackendErrs) > 0 {
		unread = unknown(e.BackendErrs[0], fixCapability)
	}
	e.add("lease "+key.String(),
		row{held, OK, fmt.Sprintf("held, %s left (%s)", formatDuration(left), backend), ""},
		unread,
		row{len(e.Backends) == 0, Fail, "no agent has rules on this node", fixStart},
		row{
			true, Fail, "not held: the agent does not answer its self-query, so other servers get the queries",
			"see the agent's log and status page",
		})
}

// checkKernel checks whether this node can answer hits in the kernel.
func checkKernel(e *checker) {
	what, fix := fmt.Sprintf("supported, hook %s; kernel.hits is %s", e.KernelHook, e.KernelHits), "see docs/kernel.md"
	if e.KernelErr != nil {
		what = fmt.Sprintf("not supported: %v; kernel.hits is %s", e.KernelErr, e.KernelHits)
		fix = cmp.Or(hint.Of(e.KernelErr), fix)
	}
	e.add("kernel hits",
		row{e.KernelErr == nil, OK, what, ""},
		row{e.KernelHits == "on", Fail, what, fix},
		row{e.KernelHits == "auto", Warn, what, fix},
		row{true, Skip, what, fix})
}

// checkConntrackTable checks how full the conntrack table is. Queries to the agent need no
// entries; queries to a fallback do.
func (e *checker) checkConntrackTable() {
	what := fmt.Sprintf("%d of %d entries", e.ConntrackCount, e.ConntrackMax)
	e.add("conntrack table",
		unknown(e.ConntrackErr, ""),
		row{e.ConntrackMax == 0, OK, fmt.Sprintf("%d entries, no limit", e.ConntrackCount), ""},
		row{
			float64(e.ConntrackCount) > conntrackWarnRatio*float64(e.ConntrackMax), Warn, what + ": new tracked connections may be dropped",
			"raise net.netfilter.nf_conntrack_max, or find the source of the connections",
		},
		row{true, OK, what, ""})
}
