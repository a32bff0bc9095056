// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/dataplane"
	"github.com/nodecache/node-cache/pkg/rules"
)

// nearlyFull is the part of the table of connections above which it is worth a word:
// a burst of the size of what is left is then enough to lose packets.
const nearlyFull = 0.9

func (e *examiner) rights() []Line {
	var lines []Line
	if missing := strings.Join(e.Rights.Missing, ", "); missing != "" {
		lines = one("rights", Warn, "this command lacks "+missing+", so some of this cannot be seen",
			"run it as root on the node, or in the agent's container")
	} else {
		lines = one("rights", OK, "this command has those it can use", "")
	}
	switch {
	case !e.Intercept, e.Rights.Agent == 0:
	case len(e.Rights.Lacks) > 0:
		lines = append(lines, one("agent's rights", Fail, fmt.Sprintf("process %d lacks %s", e.Rights.Agent, strings.Join(e.Rights.Lacks, ", ")),
			"add it to securityContext.capabilities.add of the agent's container")...)
	default:
		lines = append(lines, one("agent's rights", OK, fmt.Sprintf("process %d has NET_ADMIN", e.Rights.Agent), "")...)
	}
	return lines
}

func (e *examiner) dataPlane() []Line {
	const check = "data plane"
	if e.NoDataPlane != nil {
		return one(check, Skip, "not known: "+e.NoDataPlane.Error(), "")
	}
	p := e.DataPlane
	what := "nothing carries Services here"
	switch p.Proxy {
	case dataplane.None:
		if len(p.Evidence) > 0 && strings.HasPrefix(p.Evidence[0], "not looked at") {
			return one(check, Skip, "none is seen, but "+p.Evidence[0], "run this command as root on the node, or in the agent's container")
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
		what += fmt.Sprintf("; backend auto is %s: %s", p.Backend, p.Why)
	}
	switch {
	case p.Early && e.Intercept && e.Rules.Mode == rules.Transparent:
		return one(check, Fail, what+". "+p.Note, "use intercept.mode: link-local, or the data plane's own way to send DNS to a node's agent")
	case p.Note != "" && e.Intercept:
		return one(check, Warn, what, p.Note)
	}
	return one(check, OK, what, "")
}

// links says for each address on which link it is, and whose that is.
func (e *examiner) links() []Line {
	if !e.Intercept && !e.ManageLink {
		return nil
	}
	if e.NoAddress != nil {
		return one("addresses", Skip, "not known: "+e.NoAddress.Error(), "")
	}
	var lines []Line
	for _, a := range e.Rules.Addresses {
		lines = append(lines, e.link(a)...)
	}
	return lines
}

func (e *examiner) link(a netip.Addr) []Line {
	there := slices.DeleteFunc(slices.Clone(e.Addresses), func(has Address) bool { return has.Addr != a })
	switch {
	case len(there) == 0 && !e.ManageLink:
		return one(a.String(), Fail, "on no link of this node", "put it on one, or set interface.manage: true")
	case len(there) == 0:
		return one(a.String(), Fail, "on no link of this node", "start the agent, which makes the link "+e.Link+" with it; if it runs, its log says what is in the way")
	}
	h := there[0]
	what := fmt.Sprintf("on link %s (%s)", h.Link, h.Kind)
	if h.Alias != "" {
		what += fmt.Sprintf(", alias %q", h.Alias)
	}
	ours := strings.HasPrefix(h.Alias, "node-cache ")
	switch {
	case len(there) > 1:
		return one(a.String(), Warn, what+", and on link "+there[1].Link, "take it from the link that is not the agent's: `ip addr del "+a.String()+" dev LINK`")
	case h.Link == "lo", ours, !e.ManageLink:
		return one(a.String(), OK, what, "")
	}
	return one(a.String(), Warn, what+": not made by an agent", "if a node-local DNS of another kind runs here, stop it; the agent then takes the link over")
}

// sockets says who takes what is sent to the addresses.
func (e *examiner) sockets() []Line {
	if e.NoSockets != nil {
		return one("listener", Skip, "not known: "+e.NoSockets.Error(), "")
	}
	var lines []Line
	for _, a := range e.listening() {
		lines = append(lines, e.listeners(a)...)
	}
	return lines
}

func (e *examiner) listeners(a netip.Addr) []Line {
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
		return one(check, Fail, fmt.Sprintf("nobody listens on port %d", e.Rules.Port), "start the agent; if it runs, its log says what is in the way")
	case len(missing) > 0:
		return one(check, Fail, fmt.Sprintf("%s, but nobody over %s", list, missing[0]), "restart the agent: it listens on both or ends")
	case len(who) > 1:
		return one(check, Warn, list+": they share the address and port", "stop the one that is not to answer, unless an upgrade is under way")
	}
	return one(check, OK, list, "")
}

func network(tcp bool) string {
	if tcp {
		return "tcp"
	}
	return "udp"
}

func (e *examiner) status() []Line {
	const check = "status page"
	switch {
	case !e.Admin.IsValid():
		return one(check, Skip, "admin.address is empty", "")
	case e.NoStatus != nil:
		return one(check, Fail, fmt.Sprintf("http://%s/status: %v", e.Admin, e.NoStatus), "start the agent; if it runs, compare admin.address with its configuration")
	case e.Status != "ready":
		return one(check, Fail, "the agent says: "+e.Status, fmt.Sprintf("see `curl 'http://%s/status?format=text'`", e.Admin))
	}
	return one(check, OK, "ready", "")
}

// leases says for each address that clients ask whether the agent has it.
func (e *examiner) leases() []Line {
	if !e.Intercept {
		return one("lease", Skip, "interception is not configured", "")
	}
	var lines []Line
	for _, k := range e.keys() {
		lines = append(lines, e.lease(k.Key)...)
	}
	if len(lines) == 0 {
		lines = one("lease", Fail, "no lease tells the address of the DNS service, and neither does the configuration",
			"see the agent's log; give the address with --service to have it asked")
	}
	if len(e.Held) > 1 {
		lines = append(lines, one("rules", Warn, fmt.Sprintf("of %s and of %s", e.Held[0].Backend, e.Held[1].Backend),
			"stop the agent, run `node-cache cleanup`, and start it again")...)
	}
	return lines
}

func (e *examiner) lease(key netip.Addr) []Line {
	check := "lease " + key.String()
	if left, backend, ok := e.leased(key); ok {
		what := fmt.Sprintf("held, %s left (%s", shown(left), backend)
		if o := e.owner(); o != "" {
			what += ", agent " + o
		}
		return one(check, OK, what+")", "")
	}
	switch {
	case len(e.Held) == 0 && len(e.NoHeld) > 0:
		return one(check, Skip, "not known: "+e.NoHeld[0].Error(), "run this command with the right NET_ADMIN")
	case len(e.Held) == 0:
		return one(check, Fail, "no agent has rules here", "start the agent; if it runs, its log says what is in the way")
	}
	return one(check, Fail, "not held: the agent does not answer its own queries, and others get them", "see what the agent's log and status page say")
}

// table says how full the table of connections is. What the agent has needs none;
// what a fallback answers does.
func (e *examiner) table() []Line {
	const check = "conntrack table"
	c := e.Conntrack
	switch {
	case c.Err != nil:
		return one(check, Skip, "not known: "+c.Err.Error(), "")
	case c.Max == 0:
		return one(check, OK, fmt.Sprintf("%d entries, no limit", c.Count), "")
	}
	what := fmt.Sprintf("%d of %d entries", c.Count, c.Max)
	if float64(c.Count) > nearlyFull*float64(c.Max) {
		return one(check, Warn, what+": what is tracked may be dropped", "raise net.netfilter.nf_conntrack_max, or find who has so many connections")
	}
	return one(check, OK, what, "")
}
