// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// maxVisits bounds the nodes that are decoded. Only a file with aliases can have more, because of maxBytes.
const maxVisits = 1 << 20

// maxBytes bounds a file, in bytes. A ConfigMap is at most that large.
const maxBytes = 1 << 20

// decoder decodes one document, and collects its problems.
type decoder struct {
	role      Role
	name      string                   // of the text, in errors; empty: it has none
	folder    *string                  // where relative paths begin; nil: they stay relative
	onNode    bool                     // this machine is the node: the files that the text names are read
	checking  bool                     // for `node-cache check`
	hostAddrs func() []netip.Addr      // the addresses of the node; none if this machine is another one
	files     func(*Config, *Findings) // reports what is wrong with the files that the text names; nil: nothing more is checked

	problems []Problem
	warnings []Problem             // what is valid, but hardly meant; at most maxProblems
	more     int                   // number of problems beyond maxProblems, which are not listed
	set      map[string]*yaml.Node // the node of each key's and each list item's value, by path; keys without a value are not in it
	visits   int                   // nodes decoded so far, see maxVisits
}

// isSet reports whether the file has a value for a key.
func (d *decoder) isSet(path string) bool {
	_, set := d.set[path]
	return set
}

// add adds a problem to the report, or counts it in more if the report is full.
func (d *decoder) add(p Problem) {
	if len(d.problems) >= maxProblems {
		d.more++
		return
	}
	d.problems = append(d.problems, p)
}

// addAt reports a problem at a node.
func (d *decoder) addAt(n *yaml.Node, path, what, hint string) {
	d.add(Problem{Line: n.Line, Column: n.Column, Path: path, What: what, Hint: hint})
}

// report reports a problem at the value of its path, or of the closest path around it that has one.
func (d *decoder) report(path, what, hint string) {
	d.addAt(d.closest(path), path, what, hint)
}

// closest returns the node of a path, or of the closest path around it that has one. It is never nil.
func (d *decoder) closest(path string) *yaml.Node {
	for path != "" && d.set[path] == nil {
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return cmp.Or(d.set[path], &yaml.Node{})
}

// warn warns of a valid value, unless the value of its path or of another key is bad.
func (d *decoder) warn(path, what, hint string, with ...string) {
	if len(d.warnings) < maxProblems && d.clean(append(with, path)...) {
		n := d.closest(path)
		d.warnings = append(d.warnings, Problem{Line: n.Line, Column: n.Column, Path: path, What: what, Hint: hint})
	}
}

// reject reports what is wrong with the value of a node.
func (d *decoder) reject(path string, n *yaml.Node, p *Problem) {
	d.addAt(n, path, shown(n)+": "+p.What, p.Hint)
}

// rejectText is reject for a string that has been decoded, so that its node is not at hand.
func (d *decoder) rejectText(path, text string, p *Problem) {
	d.report(path, quote(text)+": "+p.What, p.Hint)
}

// err returns the problems as an error, nil if there are none.
func (d *decoder) err() error {
	if len(d.problems) == 0 {
		return nil
	}
	sortProblems(d.problems)
	if d.more > 0 {
		d.problems = append(d.problems, Problem{What: fmt.Sprintf("%d more problems", d.more)})
	}
	return &Error{Path: d.name, Problems: d.problems}
}

// clean reports whether no problem is at or below any of the keys. A rule between keys is
// checked only then: the default that replaces a bad value could break the rule, and the
// user would get a second problem for one mistake.
func (d *decoder) clean(paths ...string) bool {
	for _, p := range d.problems {
		for _, path := range paths {
			below, found := strings.CutPrefix(p.Path, path)
			if found && (below == "" || below[0] == '.' || below[0] == '[') {
				return false
			}
		}
	}
	return true
}

// check reports a broken rule about the value of path and those of other keys, unless one of them is bad by itself.
func (d *decoder) check(broken bool, path, what, hint string, with ...string) {
	if broken && d.clean(append(with, path)...) {
		d.report(path, what, hint)
	}
}

// decode stores the value of a node in v, and reports problems. It reports whether the node was of the right kind.
func (d *decoder) decode(path string, n *yaml.Node, v reflect.Value, f *field) bool {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if !d.visit(path, n) {
		return false
	}
	d.set[path] = n
	switch {
	case v.Type() == reflect.TypeFor[Fallback]():
		return d.decodeFallback(path, n, v)
	case v.Type() == reflect.TypeFor[BlockAnswer]():
		return d.decodeBlockAnswer(path, n, v)
	case v.Kind() == reflect.Map:
		return d.decodeHosts(path, n, v)
	case v.Kind() == reflect.Slice:
		return d.decodeList(path, n, v, f)
	case f.format.parse == nil:
		return d.decodeMapping(path, n, v, f)
	}
	return d.decodeScalar(path, n, v, f)
}

// visit reports whether a node may be decoded. Aliases could make the work grow without bounds.
func (d *decoder) visit(path string, n *yaml.Node) bool {
	before := d.visits
	d.visits += 1 + len(n.Content)/2
	if before <= maxVisits && d.visits > maxVisits {
		d.problems = append(d.problems, Problem{Line: n.Line, Column: n.Column, Path: path, What: "too many aliases"}) // listed even if the report is full
	}
	return d.visits <= maxVisits
}

func (d *decoder) decodeMapping(path string, n *yaml.Node, v reflect.Value, f *field) bool {
	if n.Kind != yaml.MappingNode {
		d.reject(path, n, problem("not a mapping", f.switchHint(n)))
		return false
	}
	fields := fieldsOf(v.Type())
	for _, p := range d.pairs(path, n) {
		child := childPath(path, p.key)
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == p.key })
		if i < 0 {
			d.addAt(p.node, child, "unknown key", d.suggest(p.key, fields))
			continue
		}
		to := fields[i].value(v)
		if p.again { // a key that is set twice keeps its first value; this value is only checked
			to = reflect.New(to.Type()).Elem()
		}
		if !isNull(p.value) {
			d.decode(child, p.value, to, &fields[i])
		}
	}
	for i := range fields {
		child := childPath(path, fields[i].key)
		hint := fields[i].tag.Get("required")
		if hint != "" && !d.isSet(child) && fields[i].value(v).IsZero() {
			d.report(child, "missing", hint)
		}
	}
	return true
}

// pair is a key with its value.
type pair struct {
	key      string
	isString bool       // the key is a string, in YAML 1.1 too
	again    bool       // the key occurs earlier in the mapping, too
	node     *yaml.Node // node of the key
	value    *yaml.Node
}

// pairs returns the keys of a mapping. It reports keys that are not scalars and keys that are set twice.
func (d *decoder) pairs(path string, n *yaml.Node) []pair {
	var list []pair
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		if key.Kind != yaml.ScalarNode || isNull(key) {
			d.addAt(n.Content[i], path, "a key that is not a word", "")
			continue
		}
		p := pair{key: key.Value, isString: isString(key), node: n.Content[i], value: value}
		first := lines[p.key]
		if p.again = first > 0; p.again {
			d.addAt(p.node, childPath(path, p.key), fmt.Sprintf("set twice, first on line %d", first), "")
		} else {
			lines[p.key] = p.node.Line
		}
		list = append(list, p)
	}
	return list
}

func (d *decoder) decodeList(path string, n *yaml.Node, v reflect.Value, f *field) bool {
	if n.Kind != yaml.SequenceNode {
		d.reject(path, n, notList(n))
		return false
	}
	hint := f.tag.Get("required")
	switch {
	case len(n.Content) == 0 && hint != "":
		d.report(path, "empty", hint)
		return true
	case f.max > 0 && f.format.parse == nil && len(n.Content) > int(f.max):
		d.report(path, fmt.Sprintf("%d items: not more than %v", len(n.Content), f.max), "")
		return true
	}
	list := reflect.MakeSlice(v.Type(), 0, len(n.Content))
	seen := map[any]string{}
	for i, item := range n.Content {
		child := fmt.Sprintf("%s[%d]", path, i)
		value := newItem(v.Type().Elem())
		ok := d.decode(child, item, value, f)
		list = reflect.Append(list, value) // also an invalid value, so that later items keep their index in the file
		if !ok || f.format.parse == nil {
			continue
		}
		if first, again := seen[value.Interface()]; again && f.tag.Get("repeats") == "" {
			d.reject(child, item, problem("already at "+first, ""))
			continue
		}
		seen[value.Interface()] = child
	}
	v.SetZero()
	if list.Len() > 0 {
		v.Set(list)
	}
	return true
}

// notList returns what is wrong with a value that should be a list.
func notList(n *yaml.Node) *Problem {
	if n.Kind == yaml.ScalarNode && !isNull(n) {
		return problem("not a list", fmt.Sprintf("write [%s]", shown(n)))
	}
	return problem("not a list", "begin each item with a dash")
}

// decodeHosts decodes a mapping from names to lists of addresses.
func (d *decoder) decodeHosts(path string, n *yaml.Node, v reflect.Value) bool {
	if n.Kind != yaml.MappingNode {
		d.reject(path, n, problem("not a mapping", "write it like {db.example: [192.0.2.1]}"))
		return false
	}
	addresses := field{tag: `required:"name at least one address"`, format: textFormat(parseHostAddress, netip.Addr.String)}
	hosts := map[string][]netip.Addr{}
	seen := map[string]string{}
	for _, p := range d.pairs(path, n) {
		child := childPath(path, p.key)
		name, bad := parseHostKey(&p)
		first, again := seen[name]
		switch {
		case bad != nil:
			d.addAt(p.node, child, quote(p.key)+": "+bad.What, bad.Hint)
			continue
		case again && first != child:
			d.addAt(p.node, child, "the name is already at "+first, "")
			continue
		case again: // pairs has reported that the key is set twice
			continue
		}
		seen[name] = child
		if isNull(p.value) {
			d.addAt(p.node, child, "empty: not a list", "name at least one address")
			continue
		}
		var list []netip.Addr
		d.decode(child, p.value, reflect.ValueOf(&list).Elem(), &addresses)
		if len(list) > 0 {
			hosts[name] = list
		}
	}
	v.SetZero()
	if len(hosts) > 0 {
		v.Set(reflect.ValueOf(hosts))
	}
	return true
}

// parseHostKey returns the name of a host. It refuses what may not be the name that the user wrote: programs such as Helm
// read y, no and 010 as a boolean or a number, and write another spelling, quoted.
func parseHostKey(p *pair) (string, *Problem) {
	isNumber := p.key != "" && p.key[0] <= '9' && p.key[0] != '"' && json.Valid([]byte(p.key))
	if isNumber || p.key == "true" || p.key == "false" || !p.isString {
		return "", problem("not known to be a name: y, no, 010 and their like are values in YAML", "write the name with a dot at its end")
	}
	return parseName(p.key)
}

// decodeFallback decodes central, none, or a list of addresses with or without a port.
func (d *decoder) decodeFallback(path string, n *yaml.Node, v reflect.Value) bool {
	f := Fallback{Central: n.Value == "central"}
	switch {
	case n.Kind == yaml.SequenceNode:
		servers := field{tag: `required:"write none, or name at least one address"`, format: textFormat(parseServer, netip.AddrPort.String)}
		d.decode(path, n, reflect.ValueOf(&f.Addresses).Elem(), &servers)
	case !isString(n):
		d.reject(path, n, problem("not central, none or a list of addresses", ""))
		return true
	case !f.Central && n.Value != "none":
		hint := didYouMean(n.Value, []string{"central", "none"})
		if _, err := parseEndpoint(n.Value, dnsPort); err == nil {
			hint = "write [" + quote(n.Value) + "]"
		}
		d.reject(path, n, problem("not central, none or a list of addresses", hint))
		return true
	}
	v.Set(reflect.ValueOf(f))
	return true
}

// decodeBlockAnswer decodes nxdomain, nodata, or a list of addresses.
func (d *decoder) decodeBlockAnswer(path string, n *yaml.Node, v reflect.Value) bool {
	b := BlockAnswer{NoData: n.Value == "nodata"}
	switch {
	case n.Kind == yaml.SequenceNode:
		addresses := field{tag: `required:"write nxdomain or nodata, or name at least one address"`, format: textFormat(parseHostAddress, netip.Addr.String)}
		d.decode(path, n, reflect.ValueOf(&b.Addresses).Elem(), &addresses)
	case !isString(n) || !b.NoData && n.Value != "nxdomain":
		hint := didYouMean(n.Value, []string{"nxdomain", "nodata"})
		if isAddress(n.Value) {
			hint = "write [" + quote(n.Value) + "]"
		}
		d.reject(path, n, problem("not nxdomain, nodata or a list of addresses", hint))
		return true
	}
	v.Set(reflect.ValueOf(b))
	return true
}

// newItem returns an item of a list with the defaults of its keys.
func newItem(t reflect.Type) reflect.Value {
	item := reflect.New(t).Elem()
	switch v := item.Addr().Interface().(type) {
	case *Route:
		*v = DefaultRoute("")
	case *Probe:
		*v = DefaultProbe("", "")
	}
	return item
}

func (d *decoder) decodeScalar(path string, n *yaml.Node, v reflect.Value, f *field) bool {
	got, p := f.format.parse(n)
	if p == nil {
		p = f.outOfBounds(got, n, v)
	}
	if p != nil {
		d.reject(path, n, p)
		return false
	}
	v.Set(reflect.ValueOf(got).Convert(v.Type()))
	return true
}

// suggest returns the hint for an unknown key.
func (d *decoder) suggest(key string, fields []field) string {
	if len(d.problems) >= maxProblems { // a full report does not show the hint
		return ""
	}
	if key == "<<" {
		return "YAML 1.2 has no merge keys: write the keys themselves, or take the whole mapping with *"
	}
	keys := make([]string, len(fields))
	for i := range fields {
		keys[i] = fields[i].key
	}
	return didYouMean(key, keys)
}

// childPath returns the path of a key in a mapping.
func childPath(path, key string) string {
	odd := func(c rune) bool {
		return c > unicode.MaxASCII || c != '_' && c != '-' && !unicode.IsLetter(c) && !unicode.IsDigit(c)
	}
	switch {
	case key == "" || len(key) > maxShown || strings.ContainsFunc(key, odd):
		return path + "[" + quote(key) + "]"
	case path == "":
		return key
	}
	return path + "." + key
}

// readDocument returns the root of the only document in a text, nil if it is empty, and whether there is something to
// decode.
func (d *decoder) readDocument(data []byte) (*yaml.Node, bool) {
	if len(data) > maxBytes {
		d.add(Problem{What: "larger than " + formatSize(maxBytes)})
		return nil, false
	}
	if !d.checkText(data) {
		return nil, false
	}
	var first, second yaml.Node
	text := bytes.NewReader(data)
	reader := yaml.NewDecoder(byteReader{text})
	err := reader.Decode(&first)
	if errors.Is(err, io.EOF) {
		return nil, true
	}
	if (err != nil || first.Content[0].Kind != yaml.MappingNode) && corefile().Match(data) {
		d.add(Problem{Line: 1, Column: 1, What: "a Corefile", Hint: "`node-cache convert` makes a configuration of it"})
		return nil, false
	}
	next := err
	if err == nil {
		next = reader.Decode(&second)
	}
	const hint = "one file holds one configuration"
	const ahead = 4 // bytes that the library reads ahead of its position
	stopped := 1 + bytes.Count(data[:max(0, len(data)-text.Len()-ahead)], []byte("\n"))
	switch {
	case err != nil:
		d.addSyntax(err, stopped, "")
		return nil, false
	case next == nil && !isNull(second.Content[0]): // an empty second document does no harm
		d.addAt(second.Content[0], "", "a second document", hint)
		return nil, false
	case next != nil && !errors.Is(next, io.EOF):
		d.addSyntax(next, stopped, hint)
		return nil, false
	}
	return first.Content[0], true
}

// corefile matches text with a line that begins a server block of CoreDNS.
func corefile() *regexp.Regexp { return regexp.MustCompile(`(?m)^[^\s#][^#]*[^:,\s\[{] *\{\s*$`) }

// checkText reports bytes that are not text, and returns whether all are. YAML may be UTF-16 as well, which other programs do
// not read.
func (d *decoder) checkText(data []byte) bool {
	line, begin := 1, 0
	for i, c := range string(data) {
		what := ""
		switch {
		case c == '\n':
			line, begin = line+1, i+1
			continue
		case c == utf8.RuneError && !bytes.HasPrefix(data[i:], []byte(string(utf8.RuneError))):
			what = "not UTF-8 text"
		case c < ' ' && c != '\t' && c != '\r', c >= 0x7F && c <= 0x9F && c != 0x85, c == 0xFFFE, c == 0xFFFF:
			what = fmt.Sprintf("control character %U", c)
		default:
			continue
		}
		d.add(Problem{Line: line, Column: 1 + utf8.RuneCount(data[begin:i]), What: what})
		return false
	}
	return true
}

// byteReader reads one byte at a time, so that the position of text shows how far the YAML library has read.
type byteReader struct{ text *bytes.Reader }

func (r byteReader) Read(p []byte) (int, error) { return r.text.Read(p[:min(1, len(p))]) }

// addSyntax reports a text that is not YAML. Some errors of the library have no line, others have the line where the mapping or list
// with the mistake begins: both get the line at which the library stopped reading. If hint is empty, err decides on the hint.
func (d *decoder) addSyntax(err error, stopped int, hint string) {
	what := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0
	if n, _ := fmt.Sscanf(what, "line %d:", &line); n == 1 {
		_, what, _ = strings.Cut(what, ": ")
	}
	if line == 0 || strings.HasPrefix(what, "did not find expected") {
		line = stopped
	}
	contains := func(part string) bool { return strings.Contains(what, part) }
	switch {
	case hint != "":
	case contains("mapping values"):
		hint = "quote a value that holds a colon and a space, and check the indentation"
	case contains("end of stream"):
		hint = "close the quotes"
	case contains("cannot start any token"), contains("tab character"):
		hint = "indent with spaces, not with tabs, and quote a value that begins with @ or `"
	default:
		hint = "check the indentation and the brackets, here and above, and quote an IPv6 address"
	}
	d.add(Problem{Line: line, Column: 1, What: "YAML: " + what, Hint: hint})
}
