// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// maxVisits bounds the nodes that are decoded. A file without aliases has fewer: it is bounded as well.
const maxVisits = 1 << 20

// field is a key of a mapping, which a field of a struct has as its tags. All but yaml may be missing:
//
//	yaml      the key; a struct that is embedded without one has its keys among those around it
//	format    how a scalar, or each item of a list, is read: see formats; default: by its type
//	words     the words that it may be, the first for 0 or false, the second for 1 or true, and so on
//	min, max  the bounds of a number, of both or none, as in the file; max alone: of the items of a list
//	required  a hint for a key that is missing, or for an empty list
//	repeats   true: an item may be in the list again
//	inherits  the path of the key whose value is the default
//	example   the value in the reference, for items of lists that are empty by default
type field struct {
	key      string
	index    []int // for reflect.Value.FieldByIndex
	tag      reflect.StructTag
	words    []string
	format   format
	min, max float64
}

// value returns the field of a struct.
func (f *field) value(of reflect.Value) reflect.Value { return of.FieldByIndex(f.index) }

// position is a place in a file. Lines and columns count from 1; the zero value: unknown.
type position struct{ line, column int }

func positionOf(n *yaml.Node) position { return position{n.Line, n.Column} }

// decoder decodes one document, and collects its problems.
type decoder struct {
	problems []Problem
	more     int                 // problems after maxProblems
	set      map[string]position // where the value of each key and each item is; keys without a value are not in it
	visits   int
}

// isSet reports whether the file has a value for a key.
func (d *decoder) isSet(path string) bool {
	_, set := d.set[path]
	return set
}

// add reports a problem at the value of its path, or of the closest path around it that has one.
func (d *decoder) add(p Problem) {
	at, path := position{}, p.Path
	for {
		var known bool
		if at, known = d.set[path]; known || path == "" {
			break
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	d.addAt(at, p)
}

func (d *decoder) addAt(at position, p Problem) {
	if len(d.problems) >= maxProblems {
		d.more++
		return
	}
	p.Line, p.Column = at.line, at.column
	d.problems = append(d.problems, p)
}

// reject reports what is wrong with the value of a node.
func (d *decoder) reject(path string, n *yaml.Node, p *Problem) {
	d.addAt(positionOf(n), Problem{Path: path, What: shown(n) + ": " + p.What, Hint: p.Hint})
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

// decoded is a value with a form of its own in YAML.
type decoded interface {
	decode(d *decoder, path string, n *yaml.Node) bool
}

// decode stores the value of a node in v, and reports problems. It reports whether the node was of the right kind.
func (d *decoder) decode(path string, n *yaml.Node, v reflect.Value, f *field) bool {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if !d.visit(path, n) {
		return false
	}
	d.set[path] = positionOf(n)
	if to, is := reflect.TypeAssert[decoded](v.Addr()); is {
		return to.decode(d, path, n)
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch {
	case v.Kind() == reflect.Slice:
		return d.decodeList(path, n, v, f)
	case f.format.parse == nil:
		return d.decodeMapping(path, n, v)
	}
	return d.decodeScalar(path, n, v, f)
}

// visit reports whether a node may be decoded. Aliases could make the work grow without bounds.
func (d *decoder) visit(path string, n *yaml.Node) bool {
	before := d.visits
	d.visits += 1 + len(n.Content)/2
	if before <= maxVisits && d.visits > maxVisits {
		at := positionOf(n)
		d.problems = append(d.problems, Problem{Line: at.line, Column: at.column, Path: path, What: "too many aliases"}) // also to a full report
	}
	return d.visits <= maxVisits
}

func (d *decoder) decodeMapping(path string, n *yaml.Node, v reflect.Value) bool {
	if n.Kind != yaml.MappingNode {
		d.reject(path, n, problem("not a mapping", ""))
		return false
	}
	fields := fieldsOf(v.Type())
	for _, p := range d.pairs(path, n, 0) {
		child := childPath(path, p.key)
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == p.key })
		if i < 0 {
			d.addAt(p.at, Problem{Path: child, What: "unknown key", Hint: d.suggest(p.key, fields)})
			continue
		}
		to := fields[i].value(v)
		if p.again { // the first one counts
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
			d.add(Problem{Path: child, What: "missing", Hint: hint})
		}
	}
	return true
}

// pair is a key with its value.
type pair struct {
	key      string
	isString bool     // the key, in YAML 1.1 too
	again    bool     // the mapping has the key before
	at       position // of the key
	value    *yaml.Node
}

// pairs returns the keys of a mapping, then those that it merges and does not have itself. It reports keys that are not
// words and keys that are set twice.
func (d *decoder) pairs(path string, n *yaml.Node, depth int) []pair {
	var list, merged []pair
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		p := pair{key: key.Value, isString: isString(key), at: positionOf(n.Content[i]), value: value}
		child := childPath(path, p.key)
		switch first, again := lines[p.key]; {
		case key.Kind != yaml.ScalarNode || isNull(key):
			d.addAt(p.at, Problem{Path: path, What: "a key that is not a word"})
			continue
		case key.ShortTag() == "!!merge":
			merged = append(merged, d.mergedPairs(path, value, depth)...)
			continue
		case again:
			p.again = true
			d.addAt(p.at, Problem{Path: child, What: fmt.Sprintf("set twice, first on line %d", first)})
		default:
			lines[p.key] = p.at.line
		}
		list = append(list, p)
	}
	for _, p := range merged {
		if lines[p.key] == 0 {
			lines[p.key] = p.at.line
			list = append(list, p)
		}
	}
	return list
}

// mergedPairs returns the keys that a merge key (<<) takes from a mapping, or from a list of mappings.
func (d *decoder) mergedPairs(path string, n *yaml.Node, depth int) []pair {
	const deepest = 10
	from := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		from = n.Content
	}
	var list []pair
	for _, m := range from {
		if m.Kind == yaml.AliasNode {
			m = m.Alias
		}
		if m.Kind != yaml.MappingNode || depth == deepest {
			d.addAt(positionOf(m), Problem{Path: path, What: "cannot be merged: not a mapping, or nested too deeply"})
			break
		}
		if !d.visit(path, m) {
			break
		}
		list = append(list, d.pairs(path, m, depth+1)...)
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
		d.add(Problem{Path: path, What: "empty", Hint: hint})
		return true
	case f.max > 0 && f.format.parse == nil && len(n.Content) > int(f.max):
		d.add(Problem{Path: path, What: fmt.Sprintf("%d items: not more than %v", len(n.Content), f.max)})
		return true
	}
	list := reflect.MakeSlice(v.Type(), 0, len(n.Content))
	seen := map[any]string{}
	for i, item := range n.Content {
		child := fmt.Sprintf("%s[%d]", path, i)
		value := newItem(v.Type().Elem())
		ok := d.decode(child, item, value, f)
		if f.format.parse == nil { // a bad one as well: then those that follow have the same index as in the file
			list = reflect.Append(list, value)
			continue
		}
		if !ok {
			continue
		}
		if first, again := seen[value.Interface()]; again && f.tag.Get("repeats") == "" {
			d.reject(child, item, problem("already at "+first, ""))
			continue
		}
		seen[value.Interface()] = child
		list = reflect.Append(list, value)
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

// outOfBounds returns what is wrong with a number, of a field that still has its default or 0.
func (f *field) outOfBounds(got any, n *yaml.Node, v reflect.Value) *Problem {
	least, bounded := f.tag.Lookup("min")
	number := numberOf(reflect.ValueOf(got))
	switch {
	case !bounded || f.min <= number && number <= f.max:
		return nil
	case f.tag.Get("format") == "size" && isDigits(n.Value) && number > 0:
		return problem(fmt.Sprintf("not between %s and %s", least, f.tag.Get("max")), "a number without a unit is bytes")
	}
	p := problem(fmt.Sprintf("not between %s and %s", least, f.tag.Get("max")), "")
	if from := f.tag.Get("inherits"); from != "" {
		p.Hint = "the default is the value of " + from
	} else if standard := numberOf(v); standard != 0 && f.min <= standard && standard <= f.max {
		p.Hint = "the default is " + f.format.print(v)
	}
	return p
}

// numberOf returns a number of any type.
func numberOf(v reflect.Value) float64 {
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	case v.CanFloat():
		return v.Float()
	}
	return 0
}

// fieldsOf returns the keys of a struct in their order.
func fieldsOf(t reflect.Type) []field {
	if known, found := knownFields.Load(t); found {
		return known.([]field)
	}
	var fields []field
	named := formats()
	for _, s := range reflect.VisibleFields(t) {
		key := s.Tag.Get("yaml")
		if key == "" || len(s.Index) > 1 && !isInline(t, s.Index) {
			continue
		}
		f := field{key: key, index: s.Index, tag: s.Tag}
		if words := s.Tag.Get("words"); words != "" {
			f.words = strings.Split(words, ",")
		}
		f.format = formatOf(&f, s.Type, named)
		if least, found := s.Tag.Lookup("min"); found {
			f.min = f.bound(least)
		}
		if most, found := s.Tag.Lookup("max"); found {
			f.max = f.bound(most)
		}
		fields = append(fields, f)
	}
	knownFields.Store(t, fields)
	return fields
}

// knownFields holds what fieldsOf has returned.
var knownFields sync.Map //nolint:gochecknoglobals // it depends on the types alone

// isInline reports whether the keys of the struct with the field are among those of t.
func isInline(t reflect.Type, index []int) bool {
	return len(index) == 2 && t.Field(index[0]).Tag.Get("yaml") == ""
}

// bound returns a bound of numbers from a tag.
func (f *field) bound(text string) float64 {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	if isDigits(text) {
		n.Tag = "!!int"
	}
	parse := f.format.parse
	if parse == nil { // the items of a list
		parse = parseWhole
	}
	v, p := parse(n)
	if p != nil {
		panic(fmt.Sprintf("the bound %s of %s: %s", text, f.key, p.What))
	}
	return numberOf(reflect.ValueOf(v))
}

// suggest returns the hint for an unknown key.
func (d *decoder) suggest(key string, fields []field) string {
	if len(d.problems) >= maxProblems { // it would not be shown
		return ""
	}
	keys := make([]string, len(fields))
	for i := range fields {
		keys[i] = fields[i].key
	}
	return didYouMean(key, keys)
}

func isLetterOrDigit(c rune) bool {
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')
}

// childPath returns the path of a key in a mapping.
func childPath(path, key string) string {
	odd := func(c rune) bool { return c != '_' && c != '-' && !isLetterOrDigit(c) }
	switch {
	case key == "" || len(key) > maxShown || strings.ContainsFunc(key, odd):
		return path + "[" + quote(key) + "]"
	case path == "":
		return key
	}
	return path + "." + key
}
