// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/config"
)

// maxRounds bounds the rounds of validation: each round removes the items that it refuses.
const maxRounds = 25

// result completes the lists and validates the configuration.
func (c *converter) result() (*Result, error) {
	for range maxRounds {
		c.lists()
		normal, err := config.Normalize(c.cfg, config.Agent)
		if err == nil {
			sortNotes(c.notes)
			return &Result{Config: normal, Notes: c.notes, origins: c.origins, blocks: c.blocks(), service: c.service()}, nil
		}
		var bad *config.Error
		if !errors.As(err, &bad) {
			return nil, fmt.Errorf("checking the converted configuration: %w", err)
		}
		located := slices.DeleteFunc(slices.Clone(bad.Problems), func(p config.Problem) bool { return p.Path == "" })
		if len(located) == 0 {
			return nil, fmt.Errorf("checking the converted configuration: %s: name a file with the names in hosts.files, or run more than one agent", bad.Problems[0].What)
		}
		c.remove(located)
	}
	return nil, errors.New("checking the converted configuration: too many problems")
}

// lists copies the routes, rewrites, templates and hosts of all blocks into the configuration, with the origin of each item.
func (c *converter) lists() {
	maps.DeleteFunc(c.origins, func(path string, _ origin) bool { return strings.Contains(path, "[") })
	c.cfg.Forward, c.cfg.Rewrite, c.cfg.Templates, c.cfg.Hosts.Names = []config.Route{}, nil, nil, nil
	routes := slices.Clone(c.routes)
	for _, s := range c.servers {
		routes = append(routes, s.routes...)
		for _, r := range s.rewrites {
			c.origins[fmt.Sprintf("rewrite[%d]", len(c.cfg.Rewrite))] = r.origin
			c.cfg.Rewrite = append(c.cfg.Rewrite, r.value)
		}
		for _, t := range s.templates {
			c.origins[fmt.Sprintf("templates[%d]", len(c.cfg.Templates))] = t.origin
			c.cfg.Templates = append(c.cfg.Templates, t.value)
		}
		c.addHosts(s)
	}
	routes = c.closeZones(c.leaveZones(routes))
	var bounds ttls
	if i := slices.IndexFunc(routes, func(r route) bool { return r.Zone == "." }); i >= 0 {
		bounds = routes[i].ttls
	} else if !slices.Contains(c.cfg.Cluster.Zones, ".") {
		routes = append(routes, route{Route: config.Default(config.Agent).Forward[0]})
	}
	if c.central != nil { // the bounds in section cache are for cached names of the cluster: routes get the defaults
		standard := config.Default(config.Agent).Cache
		bounds.max, bounds.negative = cmp.Or(bounds.max, &standard.MaxTTL), cmp.Or(bounds.negative, &standard.NegativeTTL)
	}
	for i, r := range routes {
		r.fill(&r.Route, &bounds, &c.cfg.Cache)
		c.cfg.Forward = append(c.cfg.Forward, r.Route)
		c.origins[fmt.Sprintf("forward[%d]", i)] = r.origin
	}
}

// leftZones returns the zones that are left to the old server, each once.
func (c *converter) leftZones() (list []sourced[string]) {
	for _, s := range c.servers {
		for _, l := range s.left {
			if !slices.ContainsFunc(list, func(other sourced[string]) bool { return other.value == l.value }) {
				list = append(list, l)
			}
		}
	}
	return list
}

// leaveZones removes the routes of the zones that are left to the old server, and sends their queries there: to the old
// server as the central resolver, or by routes to its address if it does not serve the cluster.
func (c *converter) leaveZones(routes []route) []route {
	cluster := &c.cfg.Cluster
	cluster.Zones = nil
	for _, l := range c.leftZones() {
		routes = slices.DeleteFunc(routes, func(r route) bool { return r.Zone == l.value })
		if !c.servesCluster {
			routes = append(routes, route{Route: config.DefaultRoute(l.value, config.Target{Addr: c.OldServer}), origin: l.origin})
			continue
		}
		if cluster.Resolver != config.ResolverLocal && below(cmp.Or(c.clusterZone, "."), l.value) {
			c.cfg.ClusterDomain, cluster.Resolver = cmp.Or(c.clusterZone, c.cfg.ClusterDomain), config.ResolverCentral
			c.origins["cluster.resolver"] = l.origin
		}
		c.askCentral()
		if l.value != c.cfg.ClusterDomain {
			cluster.Zones = append(cluster.Zones, l.value)
			c.origins["cluster.zones"] = l.origin
		}
	}
	return routes
}

// closeZones adds routes without an upstream for the closed zones that have no route and that no resolver of the cluster answers.
func (c *converter) closeZones(routes []route) []route {
	closed := slices.Clone(c.closed)
	for _, s := range c.servers {
		closed = append(closed, s.closed...)
	}
	for _, z := range closed {
		isCluster := c.cfg.Cluster.Resolver != config.ResolverNone && slices.Contains(c.cfg.Domains(), z.value)
		isRouted := slices.ContainsFunc(routes, func(r route) bool { return r.Zone == z.value })
		if !isCluster && !isRouted && !slices.Contains(c.cfg.Cluster.Zones, z.value) {
			routes = append(routes, route{Route: config.DefaultRoute(z.value, config.Target{Kind: config.None}), origin: z.origin})
		}
	}
	return routes
}

// askCentral names the old server as the central resolver.
func (c *converter) askCentral() {
	central := &c.cfg.Cluster.Central
	if c.cfg.Cluster.Resolver == config.ResolverNone {
		c.cfg.Cluster.Resolver = config.ResolverCentral
	}
	switch {
	case central.IsSet():
	case c.OldServer.IsValid():
		central.Addresses = []netip.AddrPort{c.OldServer}
		c.origins["cluster.central.addresses"] = origin{text: "the old server, which stays"}
	default:
		central.Service = c.service()
		c.origins["cluster.central.service"] = origin{text: "the old server, which stays"}
	}
}

// blocks returns the zones of the server blocks that each line is in: several blocks may import it.
func (c *converter) blocks() map[place][]string {
	zones := map[place][]string{}
	for _, s := range c.servers {
		zones[s.at] = append(zones[s.at], s.zones...)
		for _, st := range s.plugins {
			for _, one := range append(st.body, st) {
				zones[one.at] = append(zones[one.at], s.zones...)
			}
		}
	}
	return zones
}

// service returns the Service of the cluster's DNS.
func (c *converter) service() config.ServiceName {
	return cmp.Or(c.Service, config.ServiceName{Namespace: "kube-system", Name: "kube-dns"})
}

// remove removes the list items that the validation refuses, with a note that they are lost. If the old server stays, it
// instead removes all answers of their blocks, whose names are left to the old server.
func (c *converter) remove(problems []config.Problem) {
	gone := map[string]bool{} // paths of the refused list items
	for _, p := range problems {
		item, from, s := c.source(p)
		switch {
		case c.stays && s != nil && !s.whole:
			l := &line{&statement{at: from.at, words: []string{cmp.Or(from.text, p.Path)}}, c, s, ""}
			l.leave(nil, p.What, p.Hint)
			defer c.dropBlock(s) // at the end: the loops below find refused items by their index in the lists of all blocks
		case c.stays && s != nil, gone[item]:
		case item != "":
			gone[item] = true
			c.lost(from.at, cmp.Or(from.text, p.Path), p.What, p.Hint)
		default:
			c.reset(p)
		}
	}
	counts := map[string]int{}
	take := func(list string) bool {
		counts[list]++
		return gone[fmt.Sprintf("%s[%d]", list, counts[list]-1)]
	}
	takeRoute := func(r route) bool {
		isGone := take("forward")
		if isGone && r.Zone != "." { // close the zone: its names must not go to the server of a wider zone
			c.closed = append(c.closed, sourced[string]{r.Zone, r.origin})
		}
		return isGone
	}
	c.routes = slices.DeleteFunc(c.routes, takeRoute)
	for _, s := range c.servers {
		s.routes = slices.DeleteFunc(s.routes, takeRoute)
		s.rewrites = slices.DeleteFunc(s.rewrites, func(sourced[config.Rewrite]) bool { return take("rewrite") })
		s.templates = slices.DeleteFunc(s.templates, func(sourced[config.Template]) bool { return take("templates") })
	}
}

// source returns the path of the list item that a problem is about, the item's origin, and its server block. Each is zero
// if there is none.
func (c *converter) source(p config.Problem) (item string, from origin, s *server) {
	if strings.HasPrefix(p.Path, "cluster") {
		for _, s := range c.servers {
			if all := s.all("kubernetes"); len(all) > 0 && !s.whole {
				return "", origin{at: all[0].at, text: "kubernetes: " + p.Path}, s
			}
		}
	}
	item, _, isItem := strings.Cut(p.Path, "]")
	item += "]"
	from, listed := c.origins[item]
	if !isItem || !listed {
		return "", from, nil
	}
	return item, from, c.blockOf(from.at)
}

// dropBlock removes the answers that a block was converted to, because the old server is asked for its names.
func (c *converter) dropBlock(s *server) {
	if s.drop(); len(s.all("kubernetes")) > 0 {
		c.cfg.Cluster = config.Default(config.Agent).Cluster
		maps.DeleteFunc(c.origins, func(path string, _ origin) bool { return strings.HasPrefix(path, "cluster") })
	}
}

// blockOf returns the server block of a line, or nil.
func (c *converter) blockOf(at place) *server {
	i := slices.IndexFunc(c.servers, func(s *server) bool {
		return slices.ContainsFunc(s.plugins, func(st statement) bool {
			return st.at == at || slices.ContainsFunc(st.body, func(st statement) bool { return st.at == at })
		})
	})
	if i < 0 || at == (place{}) {
		return nil
	}
	return c.servers[i]
}

// reset resets a section to its default, and notes the reason.
func (c *converter) reset(p config.Problem) {
	head, _, _ := strings.Cut(p.Path, ".")
	head, _, _ = strings.Cut(head, "[")
	at := c.firstFile
	for _, path := range slices.Sorted(maps.Keys(c.origins)) {
		if strings.HasPrefix(p.Path, path) || strings.HasPrefix(path, p.Path) {
			at = cmp.Or(c.origins[path].at, at)
		}
	}
	c.lost(at, p.Path, p.What+"; the section "+head+" stays at its defaults", p.Hint)
	if strings.HasPrefix(head, "cluster") && c.clusterZone != "" { // close the cluster domain: its names must not go to another server
		c.closed = append(c.closed, sourced[string]{c.clusterZone, origin{at: at, text: p.Path}})
	}
	standard := config.Default(config.Agent)
	known := false
	for _, name := range []string{head, strings.TrimSuffix(head, "Domain"), head + "Domain"} { // a problem of cluster resets clusterDomain too, and the reverse
		isName := func(field string) bool { return strings.EqualFold(field, name) }
		if field := reflect.ValueOf(&c.cfg).Elem().FieldByNameFunc(isName); field.IsValid() {
			field.Set(reflect.ValueOf(standard).FieldByNameFunc(isName))
			known = true
		}
	}
	if !known {
		c.cfg, c.routes, c.servers = standard, nil, nil
	}
	maps.DeleteFunc(c.origins, func(path string, _ origin) bool { return strings.HasPrefix(path, head) })
}
