// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/nodecache/node-cache/pkg/config"
)

// otherPort is a server block on a port of its own, which other blocks may forward to.
type otherPort struct {
	*block

	what, zone, port string
	forwardedTo      bool // a forward uses it
	inlined          bool // its upstreams replace it in the forward
	to               []config.Target
}

// usualPort uses the port of most server blocks for all, on a tie the first.
func (c *corefile) usualPort(blocks []block) {
	count, most := map[string]int{}, ""
	var all []keySet
	for _, b := range blocks {
		for _, key := range b.keys {
			a := parseAddress(fillPlaceholders(key))
			if _, ok := portOf(a); ok && a.transport == "dns" {
				port := cmp.Or(a.port, "53")
				count[port]++
				all = append(all, keySet{b.at, port})
			}
		}
	}
	for _, set := range all {
		if most == "" || count[set.value] > count[most] {
			most, c.keys["listen.port"] = set.value, set
			n, _ := portOf(address{port: most})
			c.cfg.Listen.Port = n
		}
	}
}

// portOf returns the port number, by default 53.
func portOf(a address) (port uint16, ok bool) {
	n, err := strconv.ParseUint(cmp.Or(a.port, "53"), 10, 16)
	return uint16(n), err == nil && n > 0
}

// port reports whether a server block has the listen port. Blocks on other ports are collected.
func (c *corefile) port(b *block, a address, what string) bool {
	if _, ok := portOf(a); !ok {
		c.noteLost(b.at, what, "not a port number", "")
		return false
	}
	port := cmp.Or(a.port, "53")
	if c.keys["listen.port"].value == port {
		return true
	}
	zone, err := config.ParseZone(a.host)
	if err != nil {
		zone = "" // not a zone of a route
	}
	c.otherPorts = append(c.otherPorts, &otherPort{block: b, what: what, zone: zone, port: port})
	return false
}

// noteUnusedPorts notes the server blocks on other ports that no forward uses.
func (c *corefile) noteUnusedPorts() {
	for _, b := range c.otherPorts {
		why, hint := "the agent listens on one port: "+c.keys["listen.port"].value, "put the zone under that port, or run another agent for it"
		if b.forwardedTo {
			hint = "a route leads to it: run another agent, or a CoreDNS, with this block at that address"
		}
		if !b.inlined {
			c.noteLost(b.at, b.what, why, hint)
		}
	}
}

// otherPortUpstreams returns the upstreams of the server block on another port of this host that a forward uses. Such
// blocks serve for upstreams with several TLS names. It reports false if there is none, or if it does more than forward.
func (c *corefile) otherPortUpstreams(st *statement, t config.Target) (to []config.Target, ok bool) {
	if t.Kind != config.Plain && t.Kind != config.TCP || !t.Addr.Addr().IsLoopback() {
		return nil, false
	}
	i := slices.IndexFunc(c.otherPorts, func(b *otherPort) bool {
		return b.zone == "." && b.port == strconv.Itoa(int(t.Addr.Port()))
	})
	if i < 0 {
		return nil, false
	}
	b := c.otherPorts[i]
	leadsOn := func(t config.Target) bool { // to another such block, or to itself
		return t.Addr.Addr().IsLoopback() && slices.ContainsFunc(c.otherPorts, func(b *otherPort) bool { return b.port == strconv.Itoa(int(t.Addr.Port())) })
	}
	if b.forwardedTo = true; !b.onlyForwards(leadsOn) {
		return nil, false
	}
	if !b.inlined {
		inner := b.all("forward")[0]
		b.inlined, b.to = true, c.targets(&inner, c.forwardOptions(&inner))
		c.noteDiffers(b.at, b.what, "its upstreams are used directly by the route to it, at "+st.at.String(), "")
	}
	return b.to, true
}

// onlyForwards reports whether a server block only forwards all queries, without options that a route does not have, and
// not to another such block.
func (b *otherPort) onlyForwards(leadsOn func(config.Target) bool) bool {
	asWell := []string{"forward", "bind", "errors", "log", "cache", "loop", "reload", "any", "debug", "loadbalance", "bufsize", "prometheus", "health", "ready"}
	if slices.ContainsFunc(b.plugins, func(st statement) bool { return !slices.Contains(asWell, st.words[0]) }) {
		return false
	}
	all := b.all("forward")
	if len(all) != 1 || len(all[0].args()) < 2 || all[0].args()[0] != "." {
		return false
	}
	more := func(option statement) bool {
		return slices.Contains([]string{"except", "tls", "doh_method"}, option.words[0])
	}
	loops := func(word string) bool {
		t, err := target(word, "")
		return err == nil && leadsOn(t)
	}
	return !slices.ContainsFunc(all[0].body, more) && !slices.ContainsFunc(all[0].args()[1:], loops)
}
