// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/config"
)

// Keys of the kube-dns ConfigMap.
const (
	stubDomains         = "stubDomains"
	upstreamNameservers = "upstreamNameservers"
	federations         = "federations"
)

// KubeDNS converts the keys of a kube-dns ConfigMap to routes: those of stubDomains in the order of their zones, then that
// of the root, if there are upstreamNameservers. A missing or empty key gives no route. The other keys of a route have
// their defaults.
//
// The error has a line for each invalid value; there are no routes then. The notes are about values that are valid in
// kube-dns but not in a route; their File is the key.
func KubeDNS(data map[string]string) (routes []config.Route, notes []Note, err error) {
	c := newConverter(Options{})
	c.kubeDNSKeys = data
	if err := kubeDNS(c); err != nil {
		return nil, c.notes, err
	}
	c.checkFederations()
	for _, r := range c.routes {
		routes = append(routes, r.Route)
	}
	return routes, c.notes, nil
}

// kubeDNS converts the keys of a kube-dns ConfigMap to routes, as NodeLocal DNSCache does.
func kubeDNS(c *converter) error {
	var stubs map[string][]string
	var upstreams []string
	unmarshal(c, stubDomains, &stubs, `not a JSON object of lists, like {"example.com": ["192.0.2.1"]}`)
	unmarshal(c, upstreamNameservers, &upstreams, `not a JSON list of addresses, like ["192.0.2.1"]`)
	seen := map[string]string{} // the text that names each zone
	for _, text := range slices.Sorted(maps.Keys(stubs)) {
		zone, err := config.ParseZone(text)
		first, again := seen[zone]
		switch {
		case err != nil:
			refuse(c, stubDomains, "%s", oneLine(err))
		case again:
			refuse(c, stubDomains, "%q: the same zone as %q", text, first)
		default:
			seen[zone] = text
			kubeDNSRoute(c, stubDomains, zone, text, stubs[text])
		}
	}
	if first, again := seen["."]; again && len(upstreams) > 0 {
		refuse(c, upstreamNameservers, "the zone %q of %s has servers already", first, stubDomains)
	} else if len(upstreams) > 0 {
		kubeDNSRoute(c, upstreamNameservers, ".", "the list", upstreams)
	}
	for _, key := range slices.Sorted(maps.Keys(c.kubeDNSKeys)) {
		switch {
		case key == stubDomains, key == upstreamNameservers:
		case key == federations && strings.TrimSpace(c.kubeDNSKeys[key]) != "":
			for text := range strings.SplitSeq(c.kubeDNSKeys[key], ",") {
				c.federation(origin{at: place{file: key}}, strings.TrimSpace(text))
			}
		case key != federations:
			c.lost(place{file: key}, "key", "unknown key", "")
		}
	}
	return errors.Join(c.errs...)
}

// refuse adds an error about the value of a key.
func refuse(c *converter, key, format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("reading "+key+": "+format, args...))
}

// unmarshal parses the JSON of a key.
func unmarshal(c *converter, key string, to any, otherwise string) {
	if strings.TrimSpace(c.kubeDNSKeys[key]) == "" {
		return
	}
	if err := json.Unmarshal([]byte(c.kubeDNSKeys[key]), to); err != nil {
		refuse(c, key, otherwise+": %w", err)
	}
}

// kubeDNSRoute adds a route to the servers of one zone, without duplicates.
func kubeDNSRoute(c *converter, key, zone, what string, servers []string) {
	var to []config.Target
	for _, server := range servers {
		t, err := kubeDNSServer(server)
		switch {
		case err == nil && !slices.Contains(to, t):
			to = append(to, t)
		case err == nil:
		case isHostName(server):
			c.lost(place{file: key}, what+": "+server, "a server needs an address, not a name", "write the address of the server; where it is a Service, its cluster IP")
		default:
			refuse(c, key, "%s: %s", what, oneLine(err))
		}
	}
	from := origin{at: place{file: "kube-dns"}, text: key}
	switch {
	case len(to) > 0:
		c.routes = append(c.routes, route{Route: config.DefaultRoute(zone, to...), origin: from, early: true})
		if zone == "." {
			c.upstreams = to
		}
	case len(c.errs) == 0:
		if zone != "." { // close the zone: its names must not go to the upstreams of the root
			c.closed = append(c.closed, sourced[string]{zone, from})
		}
		c.lost(place{file: key}, what, "no server with an address is left, so there is no route for it", "name at least one server by its address")
	}
}

// kubeDNSServer parses an address with an optional port: after a colon or, as in dnsmasq, after a #.
func kubeDNSServer(text string) (config.Target, error) {
	address, port, found := strings.Cut(strings.TrimSpace(text), "#")
	if found {
		if a, err := netip.ParseAddr(address); err == nil && a.Is6() {
			address = "[" + address + "]"
		}
		address += ":" + port
	}
	t, err := config.ParseTarget(address)
	if err == nil && t.Kind != config.Plain {
		return t, fmt.Errorf("%q: not an IP address with or without a port", text)
	}
	return t, err
}

// isHostName reports whether the text is a host name, with or without a port.
func isHostName(text string) bool {
	host, _, _ := strings.Cut(strings.TrimSpace(text), ":")
	name, err := config.ParseZone(host)
	return err == nil && strings.ContainsAny(name, "abcdefghijklmnopqrstuvwxyz") && !strings.ContainsAny(text, "/#[]")
}

// oneLine formats a configuration error and its hint on one line.
func oneLine(err error) string {
	var e *config.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	parts := make([]string, 0, len(e.Problems))
	for _, p := range e.Problems {
		text := p.String()
		if p.Hint != "" {
			text += " (" + p.Hint + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// kubeDNSAlone makes kube-dns, which answers the cluster's names, the central resolver, or has the agents answer if it goes.
func (c *converter) kubeDNSAlone() {
	c.firstFile = place{file: "kube-dns"}
	c.servesCluster, c.clusterZone = true, c.cfg.ClusterDomain
	if c.Replace {
		c.cfg.Cluster.Resolver = config.ResolverLocal
		c.origins["cluster.resolver"] = origin{text: "kube-dns answers the names of the cluster"}
		return
	}
	c.cfg.Cluster.Resolver = config.ResolverCentral
	c.origins["cluster.resolver"] = origin{text: "kube-dns, which stays, answers the names of the cluster"}
	c.askCentral()
	c.differs(c.firstFile, "the names of the cluster", "kube-dns is asked for them, as the central resolver", "cluster.resolver: local answers them here, and --replace converts for agents without kube-dns")
	c.notes[len(c.notes)-1].Left = true
}
