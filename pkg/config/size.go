// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// unit is a suffix of a size.
type unit struct {
	suffix string
	bytes  int64
}

// units lists the suffixes, the larger binary ones first.
func units() []unit {
	return []unit{
		{"Ti", 1 << 40},
		{"Gi", 1 << 30},
		{"Mi", 1 << 20},
		{"Ki", 1 << 10},
		{"T", 1e12},
		{"G", 1e9},
		{"M", 1e6},
		{"k", 1e3},
		{"", 1},
	}
}

// size reads a number of bytes within a range.
func size(dst *int64, least, most int64) func(node) {
	return func(n node) {
		text, ok := n.str()
		if !ok {
			text = string(n.text)
		}
		v, f := parseSize(text)
		if f == (flaw{}) && (v < least || v > most) {
			f.what = fmt.Sprintf("not between %s and %s", formatSize(least), formatSize(most))
			if v > 0 && isDigits(text) {
				f.hint = "a number without a unit is bytes"
			}
		}
		if n.rejectFlaw(f) {
			*dst = v
		}
	}
}

// parseSize reads digits and a unit, such as 64Mi. A size too large to count is the largest number.
func parseSize(text string) (int64, flaw) {
	digits := strings.TrimRight(text, "KMGTkmgtiBb ")
	if !isDigits(digits) || len(digits) > 20 {
		return 0, flaw{what: "not a size", hint: "write a whole number with Ki, Mi, Gi, k, M, G or no unit"}
	}
	for _, u := range units() {
		if text[len(digits):] != u.suffix {
			continue
		}
		v, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || v > math.MaxInt64/u.bytes {
			return math.MaxInt64, flaw{}
		}
		return v * u.bytes, flaw{}
	}
	return 0, flaw{what: "not a size", hint: "write " + digits + nearestUnit(text[len(digits):])}
}

// nearestUnit spells a unit of others in ours: MB is M, everything else with an m is Mi.
func nearestUnit(typed string) string {
	typed = strings.ToLower(strings.TrimSpace(typed))
	for _, u := range units() {
		letter := strings.ToLower(strings.TrimSuffix(u.suffix, "i"))
		binary := strings.HasSuffix(u.suffix, "i")
		if letter != "" && strings.HasPrefix(typed, letter) && binary != (typed == letter+"b") {
			return u.suffix
		}
	}
	return ""
}

func isDigits(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }

// formatSize spells a size with the largest binary unit that divides it.
func formatSize(bytes int64) string {
	for _, u := range units() {
		if strings.HasSuffix(u.suffix, "i") && bytes >= u.bytes && bytes%u.bytes == 0 {
			return strconv.FormatInt(bytes/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(bytes, 10)
}
