// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// event is one line of go test -json; cmd/test2json documents its fields.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build-output and build-fail events, in place of Package
	Test       string
	Elapsed    float64 // seconds
	Output     string
	Key, Value string // of attr events: what a test said with t.Attr
}

// key names a test; an empty Test stands for the package itself.
type key struct{ Package, Test string }

// outcome is what is known of one test or package.
type outcome struct {
	state   string // run, pass, fail or skip
	elapsed float64
	output  strings.Builder
	figures []string // "key value"
	parent  bool     // has subtests, so it is not counted itself unless it alone failed
}

// tally counts tests. A test with subtests counts as its subtests, a package that failed outside of its tests as one test.
type tally struct{ Passed, Failed, Skipped int }

// results collects the events of one run.
type results struct {
	all   map[key]*outcome
	order []key    // as first seen
	stray []string // lines of the input that are no event
}

func newResults() *results {
	return &results{all: map[key]*outcome{}}
}

// read takes in events until in ends.
func (r *results) read(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20) // one line of output may be long
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Action == "" {
			r.stray = append(r.stray, lines.Text())
			continue
		}
		r.add(e)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading events: %w", err)
	}
	return nil
}

func (r *results) add(e event) {
	name := e.Package
	if name == "" {
		name, _, _ = strings.Cut(e.ImportPath, " ") // "pkg [pkg.test]" is the test variant of pkg
	}
	o := r.at(key{name, e.Test})
	switch e.Action {
	case "output", "build-output":
		o.output.WriteString(e.Output)
	case "pass", "fail", "skip":
		r.end(o, e)
	case "attr":
		o.figures = append(o.figures, e.Key+" "+e.Value)
	case "build-fail":
		o.state = "fail"
	case "run":
		r.begin(e)
	}
}

// begin marks every test above this one as a parent.
func (r *results) begin(e event) {
	name := e.Test
	for {
		cut := strings.LastIndexByte(name, '/')
		if cut < 0 {
			return
		}
		name = name[:cut]
		r.at(key{e.Package, name}).parent = true
	}
}

// end keeps the worst end: fuzz targets run one process each, so a package may end several times.
func (r *results) end(o *outcome, e event) {
	o.elapsed += e.Elapsed
	if o.state != "fail" {
		o.state = e.Action
	}
}

func (r *results) at(k key) *outcome {
	o, ok := r.all[k]
	if !ok {
		o = &outcome{state: "run"}
		r.all[k] = o
		r.order = append(r.order, k)
	}
	return o
}

// leaves lists the tests that count, in the order they were seen, with what became of each.
func (r *results) leaves() []key {
	var keys []key
	for _, k := range r.order {
		o := r.all[k]
		switch {
		case k.Test == "":
			if o.state == "fail" && !r.anyFailed(k.Package, "") {
				keys = append(keys, k)
			}
		case !o.parent, o.state == "fail" && !r.anyFailed(k.Package, k.Test+"/"):
			keys = append(keys, k)
		}
	}
	return keys
}

// anyFailed reports whether a test of the package under the prefix failed.
func (r *results) anyFailed(pkg, prefix string) bool {
	return slices.ContainsFunc(r.order, func(k key) bool {
		return k.Package == pkg && k.Test != "" && strings.HasPrefix(k.Test, prefix) && r.verdict(k) == "fail"
	})
}

// verdict is pass, fail or skip. Benchmarks end without an event of their own; so do tests cut off by a panic or
// the time limit, and the end of their package tells the two apart.
func (r *results) verdict(k key) string {
	o := r.all[k]
	if o.state != "run" {
		return o.state
	}
	if p, ok := r.all[key{k.Package, ""}]; ok && p.state == "pass" {
		return "pass"
	}
	return "fail"
}

func (r *results) tally() tally {
	var t tally
	for _, k := range r.leaves() {
		switch r.verdict(k) {
		case "pass":
			t.Passed++
		case "skip":
			t.Skipped++
		default:
			t.Failed++
		}
	}
	return t
}
