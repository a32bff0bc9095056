// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nodecache/node-cache/pkg/convert"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/plain"
)

// Config is the configuration of this node's agent.
type Config struct {
	// Intercept means that the agent intercepts queries, by Rules. Owner and Fallback of the
	// rules are ignored; Services may be empty if the agent reads them from the cluster.
	// Without Intercept, Rules only has the agent's listen addresses.
	Intercept bool
	Rules     rules.Rules
	Backend   string // as configured: "auto", "nftables" or "iptables"

	// ManageLink means that the agent creates Link and puts its addresses on it.
	ManageLink bool
	Link       string

	KernelHits string // kernel.hits: "off", "auto" or "on"

	Admin netip.AddrPort // address of the agent's status page; zero: none
	Name  string         // a cluster name, absolute, that the agent must resolve; empty: none

	Domain string // the cluster domain, absolute; empty: the fallback is not tested

	Gaps []convert.Gap // between the cluster's DNS and this agent; nil: not known

	Push Push

	Timeout time.Duration // timeout of one probe; 0: 1 s

	// Command is the argv of a child process, which runs [Serve]; empty: no test from a pod, and no files of pods and the kubelet.
	Command []string
	NoPod   bool // no test from a pod

	Now func() time.Time // never nil
}

// Run makes all checks in the network namespace of this process, which is the node's. It takes a few times c.Timeout and
// leaves the node as it was. It returns an error only when ctx ends; all other errors are in the report.
func Run(ctx context.Context, c Config) (Report, error) {
	c.Timeout = cmp.Or(c.Timeout, time.Second)
	c.Rules.Fallback = nil
	f := collect(ctx, &c)
	if err := ctx.Err(); err != nil {
		return Report{}, err
	}
	return Examine(c, f), nil
}

// A Verdict is the outcome of one check.
type Verdict uint8

// The verdicts.
const (
	OK   Verdict = iota
	Skip         // the check could not run, or does not apply
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
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(struct {
		Report
		Summary map[string]int `json:"summary"`
	}{r, map[string]int{"ok": r.count(OK), "skip": r.count(Skip), "warn": r.count(Warn), "fail": r.count(Fail)}})
	if err == nil {
		_, err = w.Write(plain.JSON(b.Bytes()))
	}
	return err
}

// Text writes r for humans, with colors on a terminal. The last of several adjacent lines
// with the same fix shows it.
func (r Report) Text(w io.Writer, colours bool) error {
	width := 0
	for _, l := range r.Lines {
		width = max(width, utf8.RuneCountInString(l.Check))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", plain.Error(r.Title))
	for i, l := range r.Lines {
		if i == 0 || l.Part != r.Lines[i-1].Part {
			fmt.Fprintf(&b, "\n%s\n", plain.Error(l.Part))
		}
		verdict := paint(fmt.Sprintf("%-4s", l.Verdict), l.Verdict, colours)
		fmt.Fprintf(&b, "  %s  %-*s  %s\n", verdict, width, plain.Error(l.Check), plain.Error(l.What))
		again := i+1 < len(r.Lines) && r.Lines[i+1].Part == l.Part && r.Lines[i+1].Fix == l.Fix
		if l.Fix != "" && !again {
			fmt.Fprintf(&b, "  %*s  %s\n", 4+2+width, "", "fix: "+plain.Error(l.Fix))
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
