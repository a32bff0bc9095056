// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"github.com/nodecache/node-cache/pkg/config"
)

// Input is a file to convert. The values of a ConfigMap in it become inputs as well.
type Input struct {
	Name string // in notes
	Text []byte

	before     int   // lines before the text in its file
	unknownKey place // of an unknown key; zero: the key is known
}

// maxInput bounds one file. A ConfigMap holds at most that.
const maxInput = 1 << 20

// Options say how much stays as it was.
type Options struct {
	Faithful  bool           // where a Corefile says nothing, CoreDNS's defaults are kept
	OldServer netip.AddrPort // answers the names that node-cache cannot; zero: they get SERVFAIL
	Complete  bool           // a pattern for files to import that matches none of the inputs matches nothing
}

// Files converts all inputs to one configuration. It detects their type: a Corefile, or YAML with ConfigMaps, alone, in a
// List, or among other objects. It converts a ConfigMap's Corefile, kube-dns keys, and keys that end in .override or
// .server, which a Corefile may import. It fails if an input is none of these.
func Files(inputs []Input, o Options) (*Result, error) {
	c := newConverter(o)
	for _, in := range inputs {
		if err := add(c, in); err != nil {
			return nil, fmt.Errorf("reading %s: %w", in.Name, err)
		}
	}
	if len(c.corefiles) == 0 && c.kubeDNSKeys == nil {
		what := "there is nothing to convert: neither a Corefile nor the ConfigMap of one, or of kube-dns"
		if names := sortedNames(c.files); len(names) > 0 {
			isPart := func(name string) bool { return c.files[name].unknownKey == (place{}) }
			what += ": give the Corefile that imports " + names[max(0, slices.IndexFunc(names, isPart))] +
				" beside it: kubectl -n kube-system get configmap coredns coredns-custom -o yaml has both"
		}
		return nil, errors.New(what)
	}
	return c.convert()
}

// sortedNames returns the sorted names of files.
func sortedNames(files map[string]Input) []string { return slices.Sorted(maps.Keys(files)) }

// add adds one input.
func add(c *converter, in Input) error {
	switch {
	case len(in.Text) > maxInput:
		return errors.New("larger than 1 MiB")
	case len(bytes.TrimSpace(in.Text)) == 0:
		return errors.New("empty")
	}
	objects, err := objects(in.Text)
	if err != nil {
		return err
	}
	if objects == nil {
		c.corefiles = append(c.corefiles, in)
		return nil
	}
	found := false
	for _, o := range objects {
		data := value(o, "data")
		if kind := value(o, "kind"); kind == nil || kind.Value != "ConfigMap" || data == nil || data.Kind != yaml.MappingNode {
			continue
		}
		known, err := addConfigMap(c, in.Name, data)
		if err != nil {
			return err
		}
		found = found || known
	}
	if !found {
		return errors.New("no ConfigMap in it has a Corefile or the keys of kube-dns")
	}
	return nil
}

// objects returns the mappings in a YAML text, including those of a List. A Corefile has none, without an error.
func objects(text []byte) (list []*yaml.Node, err error) {
	isYAML := false
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var doc yaml.Node
		err := decoder.Decode(&doc)
		switch {
		case errors.Is(err, io.EOF) && len(list) > 0:
			return list, nil
		case errors.Is(err, io.EOF):
			return nil, notCorefile(text, isYAML, errors.New("no object with a kind is in it"))
		case err != nil:
			return nil, notCorefile(text, false, err)
		case len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode:
			continue
		}
		items := value(doc.Content[0], "items")
		switch {
		case value(doc.Content[0], "kind") == nil:
			isYAML = true
		case items != nil && items.Kind == yaml.SequenceNode:
			list = append(list, items.Content...)
		default:
			list = append(list, doc.Content[0])
		}
	}
}

// notCorefile returns the error for a text without objects that is no Corefile: invalid YAML, or not a text.
func notCorefile(text []byte, isYAML bool, problem error) error {
	if err := unfilledError(text, 0); err != nil {
		return err
	}
	meant := regexp.MustCompile(`(?m)\A\s*\{|^(?:apiVersion|kind|metadata|data|items):(?:\s|$)`)
	isControl := func(c rune) bool { return c < ' ' && !strings.ContainsRune("\t\n\f\r", c) }
	switch {
	case bytes.ContainsFunc(text, isControl):
		return errors.New("not UTF-8 text")
	case isYAML, meant.Match(text):
		return fmt.Errorf("it is neither a Corefile nor YAML of a ConfigMap as kubectl get -o yaml writes it: %w", problem)
	}
	return nil
}

// value returns the value of a key of a mapping, or nil.
func value(mapping *yaml.Node, key string) *yaml.Node {
	if mapping.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(mapping.Content); i += 2 {
			if mapping.Content[i].Value == key {
				return mapping.Content[i+1]
			}
		}
	}
	return nil
}

// addConfigMap adds the keys of a ConfigMap, and reports whether it has known ones.
func addConfigMap(c *converter, file string, data *yaml.Node) (known bool, err error) {
	unknown := map[string]Input{}
	for i := 0; i+1 < len(data.Content); i += 2 {
		key, text := data.Content[i].Value, data.Content[i+1]
		in := Input{Name: file + " " + key, Text: []byte(text.Value)}
		if text.Style&yaml.LiteralStyle != 0 { // its lines are lines of the file
			in.Name, in.before = file, text.Line
		}
		isKnown, again := addKey(c, key, in)
		switch {
		case again:
			return true, fmt.Errorf("the key %s is in two ConfigMaps", key)
		case isKnown:
			known = true
		case key != "Corefile-backup": // a backup of kubeadm's upgrade
			in.unknownKey = place{file, data.Content[i].Line}
			unknown[key] = in
		}
	}
	for key, in := range unknown { // a Corefile may import or read them
		if _, again := c.files[key]; known && !again { // without known keys it is not about DNS
			c.files[key] = in
		}
	}
	return known, nil
}

// addKey adds the value of a known key. It reports whether the key is known, and whether another ConfigMap had it.
func addKey(c *converter, key string, in Input) (known, again bool) {
	switch {
	case key == "Corefile":
		c.corefiles = append(c.corefiles, in)
	case strings.HasSuffix(key, ".override"), strings.HasSuffix(key, ".server"):
		_, again = c.files[key]
		c.files[key] = in
	case key == stubDomains, key == upstreamNameservers, key == federations:
		_, again = c.kubeDNSKeys[key]
		if c.kubeDNSKeys == nil {
			c.kubeDNSKeys = map[string]string{}
		}
		c.kubeDNSKeys[key] = string(in.Text)
	default:
		return false, false
	}
	return true, again
}

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
	seen := map[string]string{} // by zone: its text
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
		if zone != "." { // its names must not go to the upstreams of the root
			c.excepted = append(c.excepted, sourced[string]{zone, from})
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
