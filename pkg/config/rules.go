// SPDX-License-Identifier: Apache-2.0

package config

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// maxCertificates bounds a file of certificates. All that a system trusts take a quarter of it.
const maxCertificates = 1 << 20

// checkRules reports values that are right by themselves and contradict each other.
func checkRules(d *decoder, c *Config, role Role) {
	checkListen(d, c.Listen.Addresses)
	checkRoutes(d, c)
	checkOrder(d, "cache.minTTL", "cache.maxTTL", c.Cache.MinTTL, c.Cache.MaxTTL, formatDuration)
	checkOrder(d, "limits.inflight", "limits.waiting", c.Limits.Inflight, c.Limits.Waiting, strconv.Itoa)
	checkOrder(d, "limits.tcpPerClient", "limits.tcpSessions", c.Limits.TCPPerClient, c.Limits.TCPSessions, strconv.Itoa)
	checkOrder(d, "snapshot.period", "snapshot.maxAge", c.Snapshot.Period, c.Snapshot.MaxAge, formatDuration)
	if d.isSet("rewrite") {
		checkRewrites(d, c.Rewrite)
	}
	if d.isSet("templates") {
		checkTemplates(d, c.Templates)
	}
	checkServeStale(d, c)
	checkAdmin(d, c)
	checkSockets(d, c)
	checkProbes(d, c.Probes)
	checkCluster(d, &c.Cluster)
	if role == Resolver {
		checkResolver(d, &c.Cluster)
		checkNoNode(d, c)
	} else {
		checkCentral(d, &c.Cluster)
		checkNode(d, c)
	}
	checkClusterRoute(d, c, role)
}

// rule is a check of some values.
type rule struct {
	broken     bool
	path       string
	what, hint string
	with       []string // other keys whose values it compares
}

// check reports a broken rule, unless one of its values is bad by itself.
func (d *decoder) check(r rule) {
	if r.broken && d.clean(append(r.with, r.path)...) {
		d.add(Problem{Path: r.path, What: r.what, Hint: r.hint})
	}
}

// checkOrder reports a key that must not be larger than another.
func checkOrder[T int | ~int64](d *decoder, small, large string, a, b T, spell func(T) string) {
	d.check(rule{
		broken: a > b, path: small, with: []string{large}, what: fmt.Sprintf("%s: more than %s, which is %s", spell(a), large, spell(b)),
		hint: "set both, one of them may be at its default",
	})
}

// checkTogether reports two keys that must not both be set.
func checkTogether(d *decoder, first, second string, firstSet, secondSet bool, hint string) {
	d.check(rule{broken: firstSet && secondSet, path: second, with: []string{first}, what: "set beside " + first, hint: hint})
}

// checkListen reports each address that another one of the list stands for.
func checkListen(d *decoder, list []netip.Addr) {
	if !d.clean("listen.addresses") {
		return
	}
	wides := slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return !a.IsUnspecified() })
	for i, a := range list {
		wide := slices.IndexFunc(wides, func(wide netip.Addr) bool { return a != wide && covers(wide, a) })
		if wide >= 0 {
			d.add(Problem{
				Path: fmt.Sprintf("listen.addresses[%d]", i), What: fmt.Sprintf("%s: already covered by %s", quote(a.String()), wides[wide]),
				Hint: "list single addresses, or the unspecified one alone",
			})
		}
	}
}

// checkRoutes reports what contradicts itself in a route, or in the list of them.
func checkRoutes(d *decoder, c *Config) {
	seen := map[string]string{}
	for i := range c.Forward {
		r, path := &c.Forward[i], fmt.Sprintf("forward[%d]", i)
		first, again := seen[r.Zone]
		d.check(rule{broken: again && r.Zone != "", path: path + ".zone", what: quote(r.Zone) + ": already at " + first})
		if !again {
			seen[r.Zone] = path
		}
		if d.clean(path+".to", path+".bootstrap", path+".tls") {
			checkNamed(d, path, r)
			checkCA(d, path, r)
			checkTwice(d, path, r)
		}
		if d.isSet(path+".minTTL") || d.isSet(path+".maxTTL") { // else it is the rule of the cache
			checkTTLs(d, path, r)
		}
	}
	if seen["."] == "" && seen[""] == "" { // a zone that could not be read may have been the root
		d.check(rule{broken: true, path: "forward", what: `no route for the zone "."`, hint: `add {zone: ".", to: ["/etc/resolv.conf"]}`})
	}
}

// checkTTLs reports the bounds of a route where the lower is above the upper.
func checkTTLs(d *decoder, path string, r *Route) {
	low, high := path+".minTTL", path+".maxTTL"
	p := rule{broken: r.MinTTL > r.MaxTTL}
	switch {
	case !d.isSet(low):
		p.path, p.with = high, []string{"cache.minTTL"}
		p.what, p.hint = fmt.Sprintf("%s: less than cache.minTTL, which is %s", formatDuration(r.MaxTTL), formatDuration(r.MinTTL)), "set "+low+" as well"
	case !d.isSet(high):
		p.path, p.with = low, []string{"cache.maxTTL"}
		p.what, p.hint = fmt.Sprintf("%s: more than cache.maxTTL, which is %s", formatDuration(r.MinTTL), formatDuration(r.MaxTTL)), "set "+high+" as well"
	default:
		p.path, p.with = low, []string{high}
		p.what = fmt.Sprintf("%s: more than %s, which is %s", formatDuration(r.MinTTL), high, formatDuration(r.MaxTTL))
	}
	d.check(p)
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
			d.add(Problem{
				Path: upstream(i), What: quote(t.String()) + ": the second with a host name, after " + upstream(first),
				Hint: "bootstrap has the addresses of one host: write https:// and an address with #name behind it",
			})
		default:
			first = i
		}
	}
	switch {
	case first >= 0 && len(r.Bootstrap) == 0:
		d.add(Problem{
			Path: upstream(first), What: quote(r.To[first].String()) + ": needs " + path + ".bootstrap",
			Hint: "list the addresses of the host there: no server could be asked for them",
		})
	case first < 0 && len(r.Bootstrap) > 0:
		d.add(Problem{Path: path + ".bootstrap", What: "a list: no upstream has a host name in its URL", Hint: "leave it out"})
	}
}

// checkCA reports a file of certificates on a route without a server that presents one.
func checkCA(d *decoder, path string, r *Route) {
	encrypted := slices.ContainsFunc(r.To, func(t Target) bool { return t.Kind == TLS || t.Kind == HTTPS })
	d.check(rule{
		broken: r.CA != "" && !encrypted, path: path + ".tls.ca", what: quote(r.CA) + ": no upstream is asked over TLS or HTTPS",
		hint: "leave it out, or write tls:// or https:// in " + path + ".to",
	})
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
				d.add(Problem{Path: upstream, What: fmt.Sprintf("%s: %s is already asked at %s", quote(t.String()), u.Addr, first)})
				break
			}
			seen[at] = upstream
		}
	}
}

// checkServeStale reports a stale answer that would come after the query has been given up.
func checkServeStale(d *decoder, c *Config) {
	s := c.Cache.ServeStale
	d.check(rule{
		broken: s.For != 0 && s.After >= c.Limits.Deadline, path: "cache.serveStale.after", with: []string{"cache.serveStale.for", "limits.deadline"},
		what: fmt.Sprintf("%s: not below limits.deadline, which is %s", formatDuration(s.After), formatDuration(c.Limits.Deadline)),
		hint: "set both, one of them may be at its default, or write for: 0s to give no stale answers",
	})
}

// checkAdmin reports an admin address that the DNS sockets take.
func checkAdmin(d *decoder, c *Config) {
	admin := c.Admin.Address
	taken := admin.IsValid() && admin.Port() == c.Listen.Port && slices.ContainsFunc(c.Listen.Addresses, func(a netip.Addr) bool {
		return covers(a, admin.Addr()) || covers(admin.Addr(), a)
	})
	if taken && d.clean("listen", "admin") {
		d.add(Problem{Path: "admin.address", What: quote(admin.String()) + ": taken by listen", Hint: "choose another port"})
	}
}

// checkSockets reports one path for two sockets.
func checkSockets(d *decoder, c *Config) {
	d.check(rule{
		broken: c.Handover.Socket != "" && c.Handover.Socket == c.Admin.Socket, path: "handover.socket", with: []string{"admin.socket"},
		what: quote(c.Handover.Socket) + ": the path of admin.socket", hint: "choose another path",
	})
}

// checkProbes reports a label of two probes, and a probe that would still wait when it is due again.
func checkProbes(d *decoder, probes []Probe) {
	seen := map[string]string{}
	for i, p := range probes {
		path := fmt.Sprintf("probes[%d]", i)
		first, again := seen[p.Label]
		d.check(rule{broken: again && p.Label != "", path: path + ".label", what: quote(p.Label) + ": already at " + first})
		seen[p.Label] = path
		checkOrder(d, path+".timeout", path+".interval", p.Timeout, p.Interval, formatDuration)
	}
}

// checkCluster reports settings of the cluster that contradict each other, of an agent or a central resolver.
func checkCluster(d *decoder, c *Cluster) {
	checkTogether(d, "cluster.kubeconfig", "cluster.manifests", c.Kubeconfig != "", c.Manifests != "",
		"objects come from an API server or from a folder")
	checkTogether(d, "cluster.namespaces", "cluster.namespaceSelector", len(c.Namespaces) > 0, c.NamespaceSelector != "",
		"list the namespaces or select them")
	hint := "leave it out: what changes in the view that answers here is dropped anyhow"
	if c.Resolver == ResolverNone {
		hint = "set cluster.resolver: central, and name the central resolver in cluster.central"
	}
	d.check(rule{
		broken: c.Invalidate && c.Resolver != ResolverCentral, path: "cluster.invalidate", with: []string{"cluster.resolver"},
		what: "true: needs cluster.resolver: central, which is " + c.Resolver.String(), hint: hint,
	})
	d.check(rule{
		broken: c.IgnoreEmptyService && c.Endpoints != EndpointsAll, path: "cluster.ignoreEmptyService", with: []string{"cluster.endpoints"},
		what: "true: needs cluster.endpoints: all, which is " + c.Endpoints.String(),
		hint: "only when every endpoint is known can a service be known to have none",
	})
}

// checkCentral reports a central resolver that is missing or named twice.
func checkCentral(d *decoder, c *Cluster) {
	checkTogether(d, "cluster.central.service", "cluster.central.addresses", c.Central.Service != ServiceName{}, len(c.Central.Addresses) > 0,
		"the endpoints of the service are followed: keep the addresses only where there is no service")
	d.check(rule{
		broken: c.Resolver == ResolverCentral && !c.Central.IsSet(), path: "cluster.resolver", with: []string{"cluster.central"},
		what: `"central": needs cluster.central.service or cluster.central.addresses`,
		hint: "say who is asked, like central: {service: kube-system/kube-dns}",
	})
}

// checkResolver reports what leaves a central resolver without its duty, or gives it another one above it.
func checkResolver(d *decoder, c *Cluster) {
	d.check(rule{
		broken: c.Resolver != ResolverLocal, path: "cluster.resolver",
		what: quote(c.Resolver.String()) + ": not local, the only value for node-cache resolver", hint: "leave it out",
	})
	for _, r := range []rule{
		{path: "service", what: quote(c.Central.Service.String()), broken: c.Central.Service != ServiceName{}},
		{path: "addresses", what: "a list", broken: len(c.Central.Addresses) > 0},
		{path: "connections", what: strconv.Itoa(c.Central.Connections), broken: c.Central.Connections != Default(Resolver).Cluster.Central.Connections},
	} {
		r.path, r.what = "cluster.central."+r.path, r.what+": not for node-cache resolver"
		r.hint = "leave it out: the resolver is the central one and asks no other"
		d.check(r)
	}
}

// checkNoNode reports link, rules and handover in the configuration of a central resolver.
func checkNoNode(d *decoder, c *Config) {
	standard := Default(Resolver)
	for _, r := range []rule{
		{path: "interface", broken: c.Interface != standard.Interface},
		{path: "handover", broken: c.Handover != standard.Handover, hint: "leave it out: a resolver has an address of its own, and others beside it"},
		{path: "intercept", broken: !reflect.DeepEqual(c.Intercept, standard.Intercept)},
	} {
		r.what = "not for node-cache resolver"
		if r.hint == "" {
			r.hint = "leave it out: the agent of each node has a link and rules"
		}
		d.check(r)
	}
}

// checkClusterRoute reports a route for the whole of a domain that is not forwarded.
// One for a name below it is a stub zone.
func checkClusterRoute(d *decoder, c *Config, role Role) {
	i := slices.IndexFunc(c.Forward, func(route Route) bool { return route.Zone == c.ClusterDomain })
	hint := "name those who are asked for it in cluster.central"
	if role == Resolver {
		hint = "leave the route out: one for a name below the domain may stay"
	}
	d.check(rule{
		broken: i >= 0 && c.Cluster.Resolver != ResolverNone, path: fmt.Sprintf("forward[%d].zone", i), with: []string{"clusterDomain", "cluster.resolver"},
		what: fmt.Sprintf("%s: the cluster domain, which cluster.resolver: %s answers", quote(c.ClusterDomain), c.Cluster.Resolver),
		hint: hint,
	})
}

// checkNode reports what contradicts itself in the settings of link and rules.
func checkNode(d *decoder, c *Config) {
	if c.Interface.Manage && d.clean("interface.manage", "listen.addresses") {
		checkHeld(d, c, "interface.manage")
	}
	checkMode(d, &c.Intercept)
	if !c.Intercept.Manage || !d.clean("intercept", "listen.addresses") {
		return
	}
	checkHeld(d, c, "intercept.manage")
	if c.Intercept.Mode == ModeTransparent {
		checkTransparent(d, c)
	} else {
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
		d.add(Problem{Path: path, What: fmt.Sprintf("true: not with listen.addresses[%d], %s, %s", i, quote(a.String()), what), Hint: hint})
		return
	}
}

// checkMode reports keys that the mode leaves without a meaning.
func checkMode(d *decoder, i *Intercept) {
	mode, transparent := []string{"intercept.mode"}, i.Mode == ModeTransparent
	d.check(rule{
		broken: !transparent && len(i.Services) > 0, path: "intercept.services", with: mode,
		what: "a list: needs intercept.mode: transparent, which is " + i.Mode.String(),
		hint: "with link-local the pods ask listen.addresses: leave it out",
	})
	families := map[bool]bool{}
	for j, a := range i.Services {
		d.check(rule{
			broken: families[a.Is4()], path: fmt.Sprintf("intercept.services[%d]", j), what: quote(a.String()) + ": the second of its family",
			hint: "name one IPv4 address, one IPv6 address or one of each",
		})
		families[a.Is4()] = true
	}
	d.check(rule{
		broken: transparent && len(i.Fallback.Addresses) > 0, path: "intercept.fallback", with: mode, what: "a list: not with intercept.mode: transparent",
		hint: "leave it out: queries that the agent does not take go where they are addressed to",
	})
	d.check(rule{
		broken: transparent && i.OnExit == ExitFallback, path: "intercept.onExit", with: mode,
		what: quote(i.OnExit.String()) + ": not with intercept.mode: transparent",
		hint: "write remove, or leave it out: without the rules queries go where they are addressed to",
	})
}

// checkTransparent reports service addresses that are missing, or of a family without a listen address.
func checkTransparent(d *decoder, c *Config) {
	if c.Listen.Port != 53 && d.clean("listen.port") {
		d.add(Problem{
			Path: "intercept.mode", What: fmt.Sprintf(`"transparent": needs listen.port 53, which is %d`, c.Listen.Port),
			Hint: "pods ask the service at port 53, and the rules leave the port as it is",
		})
	}
	if len(c.Intercept.Services) == 0 && c.Cluster.Central.Service == (ServiceName{}) && d.clean("cluster.central") {
		d.add(Problem{
			Path: "intercept.mode", What: `"transparent": needs intercept.services or cluster.central.service`,
			Hint: "say whose address the pods ask, like services: [10.96.0.10]",
		})
	}
	for i, s := range c.Intercept.Services {
		p := Problem{Path: fmt.Sprintf("intercept.services[%d]", i)}
		switch {
		case slices.Contains(c.Listen.Addresses, s):
			p.What, p.Hint = quote(s.String())+": a listen address", "listen on an address of the agent's own, like 169.254.20.10"
		case !slices.ContainsFunc(c.Listen.Addresses, func(a netip.Addr) bool { return a.Is4() == s.Is4() }):
			p.What, p.Hint = quote(s.String())+": no listen address is of its family", "add one to listen.addresses"
		default:
			continue
		}
		d.add(p)
	}
}

// checkFallback reports a fallback that is missing, is the agent itself, or is an address that packets of pods
// cannot reach.
func checkFallback(d *decoder, c *Config) {
	if c.Intercept.Fallback.Central && !c.Cluster.Central.IsSet() && d.clean("cluster.central") {
		d.add(Problem{
			Path: "intercept.fallback", What: "central: needs cluster.central.service or cluster.central.addresses",
			Hint: "name the central resolver there, addresses in a list here, or write none",
		})
	}
	for i, a := range c.Intercept.Fallback.Addresses {
		path := fmt.Sprintf("intercept.fallback[%d]", i)
		if a.Addr().IsLoopback() {
			d.add(Problem{
				Path: path, What: quote(a.String()) + ": a loopback address, which no packet from elsewhere gets to",
				Hint: "name a server by an address that pods could ask it at",
			})
		}
		if slices.Contains(c.Listen.Addresses, a.Addr()) {
			d.add(Problem{Path: path, What: quote(a.String()) + ": a listen address", Hint: "name a server that answers when this agent does not"})
		}
	}
}

// checkFiles reports the files that c names and that are not what they should be.
func checkFiles(d *decoder, c *Config) {
	for i, route := range c.Forward {
		key := fmt.Sprintf("forward[%d].tls.ca", i)
		if route.CA == "" || !d.clean(key) {
			continue
		}
		if p := certificatesProblem(route.CA); p != nil {
			d.add(Problem{Path: key, What: quote(route.CA) + ": " + p.What, Hint: p.Hint})
		}
	}
}

// certificatesProblem says why a file is none of certificates.
func certificatesProblem(path string) *Problem {
	rest, err := filewatch.ReadFile(path, maxCertificates)
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err // without the path
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return problem(err.Error(), "name a file that this user can read")
	case err != nil:
		return problem(err.Error(), "")
	}
	for n := 0; ; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		switch {
		case block == nil && n == 0:
			return problem("no certificate in it", "it begins with -----BEGIN CERTIFICATE-----")
		case block == nil:
			return nil
		case block.Type != "CERTIFICATE":
			continue
		}
		n++
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return problem(fmt.Sprintf("certificate %d: %v", n, err), "")
		}
	}
}

// resolveLocations makes the relative paths in c absolute: they begin at the folder of the configuration file.
func resolveLocations(c *Config, file string) error {
	paths := make([]*string, 0, 3+len(c.Forward)+len(c.Hosts.Files))
	paths = append(paths, &c.Cluster.Kubeconfig, &c.Cluster.Manifests, &c.Snapshot.Folder)
	for i := range c.Hosts.Files {
		paths = append(paths, &c.Hosts.Files[i])
	}
	for i := range c.Forward {
		paths = append(paths, &c.Forward[i].CA)
	}
	for _, p := range paths {
		if *p == "" || filepath.IsAbs(*p) {
			continue
		}
		abs, err := filepath.Abs(filepath.Join(filepath.Dir(file), *p))
		if err != nil {
			return fmt.Errorf("resolving %s: %w", *p, err)
		}
		*p = abs
	}
	var files []string // one may have been written in two ways
	for _, f := range c.Hosts.Files {
		if !slices.Contains(files, f) {
			files = append(files, f)
		}
	}
	c.Hosts.Files = files
	return nil
}
