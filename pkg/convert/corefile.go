// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/config"
)

// Result is a configuration, with notes about what it does not contain.
type Result struct {
	Config config.Config // of an agent; valid
	Notes  []Note        // in the order of the files and their lines

	sources map[string]string // by path of a key: the source line
}

// YAML returns the configuration as a file: the keys that differ from the defaults, each with its source line as a
// comment. The error is that of [config.MarshalChanges].
func (r *Result) YAML() ([]byte, error) {
	text, err := config.MarshalChanges(r.Config, config.Agent, func(path string) string { return r.sources[path] })
	if err != nil { // the comments may make it too large
		text, err = config.MarshalChanges(r.Config, config.Agent, func(string) string { return "" })
	}
	if err != nil {
		return nil, fmt.Errorf("encoding the converted configuration: %w", err)
	}
	return text, nil
}

// Lost reports whether something could not be converted.
func (r *Result) Lost() bool {
	return slices.ContainsFunc(r.Notes, func(n Note) bool { return !n.Kept })
}

// Corefile converts the text of a Corefile. file is its name in notes, comments and errors. It fails only if the text is
// not a Corefile; every valid part becomes configuration or a note.
func Corefile(file string, text []byte) (*Result, error) {
	return convert([]document{{name: file, first: 1, text: string(text)}}, nil, nil)
}

// corefile is a running conversion.
type corefile struct {
	cfg     config.Config
	notes   []Note
	sources map[string]string // by path of a key

	routes    []route
	templates []sourced[config.Template]
	aliases   []sourced[config.Template] // for rules with expressions, placed before all others
	rewrites  []sourced[config.Rewrite]

	excepted []sourced[string] // zones without an upstream

	wild         []sourced[string] // names below which hosts answers every other name
	denied       []sourced[string] // zones whose other names do not exist
	disabled     map[string]string // what is kept out of the cache, by server and zones: success or denial
	halfDisabled []sourced[string] // those that are only one of the two

	servers           []*server
	upstreams         []config.Target  // of __PILLAR__UPSTREAM__SERVERS__
	listenAddrs       map[string]place // the listen addresses with their source lines
	listensEverywhere bool             // a server listens on every address
	cluster           clusterState
	keys              map[string]keySet   // by path: where it was set first, and its value
	firstFile         place               // the first file
	noted             map[string]bool     // notes that are given once
	shared            map[string]document // other files, by base name
	otherPorts        []*otherPort        // server blocks on other ports
	mentioned         map[string]bool     // base names of the files in Corefiles
	unknownKeys       map[string]place    // keys of ConfigMaps that no Corefile imports
	hostAt            map[string]int      // indexes of names in hosts.names
}

// sourced is a list item with its source line.
type sourced[T any] struct {
	value T
	at    place
	text  string // of the line
}

// route is a route with its source line.
type route struct {
	config.Route
	ttls // those not inherited from the cache

	at    place
	text  string
	early bool // of the kube-dns ConfigMap, and not in a Corefile so far
}

// keySet is the value of a key with its source line.
type keySet struct {
	at    place
	value string
}

// server is a server block with its zones.
type server struct {
	*block

	zones []string
	own   []string // zones at or below them that a plugin answers or forwards
}

// convert converts Corefiles and a kube-dns ConfigMap to one configuration.
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

// read parses the Corefiles, and collects the server blocks that can be served.
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
		return fmt.Errorf("reading the Corefile: %s: no server block", docs[0].name)
	}
	for _, name := range sortedNames(shared) {
		if !used[name] {
			c.noteUnusedKey(name, shared[name])
		}
	}
	return nil
}

// collectFileNames collects the possible file names in a server block.
func (c *corefile) collectFileNames(b *block) {
	for _, st := range b.plugins {
		for _, word := range st.args() {
			c.mentioned[path.Base(word)] = true
		}
	}
}

// noteUnusedKey notes a key of a ConfigMap that no Corefile imports.
func (c *corefile) noteUnusedKey(name string, d document) {
	if d.unknownKey != (place{}) { // a Corefile may read it
		c.unknownKeys[name] = d.unknownKey
		return
	}
	c.noteLost(place{file: d.name}, name, "no Corefile imports it", "give the Corefile that does, or leave this out")
}

// noteUnknownKeys notes the unknown keys of ConfigMaps.
func (c *corefile) noteUnknownKeys() {
	for name, at := range c.unknownKeys {
		if !c.mentioned[name] { // otherwise there is a note where it is mentioned
			c.noteLost(at, "key "+name, "no Corefile imports it, and it is no key of kube-dns", "")
		}
	}
}

// addServer adds a server block, unless its port or transport is unsupported.
func (c *corefile) addServer(b *block) {
	s := &server{block: b}
	for _, key := range b.keys {
		a := parseAddress(fillPlaceholders(key))
		what := "server " + key
		switch {
		case a.transport != "dns":
			c.noteLost(b.at, what, "only UDP and TCP are supported", "leave it to a server beside this one, such as the central resolver")
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
				c.noteLost(b.at, what, "the zone "+zone+" already has a server", "leave one of them out")
				continue
			}
			s.zones = append(s.zones, zone)
		}
	}
	if len(s.zones) == 0 {
		return
	}
	if len(b.plugins) == 0 {
		c.noteLost(b.at, "server "+strings.Join(b.keys, " "), "its block has no plugins, so its names have no upstream",
			"plugins stand in braces: a line without them is a server by itself")
	}
	c.servers = append(c.servers, s)
}

// serverOf returns the server block with this very zone, or nil.
func (c *corefile) serverOf(zone string) *server {
	for _, s := range c.servers {
		if slices.Contains(s.zones, zone) {
			return s
		}
	}
	return nil
}

// serverFor returns the server block whose zones contain a name, or nil.
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

// noteLost notes something that could not be converted.
func (c *corefile) noteLost(at place, what, why, hint string) {
	c.notes = append(c.notes, Note{File: at.file, Line: at.line, What: what, Why: why, Hint: hint})
}

// noteDiffers notes something that works differently.
func (c *corefile) noteDiffers(at place, what, why, hint string) {
	c.notes = append(c.notes, Note{File: at.file, Line: at.line, What: what, Why: why, Hint: hint, Kept: true})
}

// firstTime reports whether the text is new, so that its note is given once.
func (c *corefile) firstTime(what string) bool {
	again := c.noted[what]
	c.noted[what] = true
	return !again
}

// setKey records the source of a key's value, and reports whether the key has this value. The first server block to set a
// key of the whole program wins; a different later value is noted.
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

// result completes the lists and validates the configuration.
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

// Note is about a part that could not be converted, or works differently.
type Note struct {
	File string // as given; for a kube-dns ConfigMap its key
	Line int    // from 1; 0: the whole file
	What string // the part as written
	Why  string // why it is missing, or what differs
	Hint string // what to do instead; empty: nothing

	// Kept reports whether the part was converted and differs as Why says. False: it was not.
	Kept bool
}

// String returns the note on one line, without its hint: Corefile:12: what: why.
func (n Note) String() string {
	place := n.File
	if n.Line > 0 {
		place = fmt.Sprintf("%s:%d", n.File, n.Line)
	}
	return place + ": " + n.What + ": " + n.Why
}

// inOrder sorts notes by position, stably.
func inOrder(notes []Note) []Note {
	slices.SortStableFunc(notes, func(a, b Note) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return notes
}
