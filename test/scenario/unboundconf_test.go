// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// errNotApplicable says what a scenario needs that an agent does not have.
var errNotApplicable = errors.New("needs")

// A mapped is the agent's configuration that stands for one of unbound.
type mapped struct {
	routes    []*mappedRoute
	hosts     map[string][]string
	templates []map[string]any // of records
	redirects []string         // zones whose names all have the records of the zone's name
	zones     []map[string]any // of local zones, which come after these
	cache     map[string]any
	stale     map[string]any
	limits    map[string]any
	dns64     map[string]any
	identity  map[string]string
	hidden    map[string]bool // of identity
}

type mappedRoute struct {
	zone    string
	to      []string
	follows bool // referrals are followed: unbound would do so itself
	cache   bool
}

// An optionMapping sets what an option of unbound sets.
type optionMapping func(m *mapped, value string) error

// unboundOptions has what an agent has for the options of unbound. A scenario with another one is not applicable.
var unboundOptions = map[string]optionMapping{
	"server/section": nothing,

	// What iterates is the tests' upstream, and what these ask of it is not the scenario's subject.
	"server/target-fetch-policy": nothing, "server/qname-minimisation": nothing, "server/harden-referral-path": nothing,
	"server/harden-glue": nothing, "server/do-ip6": nothing, "server/outbound-msg-retry": nothing,
	// No anchor is configured, so nothing is validated.
	"server/trust-anchor-signaling": nothing,
	"server/module-config": func(_ *mapped, value string) error {
		for word := range strings.FieldsSeq(value) {
			if !slices.Contains([]string{"validator", "iterator", "dns64"}, word) {
				return fmt.Errorf("%w module %s", errNotApplicable, word)
			}
		}
		return nil
	},

	// Logs, and what an agent always does: EDE, replies without records that were not asked for, sets in rotation.
	"server/verbosity": nothing, "server/log-servfail": nothing, "server/log-time-ascii": nothing, "server/ede": nothing,
	"server/ede-serve-expired": nothing, "server/minimal-responses": nothing, "server/rrset-roundrobin": nothing,
	"server/identity":      func(m *mapped, value string) error { m.identity["hostname"] = value; return nil },
	"server/version":       func(m *mapped, value string) error { m.identity["version"] = value; return nil },
	"server/hide-identity": func(m *mapped, value string) error { m.hidden["hostname"] = value == "yes"; return nil },
	"server/hide-version":  func(m *mapped, value string) error { m.hidden["version"] = value == "yes"; return nil },
	"server/access-control": func(_ *mapped, value string) error {
		if action := strings.Fields(value)[1]; !strings.HasPrefix(action, "allow") {
			return fmt.Errorf("%w access control: %s", errNotApplicable, action)
		}
		return nil
	},

	"server/serve-expired": func(m *mapped, value string) error {
		if value == "yes" {
			m.stale["for"] = "72h" // unbound has no bound
		}
		return nil
	},
	"server/serve-expired-ttl":       func(m *mapped, value string) error { m.stale["for"] = value + "s"; return nil },
	"server/serve-expired-reply-ttl": func(m *mapped, value string) error { m.stale["ttl"] = value + "s"; return nil },
	"server/serve-expired-client-timeout": func(m *mapped, value string) error {
		m.stale["after"] = "10ms" // the least
		if len(value) > 1 {
			m.stale["after"] = value + "ms"
		}
		return nil
	},
	"server/prefetch": func(m *mapped, value string) error {
		if value == "yes" {
			m.cache["prefetch"] = map[string]any{"hits": 1, "remaining": "11%"} // 10 % and not less, as in unbound
		}
		return nil
	},
	"server/cache-max-ttl": func(m *mapped, value string) error { m.cache["maxTTL"] = value + "s"; return nil },
	"server/cache-min-ttl": func(m *mapped, value string) error { m.cache["minTTL"] = value + "s"; return nil },
	"server/dns64-prefix": func(m *mapped, value string) error {
		prefix, err := netip.ParsePrefix(value)
		m.dns64 = map[string]any{"prefix": prefix.String(), "clients": "all"}
		return err
	},
	"server/num-queries-per-thread": func(m *mapped, value string) error {
		n, err := strconv.Atoi(value)
		m.limits["inflight"], m.limits["waiting"] = n+1, n+1 // one client may use five sixths
		return err
	},

	"server/local-data": localData,
	"server/local-zone": localZone,

	"stub-zone/section": func(m *mapped, _ string) error {
		m.routes = append(m.routes, &mappedRoute{follows: true, cache: true})
		return nil
	},
	"forward-zone/section": func(m *mapped, _ string) error { m.routes = append(m.routes, &mappedRoute{cache: true}); return nil },
	"stub-zone/name":       routeZone, "forward-zone/name": routeZone, "stub-zone/stub-addr": routeTo, "forward-zone/forward-addr": routeTo,
	"stub-zone/stub-prime":          nothing,
	"forward-zone/forward-no-cache": func(m *mapped, value string) error { m.lastRoute().cache = value != "yes"; return nil },
}

func nothing(*mapped, string) error { return nil }

func (m *mapped) lastRoute() *mappedRoute { return m.routes[len(m.routes)-1] }

// routeZone names the last route. A second route of the same zone takes the place of the first: forwarding comes before recursion.
func routeZone(m *mapped, value string) error {
	last := m.lastRoute()
	last.zone = dns.Fqdn(value)
	m.routes = slices.DeleteFunc(m.routes, func(r *mappedRoute) bool { return r != last && r.zone == last.zone })
	return nil
}

func routeTo(m *mapped, value string) error {
	m.lastRoute().to = append(m.lastRoute().to, value)
	return nil
}

// localData takes addresses as hosts, and other records as templates. Classes but IN have neither, so such records are left out.
func localData(m *mapped, value string) error {
	rr, err := readRecord(value)
	switch {
	case err != nil:
		return fmt.Errorf("%w a record like %s", errNotApplicable, value)
	case rr.Header().Class != dns.ClassINET:
		return nil
	}
	name, rrtype := rr.Header().Name, rr.Header().Rrtype
	redirects := slices.Contains(m.redirects, name)
	if !redirects && (rrtype == dns.TypeA || rrtype == dns.TypeAAAA) {
		m.hosts[name] = append(m.hosts[name], rdata(rr))
		return nil
	}
	template := map[string]any{
		"zone": name, "types": []string{dns.TypeToString[rrtype]},
		"answer": []string{fmt.Sprintf("{{ .Name }} %d IN %s %s", rr.Header().Ttl, dns.TypeToString[rrtype], rdata(rr))},
	}
	if !redirects {
		template["match"] = []string{"^" + strings.ReplaceAll(name, ".", "[.]") + "$"}
	}
	m.templates = append(m.templates, template)
	return nil
}

// localZone takes a zone as templates. An agent always answers, so one without replies is left out.
func localZone(m *mapped, value string) error {
	words := strings.Fields(value)
	zone := dns.Fqdn(words[0])
	switch words[1] {
	case "transparent", "typetransparent", "nodefault", "deny": // names without data are looked up
	case "redirect":
		m.redirects = append(m.redirects, zone)
	case "static":
		m.zones = append(m.zones, map[string]any{"zone": zone, "rcode": "NXDOMAIN"})
	case "refuse":
		m.zones = append(m.zones, map[string]any{"zone": zone, "rcode": "REFUSED"})
	case "always_null":
		m.zones = append(m.zones, map[string]any{"zone": zone, "types": []string{"A"}, "answer": []string{"{{ .Name }} 3600 IN A 0.0.0.0"}},
			map[string]any{"zone": zone, "types": []string{"AAAA"}, "answer": []string{"{{ .Name }} 3600 IN AAAA ::"}})
	default:
		return fmt.Errorf("%w a local zone of type %s", errNotApplicable, words[1])
	}
	return nil
}

// mapOptions returns the configuration. Its defaults are those of unbound.
func mapOptions(options []option) (*mapped, error) {
	m := &mapped{
		hosts: map[string][]string{},
		cache: map[string]any{
			"minTTL": "0s", "maxTTL": "24h", "negativeTTL": "1h", "prefetch": map[string]any{"hits": 0},
			"nxdomainCut": "off", // unbound's needs validation
		},
		stale: map[string]any{"for": "0s"}, limits: map[string]any{}, identity: map[string]string{}, hidden: map[string]bool{},
	}
	for _, o := range options {
		set := unboundOptions[o.section+"/"+o.key]
		if set == nil {
			return nil, fmt.Errorf("%w %s", errNotApplicable, strings.TrimSuffix(o.section+": "+o.key, ": section"))
		}
		if err := set(m, o.value); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// yaml returns the configuration as text.
func (m *mapped) yaml() (string, error) {
	m.cache["serveStale"] = m.stale
	maps.DeleteFunc(m.identity, func(key, _ string) bool { return m.hidden[key] })
	routes := []map[string]any{}
	hasRoot := false
	for _, r := range m.routes {
		hasRoot = hasRoot || r.zone == "."
		cache := map[bool]string{true: "on", false: "off"}[r.cache]
		routes = append(routes, map[string]any{"zone": r.zone, "to": r.to, "case": "off", "cache": cache})
	}
	if !hasRoot {
		routes = append(routes, map[string]any{"zone": ".", "to": []string{"none"}})
	}
	keys := map[string]any{
		"forward": routes, "cache": m.cache, "limits": m.limits, "templates": slices.Concat(m.templates, m.zones),
		"identity": m.identity, "hosts": map[string]any{"names": m.hosts, "ttl": "1h", "reverse": "off"},
	}
	if m.dns64 != nil {
		keys["dns64"] = m.dns64
	}
	text, err := json.MarshalIndent(keys, "", " ")
	return string(text), err
}
