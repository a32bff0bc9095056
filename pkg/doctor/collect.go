// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/nftables"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/iptables"
	"github.com/nodecache/node-cache/pkg/kernelhits"
	"github.com/nodecache/node-cache/pkg/listen"
	"github.com/nodecache/node-cache/pkg/sockdiag"
)

// Kernel directories: of all processes, of this process, and of conntrack's sysctls.
const (
	procDir   = "/proc"
	selfDir   = "/proc/self"
	filterDir = "/proc/sys/net/netfilter"
)

// Facts are the observations on a node. The error beside a fact says why it is missing.
type Facts struct {
	Missing      []string // capabilities that the doctor uses and lacks
	AgentPID     int      // the process that listens at the agent's addresses; 0: unknown
	AgentMissing []string // capabilities that the agent needs and lacks

	Addresses   []Address // the addresses of Rules.Addresses that a link has
	AddressErr  error
	Sockets     []sockdiag.Socket // sockets bound to Rules.Port, at any address
	SocketsErr  error
	Backends    []rules.State // the state of each backend that has rules or leases of an agent
	BackendErrs []error       // why the configured backend could not be read

	Node    []Outcome // outcomes of the probes from the node
	Pod     []Outcome // outcomes of the probes from the pod
	PodErr  error
	Drops   []Drop // rules that dropped the pod's packets; empty: none found
	DropErr error

	Fallback []Outcome // outcomes of the queries to each fallback server
	// WithoutLease has the results of queries past the lease, by the address that clients query; nil: not tested.
	WithoutLease map[netip.Addr]intercept.FallbackResult

	Status    string // state of the agent: "ready", or why it is not
	StatusErr error

	ConntrackCount, ConntrackMax int // entries in the conntrack table, and their limit
	ConntrackErr                 error

	DataPlane    dataplane.Found
	DataPlaneErr error
	Cilium       Cilium // if it is the data plane

	KernelHook string // where the kernel can attach the programs that answer hits: "tcx" or "clsact"
	KernelErr  error

	Kubelet Kubelet
	Pods    map[netip.Addr]int // number of pods by nameserver in their resolv.conf
	PodsErr error              // why pods may be missing in Pods
}

// An Address is an address on a link.
type Address struct {
	Addr  netip.Addr
	Link  string
	Kind  string // "dummy", "bridge", "device" for lo, …
	Alias string
}

// A Probe is one query.
type Probe struct {
	To    netip.AddrPort `json:"to"`
	TCP   bool           `json:"tcp"`
	Own   bool           `json:"own"`   // sent with the agent's packet mark, so that no rule redirects it
	Name  string         `json:"name"`  // the name to query, type A; empty: the self-query
	Agent string         `json:"agent"` // token in the self-query's name, for the agent to confirm; empty: none, which works only from the node
}

// An Outcome is the result of a probe.
type Outcome struct {
	Probe
	From    netip.AddrPort `json:"from"`    // source address of the query
	Answer  string         `json:"answer"`  // name of the rcode; empty: no answer
	Records int            `json:"records"` // number of records in the answer section
	Token   string         `json:"token"`   // token of the agent that answered the self-query; empty: none
	Took    time.Duration  `json:"took"`
	Error   string         `json:"error"`   // why there is no answer
	Refused bool           `json:"refused"` // ECONNREFUSED: no socket listens

	Tracked    bool   `json:"-"` // the node has a conntrack entry for the query
	TrackedErr string `json:"-"` // why Tracked is unknown
}

// Kubelet is the DNS configuration of the node's kubelet for pods.
type Kubelet struct {
	DNS  []string // nameservers; empty with From: none configured
	From string   // where it is configured; empty: no kubelet visible
	Err  error
}

// A Drop is a rule or policy of the node that dropped packets of the pod.
type Drop struct {
	Where  string // table and chain; for iptables the backend
	Rule   string // the iptables command that adds it, or the handle of an nftables rule; empty: the chain's policy
	Policy bool   // the chain's policy dropped them, not a rule
}

// collect reads all facts. It adds the addresses of the Service to c if only the kernel has them.
func collect(ctx context.Context, c *Config) Facts {
	var f Facts
	f.Missing = capabilities.Missing(capabilities.NetAdmin)
	f.Addresses, f.AddressErr = addresses(c.Rules.Addresses)
	f.Sockets, f.SocketsErr = sockdiag.ListBound(c.Rules.Port)
	sockdiag.AddProcesses(f.Sockets, procDir)
	f.agent(c)
	f.ConntrackCount, f.ConntrackMax, f.ConntrackErr = conntrackFill(filterDir)
	f.DataPlane, f.DataPlaneErr = dataplane.Find(ctx, usable)
	f.KernelHook, f.KernelErr = kernelhits.Supported()
	f.Backends, f.BackendErrs = readBackends(ctx, c.Backend)
	addServices(&c.Rules, f.Backends)
	addExcluded(&c.Rules, f.Backends)
	if c.Admin.IsValid() {
		f.Status, f.StatusErr = status(ctx, c)
	}
	f.readProcesses(ctx, c)
	f.ask(ctx, c)
	return f
}

// readProcesses reads the kubelet, Cilium and the pods. Pods cannot delay it for longer than filesTimeout.
func (f *Facts) readProcesses(ctx context.Context, c *Config) {
	ctx, cancel := context.WithTimeout(ctx, filesTimeout)
	defer cancel()
	files := fileReader{command: c.Command}
	defer files.close()
	f.Kubelet = readKubelet(ctx, procDir, selfDir, files.read)
	if f.DataPlane.Proxy == dataplane.Cilium {
		f.Cilium = readCilium(ctx, procDir, selfDir, c.Rules.Addresses, files.read)
	}
	f.Pods, f.PodsErr = podResolvers(ctx, procDir, selfDir, files.read)
}

// usable returns an error if a program that the backend needs is missing, else nil.
func usable(backend string) error {
	variant, ok := strings.CutPrefix(backend, "iptables-")
	if !ok {
		return nil
	}
	b, err := iptables.New(iptables.Config{Variant: iptables.Variant(variant)})
	if err != nil {
		return err
	}
	return b.Close()
}

// addServices adds the addresses of the DNS Service, which it takes from the leases, if mode is transparent and the
// configuration names none.
func addServices(r *rules.Rules, all []rules.State) {
	if r.Mode != rules.Transparent || len(r.Services) > 0 {
		return
	}
	for _, h := range all {
		for key := range h.Leases {
			if !slices.Contains(r.Services, key) && r.Target(key).IsValid() {
				r.Services = append(r.Services, key)
			}
		}
	}
	slices.SortFunc(r.Services, netip.Addr.Compare)
}

// addExcluded notes that the rules have a fallback in mode transparent. An agent writes one only if it knows that the data plane leaves
// the Service alone, by the configuration or by an annotation.
func addExcluded(r *rules.Rules, all []rules.State) {
	fallback := slices.ContainsFunc(all, func(h rules.State) bool { return len(h.Fallback) > 0 })
	r.Excluded = r.Excluded || r.Mode == rules.Transparent && fallback
}

// addresses returns those of the wanted addresses that a link has, each with that link.
func addresses(wanted []netip.Addr) ([]Address, error) {
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	var list []Address
	for _, has := range all {
		a, ok := netip.AddrFromSlice(has.IP)
		if a = a.Unmap(); !ok || !slices.Contains(wanted, a) {
			continue
		}
		link, err := netlink.LinkByIndex(has.LinkIndex)
		if err != nil {
			continue // the link was removed after its addresses were listed
		}
		list = append(list, Address{Addr: a, Link: link.Attrs().Name, Kind: link.Type(), Alias: link.Attrs().Alias})
	}
	return list, nil
}

// agent finds the process that listens at the agent's addresses, and the capabilities that it lacks.
func (f *Facts) agent(c *Config) {
	for _, a := range c.listening() {
		for _, s := range f.Sockets {
			if s.PID == 0 || !s.Accepts(a) {
				continue
			}
			if missing, err := capabilities.MissingOf(s.PID, capabilities.NetAdmin); err == nil {
				f.AgentPID, f.AgentMissing = s.PID, missing
				return
			}
		}
	}
}

// readableVariants returns the variants of iptables to read. Reading a table of iptables-legacy
// creates it, so that variant is read only if it has tables.
func readableVariants() []iptables.Variant {
	v4, _ := dataplane.LegacyTables(false)
	v6, _ := dataplane.LegacyTables(true)
	if len(v4)+len(v6) == 0 {
		return []iptables.Variant{iptables.Nft}
	}
	return []iptables.Variant{iptables.Nft, iptables.Legacy}
}

// readBackends reads the state of each backend. It returns an error only for the one that
// the agent uses; with "auto" that is nftables, which sees most.
func readBackends(ctx context.Context, backend string) (all []rules.State, errs []error) {
	add := func(b intercept.Backend, err error, wanted bool) {
		var state rules.State
		if err == nil {
			state, err = b.State(ctx)
			_ = b.Close()
		}
		switch {
		case err != nil && wanted:
			errs = append(errs, err)
		case err == nil && state.Present:
			state.Backend = b.String()
			all = append(all, state)
		}
	}
	b, err := nftables.New(slog.New(slog.DiscardHandler))
	add(b, err, backend != "iptables")
	for _, v := range readableVariants() {
		b, err := iptables.New(iptables.Config{Variant: v}) //nolint:contextcheck // it takes none
		add(b, err, backend == "iptables")
	}
	return all, errs
}

// maxReason bounds the text of the page /readyz, in bytes.
const maxReason = 4096

// status reads the state of the agent from its page /readyz, which is open to every client on the node, unlike /status with admin.tls.
func status(ctx context.Context, c *Config) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	at := netip.AddrPortFrom(listen.Reachable(c.Admin.Addr()), c.Admin.Port())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+"/readyz", http.NoBody)
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // without a proxy
	response, err := client.Do(request)
	if err != nil {
		return "", errors.New(shortError(err, c.Timeout))
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxReason))
	if err != nil {
		return "", fmt.Errorf("reading the page: %w", err)
	}
	switch reason := strings.TrimSpace(string(text)); {
	case response.StatusCode == http.StatusServiceUnavailable:
		return "not ready: " + reason, nil
	case response.StatusCode != http.StatusOK:
		return "", errors.New(response.Status)
	case reason != "ok":
		return "", errors.New("the page is not that of an agent")
	}
	return "ready", nil
}

// ask sends the probes from the node, from a pod, and to the fallback.
func (f *Facts) ask(ctx context.Context, c *Config) {
	note := func(all []Outcome) []Outcome {
		for i := range all {
			if all[i].Token != "" {
				all[i].noteTracked()
			}
		}
		return all
	}
	own := c.probeAll(ctx, c.ownProbes())
	probes := c.probes(f.token(own))
	f.Node = note(append(own, c.probeAll(ctx, probes)...))
	f.askFromPod(ctx, c, probes, note)
	f.Fallback = c.probeAll(ctx, c.fallbackProbes(f.Backends))
	f.testFallback(ctx, c)
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

// probes returns the probes to the addresses that clients query: self-queries with the token agent, and c.Name if set.
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

func (c *Config) fallbackProbes(all []rules.State) []Probe {
	var list []Probe
	for _, h := range all {
		for _, to := range h.Fallback {
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
	missing := strings.Join(f.Missing, ", ")
	switch {
	case c.NoPod || len(c.Command) == 0:
		f.PodErr = errors.New("not requested")
		return
	case missing != "":
		f.PodErr = errors.New("needs the capability " + missing)
		return
	}
	admin := len(capabilities.Missing(capabilities.SysAdmin)) == 0
	p, err := openPod(ctx, c.Command, admin, v6)
	if err != nil {
		if !admin {
			err = fmt.Errorf("%w (without the capability SYS_ADMIN it takes a kernel and a seccomp profile that allow user namespaces)", err)
		}
		f.PodErr = err
		return
	}
	reply, err := p.do(ctx, message{Probes: probes, Timeout: c.Timeout})
	f.Pod = note(reply.Outcomes)
	if lost := f.lost(); err == nil && len(lost) > 0 {
		f.Drops, f.DropErr = p.drops(ctx, lost, c)
	}
	f.PodErr = errors.Join(err, p.close())
}

// lost returns the self-queries that an agent answers if the node sends them, but that get no answer if the pod does.
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
	risen := dropCounters(ctx)
	for _, own := range p.net.Own {
		mine := slices.DeleteFunc(slices.Clone(lost), func(l Probe) bool { return l.To.Addr().Is4() != own.Addr().Is4() })
		if len(mine) == 0 {
			continue
		}
		send := func(ctx context.Context) error {
			_, err := p.do(ctx, message{Probes: mine, Timeout: c.Timeout})
			return err
		}
		found, err := trace(ctx, own.Addr(), send, c.Now)
		if err != nil {
			errs = append(errs, err, send(ctx)) // trace may have sent no packets, and the counters need them, too
		}
		for _, d := range found {
			if !slices.Contains(drops, d) { // the traces of both families may find the same rule
				drops = append(drops, d)
			}
		}
	}
	if counted := risen(ctx); len(counted) > 0 {
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

// dropCounters reads the counters of the iptables rules that drop packets. The function that it returns reads them again,
// and returns the rules that dropped packets meanwhile.
func dropCounters(ctx context.Context) (risen func(context.Context) []Drop) {
	before := map[*iptables.Backend]map[string]uint64{}
	for _, v := range readableVariants() {
		b, err := iptables.New(iptables.Config{Variant: v}) //nolint:contextcheck // it takes none
		if err != nil {
			continue
		}
		if before[b], err = b.Drops(ctx); err != nil {
			delete(before, b)
			_ = b.Close()
		}
	}
	return func(ctx context.Context) []Drop {
		var drops []Drop
		for b, counts := range before {
			after, err := b.Drops(ctx)
			_ = b.Close()
			if err == nil {
				drops = append(drops, risenDrops(b.String(), counts, after)...)
			}
		}
		slices.SortFunc(drops, func(a, b Drop) int { return strings.Compare(a.Where+a.Rule, b.Where+b.Rule) })
		return drops
	}
}

// risenDrops returns the rules whose counters have risen.
func risenDrops(where string, before, after map[string]uint64) (drops []Drop) {
	for rule, n := range after {
		if n > before[rule] {
			drops = append(drops, Drop{Where: where, Rule: rule, Policy: strings.Contains(rule, " -P ")})
		}
	}
	return drops
}
