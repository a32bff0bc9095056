// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/labels"
)

// namespace returns the value of n when it is the name of a namespace, and reports anything else.
func (n node) namespace() (string, bool) {
	text, ok := n.stringOnly()
	if !ok {
		return "", false
	}
	lower := strings.ToLower(text)
	f := flaw{what: "not the name of a namespace"}
	switch {
	case isLabel(text):
		return text, true
	case text == "*", text == "":
		f.hint = "leave the list empty for all namespaces"
	case isLabel(lower):
		f.hint = "write " + lower
	default:
		f.hint = "lower-case letters, digits and -, a letter or a digit at both ends, 63 bytes at most"
	}
	return "", n.rejectFlaw(f)
}

// isLabel reports whether text is a DNS label as the API takes it for a name: RFC 1123, in lower case.
func isLabel(text string) bool {
	return isBounded(text) && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// isBounded reports whether text is as long as a label may be, with a letter or a digit at both ends.
func isBounded(text string) bool {
	return text != "" && len(text) <= maxLabel &&
		isLetterOrDigit(rune(text[0])) && isLetterOrDigit(rune(text[len(text)-1]))
}

// topologyZone reads the value of a node's label topology.kubernetes.io/zone. The empty string is one as well.
func topologyZone(dst *string) func(node) {
	return func(n node) {
		text, ok := n.stringOnly()
		odd := func(c rune) bool { return !strings.ContainsRune("-_.", c) && !isLetterOrDigit(c) }
		switch {
		case !ok:
		case text != "" && (!isBounded(text) || strings.ContainsFunc(text, odd)):
			n.reject("not a topology zone", "letters, digits, -, _ and ., a letter or a digit at both ends, 63 bytes at most")
		default:
			*dst = text
		}
	}
}

// labelSelector reads a label selector with the code that the API server reads it
// with: a grammar of our own could pass what the server refuses in every request.
func labelSelector(dst *string) func(node) {
	return func(n node) {
		text, ok := n.stringOnly()
		if !ok {
			return
		}
		if _, err := labels.Parse(text); err != nil {
			n.reject("not a label selector"+selectorDetail(err), "write it like app=web, tier!=cache or env in (a, b)")
			return
		}
		*dst = text
	}
}

// selectorDetail is what an error of the selector's reader says, without what
// leads to it and without the expressions and examples that follow. What it says
// repeats the text, so it is left out when it is long or no plain text.
func selectorDetail(err error) string {
	what := strings.TrimPrefix(err.Error(), "unable to parse requirement: ")
	if _, value, found := strings.Cut(what, "Invalid value: "); found {
		what = value
	}
	for _, end := range []string{" (e.g.", ", regex used"} {
		what, _, _ = strings.Cut(what, end)
	}
	if len(what) > 4*maxShown || strings.ContainsFunc(what, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return ""
	}
	return ": " + what
}
