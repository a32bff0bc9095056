// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
)

// Sizes of names, RFC 1035 section 2.3.4.
const (
	maxLabel = 63
	maxName  = 255 // with the length byte of each label and the root's
)

// maxClusterDomain leaves room for the names that the zone has of its own, of which hostmaster is the longest.
const maxClusterDomain = maxName - len("hostmaster") - 1

// zone reads a domain name.
func zone(dst *string) func(node) {
	return func(n node) {
		text, ok := n.stringOnly()
		if !ok {
			return
		}
		name, f := parseZone(text)
		if n.rejectFlaw(f) {
			*dst = name
		}
	}
}

// clusterDomain reads a domain name that is not the root.
func clusterDomain(dst *string) func(node) {
	return func(n node) {
		text, ok := n.stringOnly()
		if !ok {
			return
		}
		name, f := parseZone(text)
		if name == "." || isRoot(text) {
			f = flaw{what: "not the name of a domain", hint: "write the domain of the cluster, like cluster.local"}
		}
		if len(name)+1 > maxClusterDomain {
			f = flaw{what: fmt.Sprintf("longer than %d bytes, which leaves no room for names in it", maxClusterDomain)}
		}
		if n.rejectFlaw(f) {
			*dst = name
		}
	}
}

// parseZone returns the name in lower case (RFC 4343) with a dot at its end.
func parseZone(text string) (string, flaw) {
	switch {
	case text == ".":
		return text, flaw{}
	case isRoot(text):
		return "", flaw{what: "not a zone", hint: `write "." for the root`}
	case strings.HasPrefix(text, "*."):
		return "", flaw{what: "not a zone", hint: fmt.Sprintf("a zone holds all names below it: write %s", quote(text[2:]))}
	case strings.HasPrefix(text, ".") && text[1] != '.':
		return "", flaw{what: "not a zone: an empty label", hint: "write " + quote(text[1:])}
	}
	name := strings.TrimSuffix(text, ".")
	if len(name)+2 > maxName {
		return "", flaw{what: fmt.Sprintf("not a zone: longer than %d bytes", maxName)}
	}
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case label == "":
			return "", flaw{what: "not a zone: an empty label", hint: "write one dot between labels"}
		case len(label) > maxLabel:
			return "", flaw{what: fmt.Sprintf("not a zone: a label longer than %d bytes", maxLabel)}
		}
	}
	for _, c := range name {
		if c >= 0x80 {
			return "", flaw{what: fmt.Sprintf("not a zone: holds %q", c), hint: "write an international name in its xn-- form"}
		}
		if !strings.ContainsRune(".-_/", c) && !isLetterOrDigit(c) {
			return "", flaw{what: fmt.Sprintf("not a zone: holds %q", c), hint: "letters, digits, -, _ and / make a label"}
		}
	}
	return strings.ToLower(name) + ".", flaw{}
}

// isRoot reports whether a text means the root but is not its name ".", or is empty.
func isRoot(text string) bool { return text != "." && strings.Trim(text, ".*") == "" }

func isLetterOrDigit(c rune) bool {
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')
}
