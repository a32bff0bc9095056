// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

const (
	slowest   = 3   // tests named as slow in one report, at most
	slowAfter = 2.0 // seconds; a quicker test is not worth a line
)

// report is the failures with their whole output, then the skips with their reasons, then what tests measured, then
// the slowest tests.
func (r *results) report() string {
	var out strings.Builder
	for _, line := range r.stray {
		fmt.Fprintln(&out, line)
	}
	leaves := r.leaves()
	for _, k := range leaves {
		if r.verdict(k) == "fail" {
			fmt.Fprintf(&out, "--- failed: %s\n%s", title(k), r.failure(k))
		}
	}
	for _, k := range leaves {
		if r.verdict(k) == "skip" {
			fmt.Fprintf(&out, "  skipped %s: %s\n", title(k), reason(r.all[k].output.String()))
		}
	}
	for _, k := range leaves {
		for _, figure := range r.all[k].figures {
			fmt.Fprintf(&out, "  figure  %s: %s\n", title(k), figure)
		}
	}
	slices.SortStableFunc(leaves, func(a, b key) int { return cmp.Compare(r.all[b].elapsed, r.all[a].elapsed) })
	for _, k := range leaves[:min(slowest, len(leaves))] {
		if s := r.all[k].elapsed; s >= slowAfter {
			fmt.Fprintf(&out, "  slow    %s: %.1f s\n", title(k), s)
		}
	}
	return out.String()
}

// failure is the output of a failed test, and of the tests above it: a helper may have logged there.
func (r *results) failure(k key) string {
	text := r.all[k].output.String()
	for name := k.Test; strings.Contains(name, "/"); {
		name = name[:strings.LastIndexByte(name, '/')]
		text = r.all[key{k.Package, name}].output.String() + text
	}
	if k.Test != "" && r.all[k].state == "run" { // cut off: the reason stands in the package's output
		text += r.all[key{k.Package, ""}].output.String() + r.lastWords(k.Package)
	}
	return text
}

// lastWords is why the process of a package died, where the go command gives those words to a test that was over.
func (r *results) lastWords(pkg string) string {
	for _, k := range r.order {
		if k.Package != pkg || r.all[k].state == "run" {
			continue
		}
		text := r.all[k].output.String()
		for _, sign := range []string{"panic: ", "fatal error: ", "signal: "} {
			if at := strings.Index(text, sign); at >= 0 && k.Test != "" {
				return text[at:]
			}
		}
	}
	return ""
}

// reason is the message given to t.Skip: the last line of the output that is no frame of the test log.
func reason(output string) string {
	text := "no reason given"
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "--- ") || strings.HasPrefix(line, "=== ") {
			continue
		}
		text = line
	}
	if at, why, ok := strings.Cut(text, ": "); ok && strings.Contains(at, ".go:") {
		return why
	}
	return text
}

// title names a test by the last element of its package.
func title(k key) string {
	if k.Test == "" {
		return k.Package
	}
	return path.Base(k.Package) + "." + k.Test
}
