// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A value is one JSON value whose members kept their order.
type value struct {
	text  string // of a scalar
	names []string
	items []value // an array's, or a member for each name
	kind  json.Delim
}

// The kinds of value.
const (
	scalar json.Delim = 0
	object json.Delim = '{'
	array  json.Delim = '['
)

// parseValue reads one JSON value. It goes as deep as the text does, which is for
// the page's own author to bound.
func parseValue(data []byte) (value, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := readValue(d)
	if err != nil {
		return value{}, fmt.Errorf("reading the page: %w", err)
	}
	return v, nil
}

func readValue(d *json.Decoder) (value, error) {
	token, err := d.Token()
	if err != nil {
		return value{}, err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		if token == nil {
			return value{}, nil
		}
		return value{text: printable(fmt.Sprint(token))}, nil
	}
	v := value{kind: delim}
	for d.More() {
		if v.kind == object {
			name, err := d.Token()
			if err != nil {
				return value{}, err
			}
			v.names = append(v.names, printable(fmt.Sprint(name)))
		}
		item, err := readValue(d)
		if err != nil {
			return value{}, err
		}
		v.items = append(v.items, item)
	}
	_, err = d.Token() // the closing delimiter
	return v, err
}

// empty reports whether there is nothing to show.
func (v value) empty() bool { return v.text == "" && len(v.items) == 0 }

// flat reports whether v fits on one line beside its name: a scalar, a list of
// scalars, or nothing.
func (v value) flat() bool {
	switch {
	case v.empty(), v.kind == scalar:
		return true
	case v.kind == object:
		return false
	}
	return v.allItems(scalar)
}

// allItems reports whether all items are of a kind.
func (v value) allItems(kind json.Delim) bool {
	return !slices.ContainsFunc(v.items, func(item value) bool { return item.kind != kind })
}

// table reports whether v is a list of objects.
func (v value) table() bool { return v.kind == array && len(v.items) > 0 && v.allItems(object) }

// inline is v on one line, except for the line breaks of a scalar.
func (v value) inline() string {
	if v.empty() {
		return "-"
	}
	if v.kind == scalar {
		return v.text
	}
	parts := make([]string, len(v.items))
	for i, item := range v.items {
		parts[i] = item.inline()
		if v.kind == object {
			parts[i] = v.names[i] + "=" + parts[i]
		}
	}
	if v.kind == object {
		return strings.Join(parts, " ")
	}
	return strings.Join(parts, ", ")
}

// member is the member of that name, an empty value if there is none.
func (v value) member(name string) value {
	if i := slices.Index(v.names, name); i >= 0 {
		return v.items[i]
	}
	return value{}
}
