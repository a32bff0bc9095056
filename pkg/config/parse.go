// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/nodecache/node-cache/pkg/listen"
)

// Parse reads the text of a configuration. The error is an [*Error] with every
// problem of it. Paths that are relative in the text stay so.
func Parse(data []byte, role Role) (Config, error) {
	return newDecoder(role).parse(data)
}

// Load reads the configuration in a file. Relative paths in it begin at its
// folder, and files of certificates must be there. The error is an [*Error], or
// wraps the one of the operating system when the file cannot be read.
func Load(path string, role Role) (Config, error) {
	data, err := readFile(path)
	if err != nil {
		return Config{}, err
	}
	return ParseAs(path, filepath.Dir(path), data, role)
}

// ParseAs is Load for a text that is in no file: name stands for the path in errors, and relative paths begin at folder.
func ParseAs(name, folder string, data []byte, role Role) (Config, error) {
	d := newDecoder(role)
	d.name, d.folder = name, &folder
	d.useThisMachine()
	return d.parse(data)
}

// ParseZone returns a zone as a [Route] has it. The error is an [*Error] with one problem, of no path.
func ParseZone(text string) (string, error) {
	name, p := parseZone(text)
	return name, textError(text, p)
}

// ParseTarget returns an upstream as a [Route] has it. The error is an [*Error] with one problem, of no path.
func ParseTarget(text string) (Target, error) {
	t, p := parseTarget(text)
	return t, textError(text, p)
}

// ParseFederation returns a federation. The error is an [*Error] with one problem, of no path.
func ParseFederation(text string) (Federation, error) {
	f, p := parseFederation(text)
	return f, textError(text, p)
}

// textError returns the problem of a text that is in no file as an error.
func textError(text string, p *Problem) error {
	if p == nil {
		return nil
	}
	return &Error{Problems: []Problem{{What: quote(text) + ": " + p.What, Hint: p.Hint}}}
}

// newDecoder returns the decoder of [Parse].
func newDecoder(role Role) *decoder {
	return &decoder{role: role, set: map[string]*yaml.Node{}, hostAddrs: func() []netip.Addr { return nil }}
}

// useThisMachine makes d take this machine for the node. Its addresses are read at most once.
func (d *decoder) useThisMachine() { d.onNode, d.hostAddrs = true, sync.OnceValue(listen.HostAddrs) }

// parse reads the text of a configuration.
func (d *decoder) parse(data []byte) (Config, error) {
	doc := document{Config: Default(d.role)}
	c := &doc.Config
	if root, ok := d.readDocument(data); ok {
		if root != nil && !isNull(root) {
			d.decode("", root, reflect.ValueOf(&doc).Elem(), &field{})
		}
		c.inherit(d)
		checkRules(d, c)
		if d.folder != nil {
			if err := resolveLocations(c, *d.folder); err != nil {
				return Config{}, err
			}
		}
		if d.onNode {
			checkFiles(d, c)
		}
		if d.files != nil {
			d.files(c, &Findings{d})
		}
	}
	if err := d.err(); err != nil {
		return Config{}, err
	}
	return *c, nil
}

// readFile reads at most one byte more than a configuration may have, so that a file that is too large shows.
func readFile(path string) (data []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err = io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	return data, nil
}

// inherit gives each route the TTLs of the cache that the file does not set for it.
func (c *Config) inherit(d *decoder) {
	for i := range c.Forward {
		r := &c.Forward[i]
		for _, from := range []struct {
			key        string
			dst, cache *time.Duration
		}{
			{"minTTL", &r.MinTTL, &c.Cache.MinTTL},
			{"maxTTL", &r.MaxTTL, &c.Cache.MaxTTL},
			{"negativeTTL", &r.NegativeTTL, &c.Cache.NegativeTTL},
		} {
			if !d.isSet(fmt.Sprintf("forward[%d].%s", i, from.key)) {
				*from.dst = *from.cache
			}
		}
	}
}

// checkRules reports values that are right by themselves and contradict each other.
func checkRules(d *decoder, c *Config) {
	checkListen(d, c.Listen.Addresses)
	checkListenTLS(d, &c.Listen)
	checkRoutes(d, c)
	checkOrder(d, "cache.minTTL", "cache.maxTTL", c.Cache.MinTTL, c.Cache.MaxTTL, formatDuration)
	checkOrder(d, "limits.inflight", "limits.waiting", c.Limits.Inflight, c.Limits.Waiting, strconv.Itoa)
	checkOrder(d, "limits.tcpPerClient", "limits.tcpSessions", c.Limits.TCPPerClient, c.Limits.TCPSessions, strconv.Itoa)
	checkOrder(d, "snapshot.period", "snapshot.maxAge", c.Snapshot.Period, c.Snapshot.MaxAge, formatDuration)
	if d.isSet("rewrite") {
		checkRewrites(d, c.Rewrite)
	}
	if d.isSet("etcd") {
		checkEtcd(d, c)
	}
	checkServeStale(d, c)
	checkKeep(d, c)
	checkAdmin(d, c)
	checkSockets(d, c)
	checkProbes(d, c.Probes)
	d.check(len(c.RequiredNames) > maxRequiredNames, "requiredNames", fmt.Sprintf("%d names: at most %d", len(c.RequiredNames), maxRequiredNames), "one name of each route shows what this is for")
	checkCluster(d, &c.Cluster)
	if cluster := &c.Cluster; len(cluster.Domains)+len(cluster.Fallthrough)+len(cluster.Federations)+len(cluster.ClusterSet) > 0 || d.isSet("cluster.external") {
		checkNames(d, c)
	}
	if d.role == Resolver {
		checkResolver(d, &c.Cluster)
		checkNoNode(d, c)
	} else {
		checkCentral(d, &c.Cluster)
		checkZones(d, c)
		d.check(c.Pods.Identity != IdentityOff && c.Cluster.Manifests != "", "pods.identity",
			fmt.Sprintf("%q: with cluster.manifests the agent watches no pods", c.Pods.Identity), "leave out one of them", "cluster.manifests")
		d.check(c.Pods.SearchPath && c.Pods.Identity == IdentityOff, "pods.searchPath", `"on": needs pods.identity`, "set pods.identity to api, kubelet or auto")
		checkNode(d, c)
	}
	checkPush(d, c)
	checkClusterRoute(d, c)
	checkOwn(d, c)
	if d.checking {
		checkEffects(d, c)
	}
}

// checkOrder reports a key that must not be larger than another.
func checkOrder[T int | ~int64](d *decoder, small, large string, a, b T, spell func(T) string) {
	d.check(a > b, small, fmt.Sprintf("%s: more than %s, which is %s", spell(a), large, spell(b)),
		"set both, one of them may be at its default", large)
}

// checkTogether reports two keys that must not both be set.
func checkTogether(d *decoder, first, second string, firstSet, secondSet bool, hint string) {
	d.check(firstSet && secondSet, second, "set beside "+first, hint, first)
}

// checkRoutes reports what contradicts itself in a route, or in the list of them.
func checkRoutes(d *decoder, c *Config) {
	seen := map[string]string{}
	for i := range c.Forward {
		r, path := &c.Forward[i], fmt.Sprintf("forward[%d]", i)
		first, again := seen[r.Zone]
		d.check(again && r.Zone != "", path+".zone", quote(r.Zone)+": already at "+first, "")
		if !again {
			seen[r.Zone] = path
		}
		if d.clean(path+".to", path+".bootstrap", path+".tls") {
			checkNone(d, path, r)
			checkNamed(d, path, r)
			checkCA(d, path, r)
			checkTwice(d, path, r)
		}
		if d.isSet(path+".minTTL") || d.isSet(path+".maxTTL") { // the bounds in section cache have another check
			checkTTLs(d, path, r)
		}
	}
	if seen["."] == "" && seen[""] == "" && !slices.Contains(c.Cluster.Zones, ".") { // a zone that could not be read may have been the root
		d.check(true, "forward", `no route for the zone "."`, `add {zone: ".", to: ["/etc/resolv.conf"]}`)
	}
}

// checkTTLs reports the bounds of a route where the lower is above the upper.
func checkTTLs(d *decoder, path string, r *Route) {
	low, high := path+".minTTL", path+".maxTTL"
	broken, least, most := r.MinTTL > r.MaxTTL, formatDuration(r.MinTTL), formatDuration(r.MaxTTL)
	switch {
	case !d.isSet(low):
		d.check(broken, high, most+": less than cache.minTTL, which is "+least, "set "+low+" as well", "cache.minTTL")
	case !d.isSet(high):
		d.check(broken, low, least+": more than cache.maxTTL, which is "+most, "set "+high+" as well", "cache.maxTTL")
	default:
		d.check(broken, low, fmt.Sprintf("%s: more than %s, which is %s", least, high, most), "", high)
	}
}

// checkNone reports the target none beside upstreams.
func checkNone(d *decoder, path string, r *Route) {
	i := slices.Index(r.To, Target{Kind: None})
	d.check(i >= 0 && len(r.To) > 1, fmt.Sprintf("%s.to[%d]", path, i), `"none": beside other upstreams`, "leave it or the others out")
}

// checkNamed reports a host name without addresses, addresses without a host name, and two names for one list of
// addresses.
func checkNamed(d *decoder, path string, r *Route) {
	upstream := func(i int) string { return fmt.Sprintf("%s.to[%d]", path, i) }
	first := -1
	for i, t := range r.To {
		switch {
		case t.Kind != HTTPS || t.Addr.Addr().IsValid():
		case first >= 0:
			d.report(upstream(i), quote(t.String())+": the second with a host name, after "+upstream(first),
				"bootstrap has the addresses of one host: write https:// and an address with #name behind it")
		default:
			first = i
		}
	}
	switch {
	case first >= 0 && len(r.Bootstrap) == 0:
		d.report(upstream(first), quote(r.To[first].String())+": needs "+path+".bootstrap",
			"list the addresses of the host there: no server could be asked for them")
	case first < 0 && len(r.Bootstrap) > 0:
		d.report(path+".bootstrap", "a list: no upstream has a host name in its URL", "leave it out")
	}
}

// checkCA reports a file of certificates on a route without a server that presents one.
func checkCA(d *decoder, path string, r *Route) {
	encrypted := slices.ContainsFunc(r.To, func(t Target) bool { return t.Kind == TLS || t.Kind == HTTPS })
	d.check(r.CA != "" && !encrypted, path+".tls.ca", quote(r.CA)+": no upstream is asked over TLS or HTTPS",
		"leave it out, or write tls:// or https:// in "+path+".to")
}

// checkTwice reports an address that is asked twice over the same transport.
func checkTwice(d *decoder, path string, r *Route) {
	seen := map[Target]string{}
	for i, t := range r.To {
		if t.Kind == ResolvConf {
			continue
		}
		upstream := fmt.Sprintf("%s.to[%d]", path, i)
		one := Route{To: []Target{t}, Bootstrap: r.Bootstrap}
		for _, u := range one.Upstreams() {
			at := Target{Kind: u.Kind, Addr: u.Addr}
			if first, again := seen[at]; again {
				d.report(upstream, fmt.Sprintf("%s: %s is already asked at %s", quote(t.String()), u.Addr, first),
					"")
				break
			}
			seen[at] = upstream
		}
	}
}

// checkServeStale reports a stale answer that would come after the query has been given up.
func checkServeStale(d *decoder, c *Config) {
	s := c.Cache.ServeStale
	d.check(s.For != 0 && s.After >= c.Limits.Deadline, "cache.serveStale.after",
		fmt.Sprintf("%s: not below limits.deadline, which is %s", formatDuration(s.After), formatDuration(c.Limits.Deadline)),
		"set both, one of them may be at its default, or write for: 0s to give no stale answers", "cache.serveStale.for",
		"limits.deadline")
}

// checkSockets reports a path that handover.socket and admin.socket share.
func checkSockets(d *decoder, c *Config) {
	d.check(c.Handover.Socket != "" && c.Handover.Socket == c.Admin.Socket, "handover.socket",
		quote(c.Handover.Socket)+": the path of admin.socket", "choose another path", "admin.socket")
}

// maxRequiredNames bounds requiredNames: a new agent asks all of them at once.
const maxRequiredNames = 16

// checkProbes reports a label of two probes, and a probe that would still wait when it is due again.
func checkProbes(d *decoder, probes []Probe) {
	seen := map[string]string{}
	for i, p := range probes {
		path := fmt.Sprintf("probes[%d]", i)
		first, again := seen[p.Label]
		d.check(again && p.Label != "", path+".label", quote(p.Label)+": already at "+first, "")
		seen[p.Label] = path
		checkOrder(d, path+".timeout", path+".interval", p.Timeout, p.Interval, formatDuration)
	}
}

// checkCluster reports settings of the cluster that contradict each other, of an agent or a central resolver.
func checkCluster(d *decoder, c *Cluster) {
	checkTogether(d, "cluster.kubeconfig", "cluster.manifests", c.Kubeconfig != "", c.Manifests != "",
		"objects come from an API server or from a folder")
	d.check(c.Context != "" && c.Kubeconfig == "", "cluster.context", quote(c.Context)+": needs cluster.kubeconfig",
		"a pod's service account has no contexts", "cluster.kubeconfig")
	checkTogether(d, "cluster.namespaces", "cluster.namespaceSelector", len(c.Namespaces) > 0, c.NamespaceSelector != "",
		"list the namespaces or select them")
	checkNeedsCentral(d, c, c.Invalidate, "cluster.invalidate", "true", "leave it out: what changes in the view that answers here is dropped anyhow")
	d.check(c.IgnoreEmptyService && c.Endpoints != EndpointsAll, "cluster.ignoreEmptyService",
		"true: needs cluster.endpoints: all, which is "+c.Endpoints,
		"only when every endpoint is known can a service be known to have none", "cluster.endpoints")
	d.check(c.TransferKeys != "" && len(c.TransferTo) == 0, "cluster.transferKeys", "a file: needs cluster.transferTo",
		"list the secondary servers", "cluster.transferTo")
}

// checkPush reports clients that would subscribe to names that another server answers too: nothing is known of its changes.
func checkPush(d *decoder, c *Config) {
	set := len(c.Push.Clients) > 0
	d.check(set && c.Cluster.Resolver != ResolverLocal, "push.clients", "a list: needs cluster.resolver: local, which is "+c.Cluster.Resolver,
		"leave it out, or set it for node-cache resolver", "cluster.resolver")
	d.check(set && c.Cluster.Resolver == ResolverLocal && c.Cluster.Central.IsSet(), "push.clients", "a list: not with cluster.central",
		"set it for node-cache resolver: its zone is the only source of the cluster's names", "cluster.central")
}

// checkCentral reports a central resolver that is missing or named twice.
func checkCentral(d *decoder, c *Cluster) {
	checkTogether(d, "cluster.central.service", "cluster.central.addresses",
		c.Central.Service != ServiceName{}, len(c.Central.Addresses) > 0,
		"the endpoints of the service are followed: keep the addresses only where there is no service")
	headless := c.Central.Headless != ServiceName{}
	d.check(headless && !c.Central.IsSet(), "cluster.central.headless", quote(c.Central.Headless.String())+": needs cluster.central.service or cluster.central.addresses",
		"name the resolver's Service, or its cluster IP: it is asked for the endpoints", "cluster.central")
	d.check(headless && c.Resolver == ResolverNone, "cluster.central.headless", quote(c.Central.Headless.String())+": needs cluster.resolver: central, which is none",
		"leave it out", "cluster.resolver")
	d.check(c.Central.CA != "" && c.Central.ServerName == "", "cluster.central.tls.ca", "a file: needs cluster.central.tls.serverName",
		"set the name in the certificates too", "cluster.central.tls.serverName")
	checkNeedsCentral(d, c, c.Central.Push, "cluster.central.push", "on", "leave it out: this process knows of the changes itself")
	checkTogether(d, "cluster.central.push", "cluster.invalidate", c.Central.Push, c.Invalidate,
		"push reports the changes of Services too, and needs no watch of them")
	d.check(c.Resolver == ResolverCentral && !c.Central.IsSet(), "cluster.resolver",
		`"central": needs cluster.central.service or cluster.central.addresses`,
		"say who is asked, like central: {service: kube-system/kube-dns}", "cluster.central")
}

// checkZones reports cluster.zones if no central resolver is asked, and zones in it whose queries the central resolver does not get.
func checkZones(d *decoder, c *Config) {
	d.check(len(c.Cluster.Zones) > 0 && (c.Cluster.Resolver == ResolverNone || !c.Cluster.Central.IsSet()), "cluster.zones",
		"a list: needs cluster.resolver: local or central, and cluster.central", "write a route for each zone in forward", "cluster.central", "cluster.resolver")
	for i, zone := range c.Cluster.Zones {
		path := fmt.Sprintf("cluster.zones[%d]", i)
		d.check(slices.Contains(c.Domains(), zone), path, quote(zone)+": the cluster domain", "leave it out", "clusterDomain")
		route := slices.IndexFunc(c.Forward, func(r Route) bool { return r.Zone == zone })
		hint := map[bool]string{true: "write forward: [], or the routes of other zones alone", false: "leave out one of them"}[zone == "."]
		d.check(route >= 0, path, fmt.Sprintf("%s: has a route, forward[%d]", quote(zone), route), hint)
	}
}

// checkNeedsCentral reports a key that is set, with a value, although no central resolver answers the cluster's names. The hint is for a
// process that answers them itself.
func checkNeedsCentral(d *decoder, c *Cluster, set bool, key, value, hint string) {
	if c.Resolver == ResolverNone {
		hint = "set cluster.resolver: central, and name the central resolver in cluster.central"
	}
	d.check(set && c.Resolver != ResolverCentral, key, value+": needs cluster.resolver: central, which is "+c.Resolver, hint, "cluster.resolver")
}

// checkClusterRoute reports a route for the whole of a domain that is not forwarded.
// One for a name below it is a stub zone.
func checkClusterRoute(d *decoder, c *Config) {
	domains := c.Domains()
	if !c.Cluster.Central.IsSet() {
		domains = slices.DeleteFunc(domains, func(domain string) bool { return slices.Contains(c.Cluster.Fallthrough, domain) })
	}
	i := slices.IndexFunc(c.Forward, func(route Route) bool { return slices.Contains(domains, route.Zone) })
	hint := "name those who are asked for it in cluster.central"
	if c.Cluster.Resolver == ResolverLocal && !c.Cluster.Central.IsSet() {
		hint = "leave the route out, or name the domain in cluster.fallthrough: one for a name below the domain may stay"
	}
	if i < 0 || c.Cluster.Resolver == ResolverNone {
		return
	}
	d.check(true, fmt.Sprintf("forward[%d].zone", i),
		fmt.Sprintf("%s: the cluster domain, which cluster.resolver: %s answers", quote(c.Forward[i].Zone), c.Cluster.Resolver),
		hint, "clusterDomain", "cluster.domains", "cluster.resolver")
}

// checkNode reports what contradicts itself in the settings of link and rules.
func checkNode(d *decoder, c *Config) {
	if c.Interface.Manage && d.clean("interface.manage", "listen.addresses") {
		checkHeld(d, c, "interface.manage")
	}
	checkMode(d, &c.Intercept)
	if c.Standby {
		checkStandby(d, &c.Intercept)
	}
	if !c.Intercept.Manage || !d.clean("intercept", "listen.addresses") {
		return
	}
	checkHeld(d, c, "intercept.manage")
	if c.Intercept.Mode == ModeTransparent {
		checkTransparent(d, c)
	}
	if c.Intercept.FallsBack() {
		checkFallback(d, c)
	}
}

// checkHeld reports listen addresses that no link of the agent can have, and no rule can name.
func checkHeld(d *decoder, c *Config, path string) {
	const hint = "listen on addresses of the agent's own, like 169.254.20.10"
	for i, a := range c.Listen.Addresses {
		what := ""
		switch {
		case a.IsUnspecified():
			what = "which stands for all addresses"
		case a.IsLoopback():
			what = "a loopback address"
		case a.Zone() != "":
			what = "which is bound to a link"
		default:
			continue
		}
		d.report(path, fmt.Sprintf("true: not with listen.addresses[%d], %s, %s", i, quote(a.String()), what), hint)
		return
	}
}

// checkStandby reports standby where no other server would answer.
func checkStandby(d *decoder, i *Intercept) {
	d.check(!i.Manage, "standby", "true: needs intercept.manage: true, or queries still arrive here", "stop the agents, or send the pods to another server", "intercept.manage")
	d.check(i.Manage && i.FallsBack() && !i.Fallback.Central && len(i.Fallback.Addresses) == 0, "standby",
		"true: there is no fallback to answer", "name servers in intercept.fallback", "intercept.fallback")
}

// checkMode reports keys that the mode leaves without a meaning.
func checkMode(d *decoder, i *Intercept) {
	transparent := i.Mode == ModeTransparent
	d.check(!transparent && len(i.Services) > 0, "intercept.services",
		"a list: needs intercept.mode: transparent, which is "+i.Mode,
		"with link-local the pods ask listen.addresses: leave it out", "intercept.mode")
	d.check(!transparent && i.ServiceExcluded, "intercept.serviceExcluded",
		"true: needs intercept.mode: transparent, which is "+i.Mode,
		"with link-local the pods ask listen.addresses: leave it out", "intercept.mode")
	families := map[bool]bool{}
	for j, a := range i.Services {
		d.check(families[a.Is4()], fmt.Sprintf("intercept.services[%d]", j),
			quote(a.String())+": the second of its family", "name one IPv4 address, one IPv6 address or one of each")
		families[a.Is4()] = families[a.Is4()] || a.IsValid()
	}
	d.check(!i.FallsBack() && len(i.Fallback.Addresses) > 0, "intercept.fallback", "a list: not with intercept.mode: transparent",
		"leave it out: queries that the agent does not take go where they are addressed to", "intercept.mode")
	d.check(!i.FallsBack() && i.OnExit == ExitFallback, "intercept.onExit",
		quote(i.OnExit)+": not with intercept.mode: transparent",
		"write remove, or leave it out: without the rules queries go where they are addressed to", "intercept.mode")
}

// checkTransparent reports service addresses that are missing, or of a family without a listen address.
func checkTransparent(d *decoder, c *Config) {
	if c.Listen.Port != 53 && d.clean("listen.port") {
		d.report("intercept.mode", fmt.Sprintf(`"transparent": needs listen.port 53, which is %d`, c.Listen.Port),
			"pods ask the service at port 53, and the rules leave the port as it is")
	}
	if len(c.Intercept.Services) == 0 && c.Cluster.Central.Service == (ServiceName{}) && d.clean("cluster.central") {
		d.report("intercept.mode", `"transparent": needs intercept.services or cluster.central.service`,
			"say whose address the pods ask, like services: [10.96.0.10]")
	}
	for i, s := range c.Intercept.Services {
		path := fmt.Sprintf("intercept.services[%d]", i)
		switch {
		case slices.Contains(c.Listen.Addresses, s):
			d.report(path, quote(s.String())+": a listen address", "listen on an address of the agent's own, like 169.254.20.10")
		case !slices.ContainsFunc(c.Listen.Addresses, func(a netip.Addr) bool { return a.Is4() == s.Is4() }):
			d.report(path, quote(s.String())+": no listen address is of its family", "add one to listen.addresses")
		}
	}
}

// checkFallback reports a fallback that is missing, is the agent itself, or is an address that packets of pods
// cannot reach.
func checkFallback(d *decoder, c *Config) {
	if c.Intercept.Fallback.Central && !c.Cluster.Central.IsSet() && d.clean("cluster.central") {
		d.report("intercept.fallback", "central: needs cluster.central.service or cluster.central.addresses",
			"name the central resolver there, addresses in a list here, or write none")
	}
	for i, a := range c.Intercept.Fallback.Addresses {
		path := fmt.Sprintf("intercept.fallback[%d]", i)
		if a.Addr().IsLoopback() {
			d.report(path, quote(a.String())+": a loopback address, which no packet from elsewhere gets to",
				"name a server by an address that pods could ask it at")
		}
		if slices.Contains(c.Listen.Addresses, a.Addr()) {
			d.report(path, quote(a.String())+": a listen address",
				"name a server that answers when this agent does not")
		}
		if slices.Contains(c.Intercept.Services, a.Addr()) {
			d.report(path, quote(a.String())+": an address of intercept.services, where nothing but the agent answers",
				"name the servers behind the Service")
		}
	}
}

// checkFiles reports the files that c names and that are not what they should be.
func checkFiles(d *decoder, c *Config) {
	for i, route := range c.Forward {
		if route.CA != "" {
			checkCertificates(d, fmt.Sprintf("forward[%d].tls.ca", i), route.CA)
		}
	}
	if c.Cluster.Central.CA != "" {
		checkCertificates(d, "cluster.central.tls.ca", c.Cluster.Central.CA)
	}
	if c.Etcd.CA != "" {
		checkCertificates(d, "etcd.tls.ca", c.Etcd.CA)
	}
	if c.Cluster.TransferKeys != "" {
		checkTransferKeys(d, c.Cluster.TransferKeys)
	}
	if c.Cluster.Context != "" {
		checkContext(d, &c.Cluster)
	}
}

// resolveLocations makes the relative paths in c absolute: they begin at the folder.
func resolveLocations(c *Config, folder string) error {
	paths := make([]*string, 0, 6+len(c.Forward)+len(c.Hosts.Files)+len(c.Block.Files))
	paths = append(paths, &c.Cluster.Kubeconfig, &c.Cluster.Manifests, &c.Cluster.TransferKeys, &c.Cluster.Central.CA, &c.Snapshot.Folder, &c.Listen.Cert, &c.Listen.Key, &c.Admin.Cert, &c.Admin.Key)
	for _, files := range [][]string{c.Hosts.Files, c.Block.Files} {
		for i := range files {
			paths = append(paths, &files[i])
		}
	}
	for i := range c.Forward {
		paths = append(paths, &c.Forward[i].CA)
	}
	if len(c.Etcd.Endpoints) > 0 {
		paths = append(paths, c.Etcd.files()...)
	}
	for _, p := range paths {
		if *p == "" || filepath.IsAbs(*p) {
			continue
		}
		abs, err := filepath.Abs(filepath.Join(folder, *p))
		if err != nil {
			return fmt.Errorf("resolving %s: %w", *p, err)
		}
		*p = abs
	}
	for _, files := range []*[]string{&c.Hosts.Files, &c.Block.Files} {
		var unique []string // two spellings may have become one path
		for _, f := range *files {
			if !slices.Contains(unique, f) {
				unique = append(unique, f)
			}
		}
		*files = unique
	}
	return nil
}
