// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// stringOnly returns the value of n when it is a string, and reports anything else.
func (n node) stringOnly() (string, bool) {
	s, ok := n.str()
	if !ok {
		hint := ""
		switch n.text[0] {
		case 't', 'f':
			hint = "put it in quotes: YAML takes yes, no, on and off for booleans"
		default:
			if n.isScalar() {
				hint = "put it in quotes"
			}
		}
		n.reject("not a string", hint)
	}
	return s, ok
}

// exactly reads a string that has one value only.
func exactly(want string) func(node) {
	return func(n node) {
		if s, ok := n.str(); !ok || s != want {
			n.reject("not "+want, "the key may be left out")
		}
	}
}

// whole reads an integer within a range.
func whole[T int | uint16](dst *T, least, most int64) func(node) {
	return func(n node) {
		v, err := strconv.ParseInt(string(n.text), 10, 64)
		switch {
		case err == nil && v >= least && v <= most:
			*dst = T(v)
		case err == nil, errors.Is(err, strconv.ErrRange):
			n.reject(fmt.Sprintf("not between %d and %d", least, most), "")
		default:
			n.reject("not a whole number", unquoteHint(n))
		}
	}
}

// unquoteHint is the hint for a number that was written as a string.
func unquoteHint(n node) string {
	s, ok := n.str()
	if _, err := strconv.ParseInt(s, 10, 64); !ok || err != nil {
		return ""
	}
	return "write " + s + ", without the quotes"
}

// choice reads one of a few words.
func choice(dst *string, words ...string) func(node) {
	return func(n node) {
		s, ok := n.str()
		if !ok || !slices.Contains(words, s) {
			n.reject("not "+orList(words), didYouMean(s, words))
			return
		}
		*dst = s
	}
}

// orList joins words as a sentence does.
func orList(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// boolean reads true or false.
func boolean(dst *bool) func(node) {
	return func(n node) {
		s, _ := n.str()
		switch {
		case string(n.text) == "true", string(n.text) == "false":
			*dst = string(n.text) == "true"
		case s == "true", s == "false":
			n.reject("not true or false", "write "+s+", without the quotes")
		default:
			n.reject("not true or false", "")
		}
	}
}

// onOff reads on, for which it stores the given value, or off, for the opposite. YAML 1.1 reads both as booleans.
func onOff(dst *bool, on bool) func(node) {
	return func(n node) {
		switch string(n.text) {
		case "true", `"on"`:
			*dst = on
		case "false", `"off"`:
			*dst = !on
		default:
			n.reject("not on or off", "")
		}
	}
}

func clientSubnet(dst *bool) func(node) {
	return func(n node) {
		word := ""
		choice(&word, "remove", "pass")(n)
		*dst = word == "pass"
	}
}

func endpointNames(dst *bool) func(node) {
	return func(n node) {
		word := ""
		choice(&word, "address", "pod")(n)
		*dst = word == "pod"
	}
}

func level(dst *slog.Level) func(node) {
	return func(n node) {
		word := "info"
		choice(&word, "debug", "info", "warn", "error")(n)
		*dst = map[string]slog.Level{
			"debug": slog.LevelDebug,
			"info":  slog.LevelInfo,
			"warn":  slog.LevelWarn,
			"error": slog.LevelError,
		}[word]
	}
}

// characterString reads the text of a TXT record with one string (RFC 1035 section 3.3).
func characterString(dst *string) func(node) {
	return func(n node) {
		s, ok := n.stringOnly()
		switch {
		case !ok:
		case len(s) > 255:
			n.reject("longer than 255 bytes", "")
		case strings.ContainsFunc(s, unicode.IsControl):
			n.reject("holds a control character", "")
		default:
			*dst = s
		}
	}
}
