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
	k := kubeDNS{seen: map[string]string{}}
	k.stubs(data[stubDomains])
	k.upstreams(data[upstreamNameservers])
	for _, key := range slices.Sorted(maps.Keys(data)) {
		switch {
		case key == stubDomains, key == upstreamNameservers:
		case key == federations && strings.TrimSpace(data[key]) != "":
			k.notes = append(k.notes, Note{File: key, What: "the domains of a federation", Why: "federation is not supported", Hint: "Kubernetes has dropped them: leave the key out"})
		case key != federations:
			k.notes = append(k.notes, Note{File: key, What: "key", Why: "unknown key"})
		}
	}
	if len(k.errs) > 0 {
		return nil, k.notes, errors.Join(k.errs...)
	}
	return k.routes, k.notes, nil
}

// kubeDNS is a running conversion of a kube-dns ConfigMap.
type kubeDNS struct {
	routes []config.Route
	notes  []Note
	errs   []error
	seen   map[string]string // by zone: its text
}

func (k *kubeDNS) fail(key, format string, args ...any) {
	k.errs = append(k.errs, fmt.Errorf("reading %s: "+format, append([]any{key}, args...)...))
}

func (k *kubeDNS) stubs(text string) {
	if strings.TrimSpace(text) == "" {
		return
	}
	var zones map[string][]string
	if err := json.Unmarshal([]byte(text), &zones); err != nil {
		k.fail(stubDomains, `not a JSON object of lists, like {"example.com": ["192.0.2.1"]}: %w`, err)
		return
	}
	for _, text := range slices.Sorted(maps.Keys(zones)) {
		zone, err := config.ParseZone(text)
		if err != nil {
			k.fail(stubDomains, "%s", oneLine(err))
			continue
		}
		if first, again := k.seen[zone]; again {
			k.fail(stubDomains, "%q: the same zone as %q", text, first)
			continue
		}
		k.seen[zone] = text
		if to := k.targets(stubDomains, text, zones[text]); len(to) > 0 {
			k.routes = append(k.routes, config.DefaultRoute(zone, to...))
		}
	}
}

func (k *kubeDNS) upstreams(text string) {
	if strings.TrimSpace(text) == "" {
		return
	}
	var servers []string
	if err := json.Unmarshal([]byte(text), &servers); err != nil {
		k.fail(upstreamNameservers, `not a JSON list of addresses, like ["192.0.2.1"]: %w`, err)
		return
	}
	if len(servers) == 0 {
		return
	}
	if first, again := k.seen["."]; again {
		k.fail(upstreamNameservers, "the zone %q of %s has servers already", first, stubDomains)
		return
	}
	if to := k.targets(upstreamNameservers, "the list", servers); len(to) > 0 {
		k.routes = append(k.routes, config.DefaultRoute(".", to...))
	}
}

// targets returns the servers of one zone, without duplicates.
func (k *kubeDNS) targets(key, zone string, servers []string) []config.Target {
	var to []config.Target
	for _, server := range servers {
		t, err := kubeDNSServer(server)
		switch {
		case err == nil && !slices.Contains(to, t):
			to = append(to, t)
		case err == nil:
		case isHostName(server):
			k.notes = append(k.notes, Note{
				File: key, What: fmt.Sprintf("%s: %s", zone, server), Why: "a server needs an address, not a name",
				Hint: "write the address of the server; where it is a Service, its cluster IP",
			})
		default:
			k.fail(key, "%s: %s", zone, oneLine(err))
		}
	}
	if len(to) == 0 && len(k.errs) == 0 {
		k.notes = append(k.notes, Note{
			File: key, What: zone, Why: "no server with an address is left, so there is no route for it",
			Hint: "name at least one server by its address",
		})
	}
	return to
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
