// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/config"
)

// origin is where a value comes from.
type origin struct {
	at    place
	text  string // the line as written; without a place the reason
	value string // value of the key, if line.set has set it; else empty
}

func (o origin) String() string {
	if o.at.file == "" || o.text == "" {
		return o.text
	}
	return o.at.String() + ": " + o.text
}

// sourced is a list item with its origin.
type sourced[T any] struct {
	value T
	origin
}

// route is a route with its origin.
type route struct {
	config.Route
	ttls // its own bounds; nil: inherited
	origin
	early bool // from the kube-dns ConfigMap; a Corefile route for the same zone replaces it
}

// converter is a running conversion.
type converter struct {
	Options

	cfg     config.Config
	notes   []Note
	origins map[string]origin // where the value of each key comes from, by the key's path
	noted   map[string]bool   // texts that firstTime has seen

	routes []route           // routes of the kube-dns ConfigMap
	closed []sourced[string] // zones whose names fail, unless a route has them

	corefiles   []Input
	charts      []chartValues
	files       map[string]Input  // files that a Corefile may import, by base name
	aside       map[string]bool   // files that get no note if no Corefile imports them
	kubeDNSKeys map[string]string // nil: there is no kube-dns ConfigMap
	errs        []error           // errors in the kube-dns ConfigMap

	firstFile     place // the first input, for notes that are not about a line
	servers       []*server
	otherPorts    []*otherPort         // server blocks on other ports
	tlsKeys       []tlsKey             // keys of server blocks over TLS
	listenAddrs   map[netip.Addr]place // where each address of bind stands
	stays         bool                 // the old server stays, and names can be left to it
	isNodeLocal   bool                 // the Corefile is that of a NodeLocal DNSCache
	servesCluster bool                 // the plugin kubernetes answers the cluster's names
	central       []string             // the servers of the forward for the cluster domain; nil: there is none
	clusterZone   string               // the cluster domain; empty: not known so far
	upstreams     []config.Target      // servers in place of __PILLAR__UPSTREAM__SERVERS__; empty: those of /etc/resolv.conf
}

func newConverter(o Options) *converter {
	return &converter{
		Options: o, cfg: config.Default(config.Agent), origins: map[string]origin{}, noted: map[string]bool{},
		files: map[string]Input{}, aside: map[string]bool{}, listenAddrs: map[netip.Addr]place{},
	}
}

// server is a server block, and what becomes of it.
type server struct {
	at      place
	keys    []string
	plugins []statement

	zones []string // zones of its keys on the listen port
	own   []string // zones, at or below those, that a plugin answers or forwards

	routes    []route
	templates []sourced[config.Template]
	rewrites  []sourced[config.Rewrite]
	hosts     []host
	closed    []sourced[string] // zones whose names fail, unless a route has them
	failed    []sourced[string] // zones whose names fail, whatever route they have
	left      []sourced[string] // zones that are left to the old server
	whole     bool              // all names of the block are left to the old server
	kept      []Note            // notes that stay if the block is left to the old server
}

// all returns the statements of a plugin, in the order of the file.
func (s *server) all(name string) []statement {
	return slices.DeleteFunc(slices.Clone(s.plugins), func(st statement) bool { return st.words[0] != name })
}

// convert converts the Corefiles and the kube-dns ConfigMap to one configuration.
func (c *converter) convert() (*Result, error) {
	blocks, err := c.read()
	if err == nil {
		err = kubeDNS(c)
	}
	if err != nil {
		return nil, err
	}
	if len(blocks)+len(c.corefiles)+len(c.charts) > 0 {
		c.usualPort(blocks)
		for _, s := range blocks {
			c.addServer(s)
		}
		if len(c.servers) == 0 && len(c.notes) == 0 {
			return nil, fmt.Errorf("reading the Corefile: %s: no server block", c.firstFile)
		}
		c.clusterDomain()
		c.listen()
		c.overTLS()
		for _, s := range c.servers {
			c.server(s)
		}
		changedDefaults(c)
		unmatchedNames(c)
		c.noteUnusedPorts()
	} else {
		c.kubeDNSAlone()
	}
	c.checkFederations()
	return c.result()
}

// read parses the Corefiles, and notes the files that none of them uses.
func (c *converter) read() (all []*server, err error) {
	p := parser{complete: c.Complete, files: c.files, used: map[string]bool{}, noted: map[string]bool{}, forms: placeholders()}
	for _, in := range c.corefiles {
		c.firstFile.file = cmp.Or(c.firstFile.file, in.Name)
		c.isNodeLocal = c.isNodeLocal || strings.Contains(string(in.Text), "__PILLAR__")
		blocks, err := p.parse(in)
		if err != nil {
			return nil, err
		}
		all = append(all, blocks...)
	}
	for _, chart := range c.charts {
		c.firstFile.file = cmp.Or(c.firstFile.file, chart.file)
		blocks, err := chart.servers(&p)
		if err != nil {
			return nil, err
		}
		all = append(all, blocks...)
	}
	c.notes = p.notes
	mentioned := map[string]bool{} // base names in Corefiles: a plugin that reads such a file has a note of its own
	for _, b := range all {
		for _, st := range b.plugins {
			for _, word := range st.args() {
				mentioned[path.Base(word)] = true
			}
		}
	}
	for _, name := range sortedNames(c.files) {
		switch in := c.files[name]; {
		case p.used[name]:
		case in.unknownKey == place{}:
			c.lost(place{file: in.Name}, name, "no Corefile imports it", "give the Corefile that does, or leave this out")
		case !mentioned[name] && !c.aside[name]:
			c.lost(in.unknownKey, "key "+name, "no Corefile imports it, and it is no key of kube-dns", "")
		}
	}
	return all, nil
}

// addServer adds a server block, unless its port or transport is unsupported.
func (c *converter) addServer(s *server) {
	for _, key := range s.keys {
		what := "server " + key
		transport, host, port := parseAddress(fillPlaceholders(key))
		switch transport {
		case "dns":
		case "tls":
			c.tlsKeys = append(c.tlsKeys, tlsKey{s, what, host, port})
			continue
		default:
			c.lost(s.at, what, "only UDP, TCP and TLS are supported", "leave it to a server beside this one, such as the central resolver")
			continue
		}
		if !c.port(s, port, what) {
			continue
		}
		list, err := zones(host)
		if err != nil {
			c.lost(s.at, what, oneLine(err), "")
		}
		s.zones = append(s.zones, list...)
	}
	s.zones = slices.Compact(slices.Sorted(slices.Values(s.zones)))
	if len(s.zones) == 0 {
		return
	}
	if len(s.plugins) == 0 {
		c.lost(s.at, "server "+strings.Join(s.keys, " "), "its block has no plugins, so its names have no upstream",
			"plugins stand in braces: a line without them is a server by itself")
	}
	c.servers = append(c.servers, s)
}

// clusterDomain sets whether the plugin kubernetes or a central resolver answers the cluster's names, and whether the old server stays.
func (c *converter) clusterDomain() {
	c.servesCluster = slices.ContainsFunc(c.servers, func(s *server) bool { return len(s.all("kubernetes")) > 0 })
	for _, s := range c.servers {
		for _, st := range s.all("forward") {
			if !c.servesCluster && c.central == nil && len(st.args()) > 1 {
				central(&line{&st, c, s, ""})
			}
		}
	}
	c.isNodeLocal = !c.servesCluster && (c.isNodeLocal || c.central != nil)
	c.stays = !c.Replace && !c.isNodeLocal && (c.servesCluster || c.OldServer.IsValid())
}

// server converts a server block. Its plugins that give answers are converted to the same answers, or all names of the
// block are left to the old server: then nothing of these plugins is in the configuration.
func (c *converter) server(s *server) {
	c.apply(s, settings(c))
	before, origins, noted, notes, zone := c.cfg, maps.Clone(c.origins), maps.Clone(c.noted), len(c.notes), c.clusterZone
	c.sameZone(s)
	c.apply(s, answers(c))
	for _, st := range s.plugins {
		if !known(c, st.words[0]) {
			unknownPlugin(&line{&st, c, s, ""})
		}
	}
	if len(s.left) > 0 && len(s.rewrites) > 0 && !s.whole {
		l := &line{&statement{at: s.rewrites[0].at, words: []string{"rewrite"}}, c, s, ""}
		l.leave(nil, "it applies to names that are left to the old server", "")
	}
	if s.whole {
		c.cfg, c.origins, c.noted, c.clusterZone = before, origins, noted, cmp.Or(zone, c.clusterZone)
		c.notes = append(c.notes[:notes], s.kept...)
		s.left = slices.DeleteFunc(s.left, func(l sourced[string]) bool { return !slices.Contains(s.zones, l.value) })
		s.drop()
	}
	for _, z := range s.failed {
		s.routes = slices.DeleteFunc(s.routes, func(r route) bool { return below(r.Zone, z.value) })
		c.cfg.Cluster.Fallthrough = slices.DeleteFunc(c.cfg.Cluster.Fallthrough, func(zone string) bool { return below(zone, z.value) })
		s.closed, s.own = append(s.closed, z), append(s.own, z.value)
	}
	for _, zone := range s.zones {
		if zone != "." && !slices.ContainsFunc(s.own, func(own string) bool { return below(zone, own) }) {
			s.closed = append(s.closed, sourced[string]{zone, origin{at: s.at, text: "no server is asked for the other names of " + zone}})
		}
	}
}

// drop removes the routes, templates, rewrites, hosts and closed zones of the block, and counts all its zones as its own.
func (s *server) drop() {
	s.routes, s.templates, s.rewrites, s.hosts, s.closed, s.own = nil, nil, nil, nil, nil, s.zones
}

// apply converts the statements of a server block that a table has, in the order of the table.
func (c *converter) apply(s *server, table []directive) {
	for _, d := range table {
		for _, st := range s.plugins {
			if d.is(st.words[0]) {
				d.apply(&line{&st, c, s, ""})
			}
		}
	}
}

// sameZone leaves a block whose zone another block has too: in CoreDNS the query decides which block answers. Where the old server
// does not stay, the first block answers.
func (c *converter) sameZone(s *server) {
	for i, other := range c.servers {
		shared := slices.IndexFunc(s.zones, func(zone string) bool { return slices.Contains(other.zones, zone) })
		if other == s || shared < 0 || !c.stays && i > slices.Index(c.servers, s) {
			continue
		}
		l := &line{&statement{at: s.at, words: []string{"server " + strings.Join(s.keys, " ")}}, c, s, ""}
		l.leave(nil, "another block has the zone "+s.zones[shared]+" too", "leave one of them out")
		if !c.stays {
			s.zones = slices.DeleteFunc(s.zones, func(zone string) bool { return slices.Contains(other.zones, zone) })
		}
		return
	}
}

// serverFor returns the server block whose zones contain a name, or nil.
func (c *converter) serverFor(name string) (best *server) {
	longest := -1
	for _, s := range c.servers {
		for _, zone := range s.zones {
			if below(name, zone) && len(zone) > longest {
				best, longest = s, len(zone)
			}
		}
	}
	return best
}

// note adds a note.
func (c *converter) note(at place, kept bool, what, why, hint string) {
	c.notes = append(c.notes, Note{File: at.file, Line: at.line, What: what, Why: why, Hint: hint, Kept: kept})
}

func (c *converter) lost(at place, what, why, hint string) { c.note(at, false, what, why, hint) }

func (c *converter) differs(at place, what, why, hint string) { c.note(at, true, what, why, hint) }

// firstTime reports whether it is called with the text for the first time, so that a note is given once.
func (c *converter) firstTime(what string) bool {
	again := c.noted[what]
	c.noted[what] = true
	return !again
}

// unmatchedNames closes the root zone, so that its names fail, if no block answers or forwards it.
func unmatchedNames(c *converter) {
	isRoot := func(zone string) bool { return zone == "." }
	for _, s := range c.servers {
		if slices.ContainsFunc(s.own, isRoot) {
			return
		}
	}
	if slices.ContainsFunc(c.routes, func(r route) bool { return r.Zone == "." }) {
		return
	}
	at, what := c.firstFile, "names without a server"
	if s := c.serverFor("."); s != nil {
		at, what = s.at, "server ."
	}
	c.closed = append(c.closed, sourced[string]{".", origin{at: at, text: what}})
	c.differs(at, what, "other names fail there, and get SERVFAIL here", `write a route for the zone "." if they should not`)
}

// changedDefaults notes the defaults that differ from CoreDNS's, or sets them as CoreDNS has them.
func changedDefaults(c *converter) {
	cache := &c.cfg.Cache
	for _, d := range []struct {
		path, why, theirs string
		set               func()
	}{
		{"cache.serveStale.for", "expired answers are served for 1h while no upstream answers, none there", "0s", func() { cache.ServeStale.For = 0 }},
		{"cache.prefetch.hits", "answers that were used twice are fetched again before they expire, none there", "0", func() { cache.Prefetch.Hits = 0 }},
		{"specialNames", "localhost, invalid, onion and resolver.arpa are answered here, and looked up there", "[]", func() { c.cfg.SpecialNames = []string{} }},
	} {
		if _, written := c.origins[d.path]; !written {
			changed(c, c.firstFile, d.path, d.why, d.path+": "+d.theirs, d.set)
		}
	}
	for _, s := range c.servers {
		for i := range s.routes {
			r := &s.routes[i]
			if r.Policy == config.PolicyFastest && (len(r.To) > 1 || r.To[0].Kind == config.ResolvConf) {
				changed(c, c.firstFile, "forward[].policy", "the fastest upstream is used, a random one there", "policy: random", func() { r.Policy = config.PolicyRandom })
			}
			if len(s.all("cache")) == 0 {
				changed(c, r.at, r.text, "answers are cached, without the plugin cache none there", "cache: off in the route", func() { r.NoCache = true })
			}
		}
	}
}

// changed notes a default that differs from CoreDNS's, or sets CoreDNS's.
func changed(c *converter, at place, what, why, theirs string, set func()) {
	if c.Faithful {
		set()
	} else if c.firstTime(at.String() + what) {
		c.differs(at, what, why, theirs+", or --faithful")
	}
}
