// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// A Verdict is the outcome of one check.
type Verdict uint8

// The verdicts.
const (
	OK   Verdict = iota
	Skip         // it could not be checked, or need not be
	Warn
	Fail
)

// String returns "ok", "skip", "warn" or "fail".
func (v Verdict) String() string { return [...]string{"ok", "skip", "warn", "fail"}[v] }

// MarshalText returns String.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// A Line is one check.
type Line struct {
	Part    string  `json:"part"`  // the section: "This node", "Asked from a pod", …
	Check   string  `json:"check"` // the subject, such as "lease 169.254.20.10"
	Verdict Verdict `json:"verdict"`
	What    string  `json:"what"`          // the observation
	Fix     string  `json:"fix,omitempty"` // what to do; set for Warn and Fail, mostly for Skip
}

// A Report has all checks, in reading order.
type Report struct {
	Title string `json:"title"`
	Lines []Line `json:"lines"`
}

// Failed reports whether any check failed.
func (r Report) Failed() bool { return r.count(Fail) > 0 }

func (r Report) count(v Verdict) int {
	n := 0
	for _, l := range r.Lines {
		if l.Verdict == v {
			n++
		}
	}
	return n
}

// JSON writes r as one object, indented.
func (r Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Report
		Summary map[string]int `json:"summary"`
	}{r, map[string]int{"ok": r.count(OK), "skip": r.count(Skip), "warn": r.count(Warn), "fail": r.count(Fail)}})
}

// Text writes r for humans, with colors on a terminal. The last of several adjacent lines
// with the same fix shows it.
func (r Report) Text(w io.Writer, colours bool) error {
	width := 0
	for _, l := range r.Lines {
		width = max(width, utf8.RuneCountInString(l.Check))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.Title)
	for i, l := range r.Lines {
		if i == 0 || l.Part != r.Lines[i-1].Part {
			fmt.Fprintf(&b, "\n%s\n", l.Part)
		}
		fmt.Fprintf(&b, "  %s  %-*s  %s\n", paint(fmt.Sprintf("%-4s", l.Verdict), l.Verdict, colours), width, l.Check, l.What)
		again := i+1 < len(r.Lines) && r.Lines[i+1].Part == l.Part && r.Lines[i+1].Fix == l.Fix
		if l.Fix != "" && !again {
			fmt.Fprintf(&b, "  %*s  %s\n", 4+2+width, "", "fix: "+l.Fix)
		}
	}
	fmt.Fprintf(&b, "\n%d ok, %d skipped, %d warnings, %d failed\n", r.count(OK), r.count(Skip), r.count(Warn), r.count(Fail))
	_, err := io.WriteString(w, b.String())
	return err
}

// paint wraps text in the color of v (ECMA-48 SGR): green, gray, yellow, red.
func paint(text string, v Verdict, colours bool) string {
	if !colours {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", [...]int{32, 90, 33, 31}[v], text)
}
