// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/nodecache/node-cache/pkg/plain"
)

// A Verdict is the outcome of one check.
type Verdict uint8

// The verdicts.
const (
	OK Verdict = iota
	Unknown
	Warn
	Fail // do not install before it is changed
)

// String returns "ok", "unknown", "warn" or "fail".
func (v Verdict) String() string { return [...]string{"ok", "unknown", "warn", "fail"}[v] }

// MarshalText returns String.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// A Finding is the result of one check.
type Finding struct {
	Check   string  `json:"check"` // the subject, such as "data plane"
	Verdict Verdict `json:"verdict"`
	What    string  `json:"what"`
	Hint    string  `json:"hint,omitempty"` // what to do; set for all but OK
}

// A Choice is how to install node-cache.
type Choice struct {
	Variant  string   `json:"variant"` // a folder of daemonset, such as overlays/transparent; empty: none
	OptIn    bool     `json:"optIn"`   // with component opt-in
	Why      string   `json:"why"`
	Commands []string `json:"commands"` // to type, and comments that begin with #
}

// A Report has all findings, in reading order, and the choice.
type Report struct {
	Findings []Finding `json:"findings"`
	Choice   Choice    `json:"choice"`
	NotKnown []string  `json:"notKnown"` // what the API server cannot say
}

// Failed reports whether any check failed.
func (r *Report) Failed() bool { return r.count(Fail) > 0 }

func (r *Report) count(v Verdict) int {
	n := 0
	for _, f := range r.Findings {
		if f.Verdict == v {
			n++
		}
	}
	return n
}

// Text returns r for humans. Texts of the cluster's objects have no control characters in it.
func (r *Report) Text() string {
	width := 0
	for _, f := range r.Findings {
		width = max(width, utf8.RuneCountInString(f.Check))
	}
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-7s  %-*s  %s\n", f.Verdict, width, f.Check, plain.Error(f.What))
		if f.Hint != "" {
			fmt.Fprintf(&b, "%*s  hint: %s\n", 7+2+width, "", plain.Error(f.Hint))
		}
	}
	fmt.Fprintf(&b, "\n%d ok, %d unknown, %d warnings, %d failed\n", r.count(OK), r.count(Unknown), r.count(Warn), r.count(Fail))
	switch {
	case r.Choice.Variant == "":
		b.WriteString("\nno variant: ")
	case r.Choice.OptIn:
		fmt.Fprintf(&b, "\nvariant %s with component opt-in: ", r.Choice.Variant)
	default:
		fmt.Fprintf(&b, "\nvariant %s: ", r.Choice.Variant)
	}
	fmt.Fprintf(&b, "%s\n", plain.Error(r.Choice.Why))
	for _, c := range r.Choice.Commands {
		if !strings.HasPrefix(c, "#") {
			c = "$ " + c
		}
		fmt.Fprintf(&b, "  %s\n", plain.Error(c))
	}
	b.WriteString("\nnot known from here:\n")
	for _, what := range r.NotKnown {
		fmt.Fprintf(&b, "  - %s\n", plain.Error(what))
	}
	return b.String()
}
