// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/config"
)

// origin is where a value comes from.
type origin struct {
	at    place
	text  string // of the line, or without a place the reason
	value string
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
	ttls // those not inherited from the cache
	origin
	early bool // of the kube-dns ConfigMap, and not in a Corefile so far
}

// converter is a running conversion.
type converter struct {
	Options

	cfg     config.Config
	notes   []Note
	origins map[string]origin // by path of a key: where it was set first
	noted   map[string]bool   // notes that are given once

	routes    []route
	templates []sourced[config.Template]
	aliases   []sourced[config.Template] // for rules with expressions, placed before all others
	rewrites  []sourced[config.Rewrite]

	wild         []sourced[string] // names below which hosts answers every other name
	denied       []sourced[string] // zones whose other names do not exist
	excepted     []sourced[string] // zones without an upstream
	unread       []sourced[string] // zones of plugins whose data is not read
	halfDisabled []sourced[string] // what keeps only answers, or only denials, out of the cache, by server and zones

	corefiles   []Input
	files       map[string]Input  // for imports, by base name
	kubeDNSKeys map[string]string // nil: there is no kube-dns ConfigMap
	errs        []error           // of that

	firstFile     place // the first file
	servers       []*server
	otherPorts    []*otherPort // server blocks on other ports
	listenAddrs   map[netip.Addr]place
	servesCluster bool            // the plugin kubernetes answers the cluster's names
	central       []string        // other servers answer them: the arguments of forward
	clusterZone   string          // the cluster domain; empty: not known so far
	upstreams     []config.Target // of __PILLAR__UPSTREAM__SERVERS__
}

func newConverter(o Options) *converter {
	return &converter{
		Options: o, cfg: config.Default(config.Agent), origins: map[string]origin{}, noted: map[string]bool{},
		files: map[string]Input{}, listenAddrs: map[netip.Addr]place{},
	}
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
	if len(c.corefiles) > 0 {
		c.firstFile.file = c.corefiles[0].Name
		c.usualPort(blocks)
		for _, s := range blocks {
			c.addServer(s)
		}
		if len(c.servers) == 0 && len(c.notes) == 0 {
			return nil, fmt.Errorf("reading the Corefile: %s: no server block", c.firstFile)
		}
		c.listen()
		c.clusterDomain()
		for _, s := range c.servers {
			c.server(s)
		}
		changedDefaults(c)
		unmatchedNames(c)
		c.noteUnusedPorts()
		for _, h := range c.halfDisabled {
			c.lost(h.at, h.text, "answers and denials of a zone are kept, or neither", "cache: off in the route of the zone keeps neither; negativeTTL bounds denials")
		}
	}
	c.checkFederations()
	c.lastTemplates()
	return c.result()
}

// read parses the Corefiles, and notes the files that none of them uses.
func (c *converter) read() ([]*server, error) {
	p := parser{complete: c.Complete, files: c.files, used: map[string]bool{}, noted: map[string]bool{}, forms: placeholders()}
	var all []*server
	for _, in := range c.corefiles {
		blocks, err := p.parse(in)
		if err != nil {
			return nil, err
		}
		all = append(all, blocks...)
	}
	c.notes = p.notes
	mentioned := map[string]bool{} // a plugin that reads the file has a note of its own
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
		case !mentioned[name]:
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
		if transport != "dns" {
			c.lost(s.at, what, "only UDP and TCP are supported", "leave it to a server beside this one, such as the central resolver")
			continue
		}
		if !c.port(s, host, port, what) {
			continue
		}
		list, err := zones(host)
		if err != nil {
			c.lost(s.at, what, oneLine(err), "")
		}
		for _, zone := range list {
			if slices.ContainsFunc(c.servers, func(s *server) bool { return slices.Contains(s.zones, zone) }) {
				c.lost(s.at, what, "the zone "+zone+" already has a server", "leave one of them out")
			} else {
				s.zones = appendNew(s.zones, zone)
			}
		}
	}
	if len(s.zones) == 0 {
		return
	}
	if len(s.plugins) == 0 {
		c.lost(s.at, "server "+strings.Join(s.keys, " "), "its block has no plugins, so its names have no upstream",
			"plugins stand in braces: a line without them is a server by itself")
	}
	c.servers = append(c.servers, s)
}

// clusterDomain finds out whether the cluster's names are forwarded, as in NodeLocal DNSCache.
func (c *converter) clusterDomain() {
	c.servesCluster = slices.ContainsFunc(c.servers, func(s *server) bool { return len(s.all("kubernetes")) > 0 })
	for _, s := range c.servers {
		for _, st := range s.all("forward") {
			if !c.servesCluster && len(st.args()) > 1 && central(&line{&st, c, s, ""}) {
				return
			}
		}
	}
}

// server converts all statements of a server block, in the order of the table.
func (c *converter) server(s *server) {
	table := plugins(c)
	for _, d := range table {
		for _, st := range s.plugins {
			if d.is(st.words[0]) {
				d.apply(&line{&st, c, s, ""})
			}
		}
	}
	for _, st := range s.plugins {
		if !slices.ContainsFunc(table, func(d directive) bool { return d.is(st.words[0]) }) {
			unknownPlugin(&line{&st, c, s, ""})
		}
	}
	for _, zone := range s.zones {
		if zone != "." && !slices.ContainsFunc(s.own, func(own string) bool { return below(zone, own) }) {
			c.excepted = append(c.excepted, sourced[string]{zone, origin{at: s.at, text: "no server is asked for the other names of " + zone}})
		}
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

// note adds a note. kept: it is about something that works differently, not something that could not be converted.
func (c *converter) note(at place, kept bool, what, why, hint string) {
	c.notes = append(c.notes, Note{File: at.file, Line: at.line, What: what, Why: why, Hint: hint, Kept: kept})
}

func (c *converter) lost(at place, what, why, hint string) { c.note(at, false, what, why, hint) }

func (c *converter) differs(at place, what, why, hint string) { c.note(at, true, what, why, hint) }

// firstTime reports whether the text is new, so that its note is given once.
func (c *converter) firstTime(what string) bool {
	again := c.noted[what]
	c.noted[what] = true
	return !again
}

// unmatchedNames notes what happens to names without a server block, or leaves them to the old server.
func unmatchedNames(c *converter) {
	isRoot := func(s sourced[string]) bool { return s.value == "." }
	if slices.ContainsFunc(c.routes, func(r route) bool { return r.Zone == "." }) || slices.ContainsFunc(slices.Concat(c.unread, c.denied), isRoot) {
		return
	}
	at, what := c.firstFile, "names without a server"
	if s := c.serverFor("."); s != nil {
		at, what = s.at, "server ."
	}
	c.excepted = append(c.excepted, sourced[string]{".", origin{at: at, text: what}})
	if !c.OldServer.IsValid() {
		c.differs(at, what, "other names fail there, and get SERVFAIL here", "give --old-server ADDRESS, or write a route for the zone \".\"")
	}
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
	} {
		if _, written := c.origins[d.path]; !written {
			changed(c, c.firstFile, d.path, d.why, d.path+": "+d.theirs, d.set)
		}
	}
	for i := range c.routes {
		r := &c.routes[i]
		if r.Policy == config.PolicyFastest && (len(r.To) > 1 || r.To[0].Kind == config.ResolvConf) {
			changed(c, c.firstFile, "forward[].policy", "the fastest upstream is used, a random one there", "policy: random", func() { r.Policy = config.PolicyRandom })
		}
		if s := c.serverFor(r.Zone); s != nil && !r.early && len(s.all("cache")) == 0 {
			changed(c, r.at, r.text, "answers are cached, without the plugin cache none there", "cache: off in the route", func() { r.NoCache = true })
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

// lastTemplates puts the aliases before all templates except those that drop a type for all names, which apply to
// rewritten names too. It adds the templates that deny names, which depend on the routes.
func (c *converter) lastTemplates() {
	if len(c.aliases) > 0 {
		c.templates = aliasesFirst(c.aliases, c.templates)
	}
	add := func(s sourced[string], t config.Template) {
		t.Zone = s.value
		c.templates = append(c.templates, sourced[config.Template]{t, s.origin})
	}
	for _, w := range c.wild {
		add(w, config.Template{Match: []string{oneLabelBelow(w.value)}})
	}
	for _, d := range c.denied {
		if d.value != "." && isServedBelow(c, d.value) {
			c.lost(d.at, d.text, "unknown names are looked up, not denied: there is a route in "+d.value, "")
			continue
		}
		add(d, config.Template{Rcode: dns.RcodeNameError})
	}
	c.routes = slices.DeleteFunc(c.routes, func(r route) bool { return containsZone(c.unread, r.Zone) })
	for _, z := range slices.Concat(c.unread, c.excepted) {
		leave(c, z)
	}
}

// leave forwards the names of a zone to the old server, or to none: they must not go to the upstreams of the root.
func leave(c *converter, z sourced[string]) {
	isServed := c.clusterZone == z.value || c.cfg.Cluster.ClusterSet == z.value || slices.ContainsFunc(c.routes, func(r route) bool { return r.Zone == z.value })
	isAnswered := slices.ContainsFunc(c.templates, func(t sourced[config.Template]) bool {
		return t.value.Zone == z.value && len(t.value.Types) == 0 && len(t.value.Match) == 0
	})
	if isServed || isAnswered {
		return
	}
	to := config.Target{Kind: config.None}
	if c.OldServer.IsValid() {
		to = config.Target{Addr: c.OldServer}
	}
	c.routes = append(c.routes, route{Route: config.DefaultRoute(z.value, to), origin: z.origin})
}

// isServedBelow reports whether a zone, or one below it, has a route or is the cluster's.
func isServedBelow(c *converter, zone string) bool {
	return c.clusterZone != "" && below(c.clusterZone, zone) || slices.ContainsFunc(c.routes, func(r route) bool { return below(r.Zone, zone) })
}

func containsZone(list []sourced[string], zone string) bool {
	return slices.ContainsFunc(list, func(s sourced[string]) bool { return s.value == zone })
}

// aliasesFirst returns the templates that drop a type for all names, then the aliases, then the other templates.
func aliasesFirst(aliases, templates []sourced[config.Template]) []sourced[config.Template] {
	var types, others []sourced[config.Template]
	for _, t := range templates {
		if matchesAll(t.value.Match) && isEmpty(&t.value) && len(t.value.Types) > 0 {
			types = append(types, t)
		} else {
			others = append(others, t)
		}
	}
	return slices.Concat(types, aliases, others)
}

// maxRemoved bounds the validation rounds.
const maxRemoved = 25

// result completes the lists and validates the configuration.
func (c *converter) result() (*Result, error) {
	for range maxRemoved {
		c.lists()
		normal, err := config.Normalize(c.cfg, config.Agent)
		if err == nil {
			sortNotes(c.notes)
			return &Result{Config: normal, Notes: c.notes, origins: c.origins}, nil
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

// lists moves the lists into the configuration, with the comments of their items.
func (c *converter) lists() {
	maps.DeleteFunc(c.origins, func(path string, _ origin) bool { return strings.Contains(path, "[") })
	if !slices.ContainsFunc(c.routes, func(r route) bool { return r.Zone == "." }) {
		c.routes = append(c.routes, route{Route: config.Default(config.Agent).Forward[0]})
	}
	c.cfg.Forward, c.cfg.Rewrite, c.cfg.Templates = nil, nil, nil
	root := c.routes[slices.IndexFunc(c.routes, func(r route) bool { return r.Zone == "." })].ttls
	for i, r := range c.routes {
		r.fill(&r.Route, &root, &c.cfg.Cache)
		c.cfg.Forward = append(c.cfg.Forward, r.Route)
		c.origins[fmt.Sprintf("forward[%d]", i)] = r.origin
	}
	for i, r := range c.rewrites {
		c.cfg.Rewrite = append(c.cfg.Rewrite, r.value)
		c.origins[fmt.Sprintf("rewrite[%d]", i)] = r.origin
	}
	for i, t := range c.templates {
		c.cfg.Templates = append(c.cfg.Templates, t.value)
		c.origins[fmt.Sprintf("templates[%d]", i)] = t.origin
	}
}

// remove removes what the validation refuses, and notes each item.
func (c *converter) remove(problems []config.Problem) {
	gone := map[string]bool{} // paths of list items
	for _, p := range problems {
		item, _, isItem := strings.Cut(p.Path, "]")
		item += "]"
		from, listed := c.origins[item]
		if !isItem || !listed {
			c.reset(p)
		} else if !gone[item] {
			gone[item] = true
			c.lost(from.at, cmp.Or(from.text, p.Path), p.What, p.Hint)
		}
	}
	before := c.routes
	c.routes = without(c.routes, func(i int) bool { return gone[fmt.Sprintf("forward[%d]", i)] })
	c.rewrites = without(c.rewrites, func(i int) bool { return gone[fmt.Sprintf("rewrite[%d]", i)] })
	c.templates = without(c.templates, func(i int) bool { return gone[fmt.Sprintf("templates[%d]", i)] })
	for i, r := range before {
		if gone[fmt.Sprintf("forward[%d]", i)] && r.Zone != "." {
			leave(c, sourced[string]{r.Zone, r.origin})
		}
	}
}

// without returns list without the items whose index is gone.
func without[T any](list []T, gone func(int) bool) []T {
	var kept []T
	for i, v := range list {
		if !gone(i) {
			kept = append(kept, v)
		}
	}
	return kept
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
	standard := config.Default(config.Agent)
	known := false
	for _, name := range []string{head, strings.TrimSuffix(head, "Domain"), head + "Domain"} { // cluster and clusterDomain go together
		isName := func(field string) bool { return strings.EqualFold(field, name) }
		if field := reflect.ValueOf(&c.cfg).Elem().FieldByNameFunc(isName); field.IsValid() {
			field.Set(reflect.ValueOf(standard).FieldByNameFunc(isName))
			known = true
		}
	}
	if !known {
		c.cfg, c.routes, c.rewrites, c.templates = standard, nil, nil, nil
	}
	maps.DeleteFunc(c.origins, func(path string, _ origin) bool { return strings.HasPrefix(path, head) })
}
