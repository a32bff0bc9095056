// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// Marshal writes every key of c, in the order of the reference, so that [Parse]
// reads c again, in any role that could have given c. A Config that Parse could
// not have returned is an error.
func Marshal(c Config) ([]byte, error) {
	return checkWritten(writeConfig(&c), &c, Agent) // the role has no effect: no key is absent, and what is valid for a resolver is valid for an agent
}

// MarshalChanges is [Marshal] without the keys that have the value of [Default] in a role. note returns the comment, of one
// line, for the key at a path such as "cache.size" or "forward[0]"; empty, or note is nil: no comment.
func MarshalChanges(c Config, role Role, note func(path string) string) ([]byte, error) {
	standard := Default(role)
	for i := range standard.Forward {
		standard.Forward[i].MinTTL, standard.Forward[i].MaxTTL, standard.Forward[i].NegativeTTL = c.Cache.MinTTL, c.Cache.MaxTTL, c.Cache.NegativeTTL
	}
	w := writer{changes: true, cache: &c.Cache, note: note}
	w.mapping(reflect.ValueOf(document{apiVersion, kind, c}), reflect.ValueOf(document{Config: standard}), 0, "")
	return checkWritten(w.Bytes(), &c, role)
}

// Normalize returns c as a file would give it in a role: names in lower case and absolute, lists in order. The error is
// an [*Error] with the problems of what no file could give; there is no configuration beside it.
func Normalize(c Config, role Role) (Config, error) {
	return parseWritten(writeConfig(&c), role)
}

// parseWritten is Parse for a text that this program has written. Its problems have no lines, which would mean nothing to the user.
func parseWritten(text []byte, role Role) (Config, error) {
	c, err := Parse(text, role)
	if bad := (*Error)(nil); errors.As(err, &bad) {
		for i := range bad.Problems {
			bad.Problems[i].Line, bad.Problems[i].Column = 0, 0
		}
	}
	return c, err
}

// writeConfig writes every key of c.
func writeConfig(c *Config) []byte {
	var w writer
	w.mapping(reflect.ValueOf(document{apiVersion, kind, *c}), reflect.Value{}, 0, "")
	return w.Bytes()
}

// checkWritten returns text, or an error if Parse does not read it as c again.
func checkWritten(text []byte, c *Config, role Role) ([]byte, error) {
	again, err := parseWritten(text, role)
	if err != nil {
		return nil, fmt.Errorf("writing the configuration: %w", err)
	}
	if !reflect.DeepEqual(again, *c) {
		return nil, errors.New("writing the configuration: it holds values that no file can give")
	}
	return text, nil
}

// writer writes a document.
type writer struct {
	bytes.Buffer

	changes bool                     // leave out the keys that have their defaults
	cache   *Cache                   // the section from which routes inherit their TTLs
	isItem  bool                     // it writes an item of a list
	note    func(path string) string // the comment for a path such as forward[0].to; nil: there are none
}

// mapping writes the keys of a struct. With changes it leaves out those with the value in standard, unless that is invalid.
func (w *writer) mapping(v, standard reflect.Value, indent int, path string) {
	for _, f := range fieldsOf(v.Type()) {
		value, byDefault := f.value(v), reflect.Value{}
		if standard.IsValid() {
			byDefault = f.value(standard)
		}
		left := f.tag.Get("omit") != "" && value.IsZero()
		if left || w.changes && byDefault.IsValid() && reflect.DeepEqual(value.Interface(), byDefault.Interface()) {
			continue
		}
		w.key(&f, value, byDefault, indent, childPath(path, f.key))
	}
}

// key writes a key with its value.
func (w *writer) key(f *field, v, standard reflect.Value, indent int, path string) {
	margin := strings.Repeat(" ", indent)
	line := func(value string) {
		if value != "" {
			value = " " + value
		}
		w.WriteString(margin + f.key + ":" + value + "\n")
	}
	spelled, isSpelled := spelledValue(v)
	isScalar := f.format.parse != nil || isSpelled
	if isScalar {
		w.remark(path, margin)
	}
	switch hosts, isTable := reflect.TypeAssert[map[string][]netip.Addr](v); {
	case isTable && len(hosts) == 0:
		line("{}")
	case isTable:
		line("")
		for _, name := range slices.Sorted(maps.Keys(hosts)) {
			w.WriteString(margin + "  " + quoteYAML(name) + ": " + flowList(hosts[name]) + "\n")
		}
	case isScalar && v.Kind() == reflect.Slice:
		items := make([]string, v.Len())
		for i := range items {
			items[i] = f.format.print(v.Index(i))
		}
		line("[" + strings.Join(items, ", ") + "]")
	case isSpelled:
		line(spelled.String())
	case isScalar:
		line(f.format.print(v))
	case v.Kind() != reflect.Slice:
		line("")
		w.mapping(v, standard, indent+2, path)
	case v.Len() == 0:
		line("[]")
	default:
		line("")
		for i := range v.Len() {
			w.item(v.Index(i), indent, fmt.Sprintf("%s[%d]", path, i))
		}
	}
}

// spelledValue returns a value that is a word or a list. It is false for other values.
func spelledValue(v reflect.Value) (fmt.Stringer, bool) {
	switch v.Type() {
	case reflect.TypeFor[Fallback](), reflect.TypeFor[BlockAnswer]():
		return reflect.TypeAssert[fmt.Stringer](v)
	}
	return nil, false
}

// item writes an item of a list of mappings.
func (w *writer) item(v reflect.Value, indent int, path string) {
	w.remark(path, strings.Repeat(" ", indent))
	standard := newItem(v.Type())
	if r, is := reflect.TypeAssert[*Route](standard.Addr()); is && w.changes {
		r.MinTTL, r.MaxTTL, r.NegativeTTL = w.cache.MinTTL, w.cache.MaxTTL, w.cache.NegativeTTL
	}
	if v.Type() == reflect.TypeFor[Rewrite]() {
		standard = reflect.Value{} // no defaults to leave out: to must be written even if it is empty
	}
	part := writer{changes: w.changes, cache: w.cache, note: w.note, isItem: true}
	part.mapping(v, standard, indent+2, path)
	text := part.String()
	if text == "" {
		text = strings.Repeat(" ", indent+2) + "{}\n"
	}
	w.WriteString(text[:indent] + "- " + text[indent+2:])
}

// remark writes the comment of a path, if it has one.
func (w *writer) remark(path, margin string) {
	if w.note == nil || w.isItem && w.Len() == 0 { // the first key of an item has no comment: item has written the item's above it
		return
	}
	if text := w.note(path); text != "" {
		w.WriteString(margin + "# " + text + "\n")
	}
}
