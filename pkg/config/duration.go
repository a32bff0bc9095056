// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
	"time"
)

// duration reads a time span within a range.
func duration(dst *time.Duration, least, most time.Duration) func(node) {
	return func(n node) {
		if v, ok := n.duration(least, most); ok {
			*dst = v
		}
	}
}

// ttl reads a duration that a DNS message can hold: whole seconds.
func ttl(dst *time.Duration, least, most time.Duration) func(node) {
	return func(n node) {
		v, ok := n.duration(least, most)
		switch {
		case !ok:
		case v%time.Second != 0:
			n.reject("not whole seconds", "")
		default:
			*dst = v
		}
	}
}

// duration returns the value of n when it is a time span within a range, and reports anything else.
func (n node) duration(least, most time.Duration) (time.Duration, bool) {
	text, ok := n.str()
	if !ok {
		text = string(n.text)
	}
	hint := "write it like 500ms, 5s, 1m30s or 24h"
	naked := isDigits(strings.TrimLeft(text, "+-")) // which Go lets pass for a zero
	if naked && len(text) < 10 {
		hint = "write it with a unit: " + text + "s"
	}
	v, err := time.ParseDuration(text)
	switch {
	case err != nil || naked:
		n.reject("not a duration", hint)
	case v < least || v > most:
		n.reject(fmt.Sprintf("not between %s and %s", formatDuration(least), formatDuration(most)), "")
	default:
		return v, true
	}
	return 0, false
}

// formatDuration spells d without the zeros that Go puts after hours and minutes.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
