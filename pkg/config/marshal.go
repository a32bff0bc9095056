// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Marshal writes every key of c, in the order of the reference, so that [Parse]
// reads c again, in any role that could have given c. A Config that Parse could
// not have returned is an error.
func Marshal(c Config) ([]byte, error) {
	var w writer
	w.config(&c)
	return written(&w, &c, Agent) // no key is absent, and an agent may be all that a resolver may
}

// MarshalChanges is [Marshal] without the keys that have the value of [Default] in a role. A key for whose path, such as
// "cache.size" or "forward[0]", note has a text that is not empty gets it as a comment of one line; a nil note has none.
func MarshalChanges(c Config, role Role, note func(path string) string) ([]byte, error) {
	w := writer{usual: usual(&c, role), note: note}
	standard := Default(role)
	for i := range standard.Forward {
		standard.Forward[i].MinTTL, standard.Forward[i].MaxTTL, standard.Forward[i].NegativeTTL = c.Cache.MinTTL, c.Cache.MaxTTL, c.Cache.NegativeTTL
	}
	w.noForward = reflect.DeepEqual(c.Forward, standard.Forward)
	w.config(&c)
	return written(&w, &c, role)
}

// usual has the values that the keys of c would have if they were absent. Those that cannot be are left out.
func usual(c *Config, role Role) map[string]string {
	standard := Default(role)
	item := DefaultRoute("")
	item.MinTTL, item.MaxTTL, item.NegativeTTL = c.Cache.MinTTL, c.Cache.MaxTTL, c.Cache.NegativeTTL
	standard.Forward = []Route{item}
	standard.Templates = []Template{{}}
	standard.Probes = []Probe{DefaultProbe("", "")}
	w := writer{written: map[string]string{}}
	w.config(&standard)
	for _, key := range []string{"apiVersion", "kind", "forward[].to", "probes[].name"} {
		delete(w.written, key)
	}
	w.written["templates"], w.written["probes"] = "[]", "[]"
	return w.written
}

// written returns the text when it is read as c again.
func written(w *writer, c *Config, role Role) ([]byte, error) {
	text := []byte(w.String())
	again, err := Parse(text, role)
	if err != nil {
		return nil, fmt.Errorf("writing the configuration: %w", err)
	}
	if !reflect.DeepEqual(again, *c) {
		return nil, errors.New("writing the configuration: it holds values that no file can give")
	}
	return text, nil
}

// text quotes a string. The escapes of Go are escapes of YAML as well.
func text(s string) string { return strconv.QuoteToASCII(s) }

// onOffText quotes the word, which YAML 1.1 would read as a boolean.
func onOffText(on bool) string { return text(map[bool]string{false: "off", true: "on"}[on]) }

func flowList[T fmt.Stringer](values []T) string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = v.String()
	}
	return flowTexts(list)
}

func flowTexts(values []string) string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = text(v)
	}
	return "[" + strings.Join(list, ", ") + "]"
}
