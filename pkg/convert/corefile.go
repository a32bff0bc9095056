// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/config"
)

// Result is a configuration, with what of the other one it does not hold.
type Result struct {
	Config config.Config // of an agent; passes every check
	Notes  []Note        // in the order of the files and their lines

	sources map[string]string // by path of a key: the line that it is from
}

// YAML returns the configuration as a file: what differs from the defaults, with the line it is from as a comment. The
// error is that of [config.MarshalChanges].
func (r *Result) YAML() ([]byte, error) {
	text, err := config.MarshalChanges(r.Config, config.Agent, func(path string) string { return r.sources[path] })
	if err != nil { // it may be the comments that make it too large
		text, err = config.MarshalChanges(r.Config, config.Agent, func(string) string { return "" })
	}
	if err != nil {
		return nil, fmt.Errorf("writing what was converted: %w", err)
	}
	return text, nil
}

// Lost reports whether something has no counterpart.
func (r *Result) Lost() bool {
	return slices.ContainsFunc(r.Notes, func(n Note) bool { return !n.Kept })
}

// Corefile converts the text of a Corefile. The file is its name in notes, comments and errors. An error says that the
// text is no Corefile; whatever is in one becomes configuration or a note.
func Corefile(file string, text []byte) (*Result, error) {
	return convert([]document{{name: file, first: 1, text: string(text)}}, nil, nil)
}

// corefile is a conversion that is under way.
type corefile struct {
	cfg     config.Config
	notes   []Note
	sources map[string]string // by path of a key

	routes    []route
	templates []sourced[config.Template]
	aliases   []sourced[config.Template] // of rules with expressions, which come before all others
	rewrites  []sourced[config.Rewrite]

	excepted []sourced[string] // zones that nobody is asked for

	wild         []sourced[string] // names below which hosts answers all others
	denied       []sourced[string] // zones whose other names do not exist
	disabled     map[string]string // what is kept out of the cache, by server and zones: success or denial
	halfDisabled []sourced[string] // those that are one of the two

	servers           []*server
	upstreams         []config.Target  // of __PILLAR__UPSTREAM__SERVERS__
	listenAddrs       map[string]place // the listen addresses, and where each is from
	listensEverywhere bool             // a server takes queries at every address
	cluster           clusterState
	keys              map[string]keySet   // by path: where it was set first, and its value
	firstFile         place               // the first file
	noted             map[string]bool     // notes that need not come again
	shared            map[string]document // files beside the Corefiles, by the last part of their names
	otherPorts        []*otherPort        // server blocks at other ports
	mentioned         map[string]bool     // the last parts of the files that Corefiles name
	unknownKeys       map[string]place    // keys of ConfigMaps that nobody imports
	hostAt            map[string]int      // the places of names in hosts.names
}

// sourced is an item of a list, with the line that it is from.
type sourced[T any] struct {
	value T
	at    place
	text  string // of the line
}

// route is a route with the lines that it is from.
type route struct {
	config.Route
	ttls // those that it has not from the cache

	at    place
	text  string
	early bool // of the ConfigMap of kube-dns, and not in a Corefile so far
}

// keySet is a value that a key has already.
type keySet struct {
	at    place
	value string
}

// server is a server block whose zones are known.
type server struct {
	*block

	zones []string
	own   []string // zones at or below them that somebody here answers or forwards
}

// convert makes one configuration of Corefiles and of a ConfigMap of kube-dns.
func convert(docs []document, shared map[string]document, kubeDNS map[string]string) (*Result, error) {
	c := &corefile{
		cfg: config.Default(config.Agent), sources: map[string]string{}, listenAddrs: map[string]place{}, keys: map[string]keySet{}, noted: map[string]bool{},
		unknownKeys: map[string]place{}, hostAt: map[string]int{}, mentioned: map[string]bool{},
	}
	if len(docs) > 0 {
		c.firstFile.file = docs[0].name
	}
	if err := c.read(docs, shared); err != nil {
		return nil, err
	}
	if err := c.kubeDNS(kubeDNS); err != nil {
		return nil, err
	}
	if len(docs) > 0 {
		c.listen()
		c.clusterDomain()
		for _, s := range c.servers {
			c.server(s)
		}
		c.noteUnmatchedNames()
		c.noteUnusedPorts()
		c.aliasesFirst()
		c.denialTemplates()
		c.exceptTemplates()
		c.noteHalfDisabled()
	}
	c.noteUnknownKeys()
	return c.result()
}

// read parses the Corefiles, and takes those of their server blocks that can be served.
func (c *corefile) read(docs []document, shared map[string]document) error {
	c.shared = shared
	used := map[string]bool{}
	var all []block
	for _, d := range docs {
		e := expander{shared: shared, used: used, snippets: map[string]int{}, unfilled: map[string]bool{}, forms: placeholders()}
		if err := e.expand(d, 0); err != nil {
			return err
		}
		blocks, err := parse(d.name, strings.Join(e.lines, "\n"), e.places)
		c.notes = append(c.notes, e.notes...)
		if err != nil {
			return err
		}
		all = append(all, blocks...)
	}
	c.usualPort(all)
	for i := range all {
		c.addServer(&all[i])
		c.collectFileNames(&all[i])
	}
	if len(docs) > 0 && len(c.servers) == 0 && len(c.notes) == 0 {
		return fmt.Errorf("reading the Corefile: %s: no server block is in it", docs[0].name)
	}
	for _, name := range sortedNames(shared) {
		if !used[name] {
			c.noteUnusedKey(name, shared[name])
		}
	}
	return nil
}

// names keeps what may be the files that the plugins of a server block read.
func (c *corefile) collectFileNames(b *block) {
	for _, st := range b.plugins {
		for _, word := range st.args() {
			c.mentioned[path.Base(word)] = true
		}
	}
}

// unused notes a key of a ConfigMap that no Corefile imports.
func (c *corefile) noteUnusedKey(name string, d document) {
	if d.unknownKey != (place{}) { // which a Corefile may read
		c.unknownKeys[name] = d.unknownKey
		return
	}
	c.noteLost(place{file: d.name}, name, "no Corefile imports it", "give the Corefile that does, or leave this out")
}

// oddKeys notes the keys of ConfigMaps that nothing is known of.
func (c *corefile) noteUnknownKeys() {
	for name, at := range c.unknownKeys {
		if !c.mentioned[name] { // else it was said where it is named
			c.noteLost(at, "key "+name, "no Corefile imports it, and it is no key of kube-dns", "")
		}
	}
}

// take keeps a server block, unless it is for a port or a transport that there is not.
func (c *corefile) addServer(b *block) {
	s := &server{block: b}
	for _, key := range b.keys {
		a := parseAddress(fillPlaceholders(key))
		what := "server " + key
		switch {
		case a.transport != "dns":
			c.noteLost(b.at, what, "queries are taken over UDP and TCP alone", "leave it to a server beside this one, such as the central resolver")
			continue
		case !c.port(b, a, what):
			continue
		}
		list, err := zones(a.host)
		if err != nil {
			c.noteLost(b.at, what, oneLine(err), "")
			continue
		}
		for _, zone := range list {
			if c.serverOf(zone) != nil {
				c.noteLost(b.at, what, "the zone "+zone+" has a server already", "leave one of them out")
				continue
			}
			s.zones = append(s.zones, zone)
		}
	}
	if len(s.zones) == 0 {
		return
	}
	if len(b.plugins) == 0 {
		c.noteLost(b.at, "server "+strings.Join(b.keys, " "), "its block has no plugins, so nobody is asked for its names",
			"plugins stand in braces: a line without them is a server by itself")
	}
	c.servers = append(c.servers, s)
}

// serverOf is the server block that has a zone itself, nil for none.
func (c *corefile) serverOf(zone string) *server {
	for _, s := range c.servers {
		if slices.Contains(s.zones, zone) {
			return s
		}
	}
	return nil
}

// heard is the server block whose zones a name is in, nil for none.
func (c *corefile) serverFor(name string) *server {
	var best *server
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

// lost notes what has no counterpart.
func (c *corefile) noteLost(at place, what, why, hint string) {
	c.notes = append(c.notes, Note{File: at.file, Line: at.line, What: what, Why: why, Hint: hint})
}

// differs notes what has a counterpart that is not quite the same.
func (c *corefile) noteDiffers(at place, what, why, hint string) {
	c.notes = append(c.notes, Note{File: at.file, Line: at.line, What: what, Why: why, Hint: hint, Kept: true})
}

// first reports whether something is said for the first time, which is enough.
func (c *corefile) firstTime(what string) bool {
	again := c.noted[what]
	c.noted[what] = true
	return !again
}

// set tells where the value of a key is from, and reports whether the key has it: the first server block to set a key
// of the whole program has the say, and another value is noted.
func (c *corefile) setKey(path string, s *statement, value string) bool {
	before, again := c.keys[path]
	if again && before.value != value {
		c.noteLost(s.at, s.text(), fmt.Sprintf("%s is one for all zones, and already %s by %s", path, before.value, before.at), "")
	}
	if again {
		return false
	}
	c.keys[path] = keySet{s.at, value}
	c.sources[path] = s.at.String() + ": " + s.text()
	return true
}

// result puts the lists together and holds them to the checks.
func (c *corefile) result() (*Result, error) {
	c.finishRoutes()
	c.listSources()
	for range maxRemoved {
		normal, err := config.Normalize(c.cfg, config.Agent)
		if err == nil {
			c.cfg = normal
			return &Result{Config: c.cfg, Notes: inOrder(c.notes), sources: c.sources}, nil
		}
		var bad *config.Error
		if !errors.As(err, &bad) {
			return nil, fmt.Errorf("checking what was converted: %w", err)
		}
		located := slices.DeleteFunc(slices.Clone(bad.Problems), func(p config.Problem) bool { return p.Path == "" })
		if len(located) == 0 {
			return nil, fmt.Errorf("checking what was converted: %s: name a file with the names in hosts.files, or run more than one agent", bad.Problems[0].What)
		}
		c.remove(located)
	}
	return nil, errors.New("checking what was converted: too much of it is wrong")
}
