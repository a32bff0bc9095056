// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A value is one JSON value whose members kept their order.
type value struct {
	text  string   // text of a scalar; empty: null or ""
	names []string // names of an object's members
	items []value  // items of an array, or a value for each of names
	kind  json.Delim
}

// The kinds of value.
const (
	scalar json.Delim = 0
	object json.Delim = '{'
	array  json.Delim = '['
)

// parseValue reads one JSON value. Its depth is not bounded, so data must be from this program.
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
		name := ""
		if v.kind == object {
			token, err := d.Token()
			if err != nil {
				return value{}, err
			}
			name = printable(fmt.Sprint(token))
		}
		item, err := readValue(d)
		if err != nil {
			return value{}, err
		}
		if v.kind == object {
			name, item.text = withUnit(name, item.text)
			v.names = append(v.names, name)
		}
		v.items = append(v.items, item)
	}
	_, err = d.Token() // the closing delimiter
	return v, err
}

// withUnit moves the unit from the name to the number: ageSeconds 5 becomes age 5s.
func withUnit(name, text string) (string, string) {
	number, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return name, text
	}
	switch short, inSeconds := strings.CutSuffix(name, "Seconds"); {
	case inSeconds:
		return short, time.Duration(number * float64(time.Second)).Round(time.Microsecond).String()
	case strings.HasSuffix(name, "Ratio"):
		return name, fmt.Sprintf("%.1f %%", 100*number)
	case name == "bytes", strings.HasSuffix(name, "Bytes"):
		return strings.TrimSuffix(name, "Bytes"), size(number)
	}
	return name, text
}

// size is a number of bytes with a unit that leaves less than 1024.
func size(number float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for number >= 1024 && len(units) > 1 {
		number, units = number/1024, units[1:]
	}
	return strings.TrimSuffix(strconv.FormatFloat(number, 'f', 1, 64), ".0") + " " + units[0]
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
