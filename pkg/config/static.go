// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Hosts are names with addresses that the program answers itself.
type Hosts struct {
	Files     []string      // in the format of hosts(5), followed; unique, clean, and absolute unless Parse read relative ones; default empty
	Names     []Host        // in the order of their names, each once; default empty
	TTL       time.Duration // of the answers, whole seconds, 0..1h; default 30s
	NoReverse bool          // the addresses have no names; default false: a PTR record leads to each name
}

// Host is a name with its addresses.
type Host struct {
	Name      string       // lower-case and absolute, not the root
	Addresses []netip.Addr // unique, never empty, in the order of the file; of both families mixed
}

// hostNames reads a mapping from names to lists of addresses.
func hostNames(dst *[]Host) func(node) {
	return func(n node) {
		var values map[string]json.RawMessage
		if json.Unmarshal(n.text, &values) != nil {
			n.reject("not a mapping", "write it like {db.example: [192.0.2.1]}")
			return
		}
		var list []Host
		seen := map[string]string{}
		for _, key := range slices.Sorted(maps.Keys(values)) {
			child := node{path: n.child(key), text: values[key], report: n.report}
			name, f := hostKey(key)
			if f.what != "" {
				n.report.add(Problem{Path: child.path, What: quote(key) + ": " + f.what, Hint: f.hint})
				continue
			}
			if first, again := seen[name]; again {
				n.report.add(Problem{Path: child.path, What: "the name is already at " + first})
				continue
			}
			seen[name] = child.path
			if addresses, ok := child.hostAddresses(); ok {
				list = append(list, Host{Name: name, Addresses: addresses})
			}
		}
		slices.SortFunc(list, func(a, b Host) int { return strings.Compare(a.Name, b.Name) })
		*dst = list
	}
}

// hostKey returns the name of a host. A key may have been another word: the reader of YAML knows y, on, no and more as
// true and false, and writes numbers anew.
func hostKey(key string) (string, flaw) {
	isNumber := json.Valid([]byte(key)) && key[0] <= '9' && key[0] != '"'
	if key == "true" || key == "false" || isNumber {
		return "", flaw{what: "not known to be a name: y, no, 010 and their like are values in YAML", hint: "write the name with a dot at its end"}
	}
	return parseName(key)
}

// hostAddresses returns the value of n when it is a list of addresses that a name can have, and reports anything else.
func (n node) hostAddresses() ([]netip.Addr, bool) {
	if n.isNull() {
		n.reject("not a list", "name at least one address")
		return nil, false
	}
	items, ok := n.items()
	if !ok {
		return nil, false
	}
	list := unique(items, node.hostAddress)
	if len(items) == 0 {
		n.report.add(Problem{Path: n.path, What: "empty", Hint: "name at least one address"})
	}
	return list, len(list) > 0
}

// hostAddress takes more than the address of one host: 0.0.0.0 is how lists of hosts say nowhere.
func (n node) hostAddress() (netip.Addr, bool) {
	a, ok := n.withoutPort("leave out the port: a record has none")
	switch {
	case !ok:
		return a, false
	case a.Zone() != "":
		n.reject("an address with a zone, which no record has", "write "+a.WithZone("").String())
		return a, false
	case a.Is4In6():
		n.reject("an IPv4 address in IPv6 form", "write the address as "+a.Unmap().String())
		return a, false
	}
	return a, true
}

// filePath returns the value of n when it can be the path of a file, cleaned, and reports anything else.
func (n node) filePath() (string, bool) {
	text, ok := n.stringOnly()
	if !ok {
		return "", false
	}
	if text == "" || strings.ContainsRune(text, 0) || strings.HasSuffix(text, "/") {
		n.reject("not the path of a file", "")
		return "", false
	}
	return filepath.Clean(text), true
}

// parseName returns the name in lower case (RFC 4343) with a dot at its end. It is not the root.
func parseName(text string) (string, flaw) {
	const what = "not a name"
	switch {
	case strings.Trim(text, ".") == "":
		return "", flaw{what: what}
	case strings.Contains(text, "*"):
		return "", flaw{what: what + ": holds '*'", hint: "answer the names below a zone by one of the templates"}
	}
	name, f := parseZone(text)
	f.what = strings.Replace(f.what, "not a zone", what, 1)
	return name, f
}
