// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRunPrintsTheSameTwice(t *testing.T) {
	t.Parallel()
	args := []string{"-queries", "2000", "-names", "500"}
	var first, second, stderr bytes.Buffer
	if code := run(args, &first, &stderr); code != 0 {
		t.Fatalf("exit code %d, want 0: %s", code, stderr.String())
	}
	if code := run(args, &second, &stderr); code != 0 || first.String() != second.String() {
		t.Errorf("exit code %d; the second run printed\n%s\nthe first\n%s", code, second.String(), first.String())
	}
	for _, want := range []string{beginMark, endMark, "| SIEVE |", "| S3-FIFO on a log |", "| no ghosts |", "- *search path*: "} {
		if !strings.Contains(first.String(), want) {
			t.Errorf("the report has no %q", want)
		}
	}
}

func TestRunReplacesItsSectionAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "performance.md")
	if err := os.WriteFile(path, []byte("before\n"+beginMark+"old\n"+endMark+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := run([]string{"-queries", "2000", "-names", "500", "-out", path}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d, want 0: %s", code, stderr.String())
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(got)
	if !strings.HasPrefix(text, "before\n"+beginMark+"## ") || !strings.HasSuffix(text, endMark+"after\n") || strings.Contains(text, "old\n") {
		t.Errorf("the file is now\n%s", text)
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "broken.md")
	if err := os.WriteFile(broken, []byte(beginMark), 0o600); err != nil {
		t.Fatal(err)
	}
	small := []string{"-queries", "100", "-names", "10", "-out"}
	tests := []struct {
		name string
		args []string
		code int
		want string // on standard error
	}{
		{"argument", []string{"zipf"}, 2, `policy: unexpected argument "zipf"`},
		{"no queries", []string{"-queries", "0"}, 2, "policy: -queries 0: not within 1..100000000"},
		{"too many names", []string{"-names", "100000001"}, 2, "policy: -names 100000001: not within 1..100000000"},
		{"unknown flag", []string{"-zipf"}, 2, "flag provided but not defined"},
		{"one mark", append(small, broken), 1, "policy: replacing the section of broken.md: one of its two marks is missing"},
		{"no folder", append(small, filepath.Join(broken, "x")), 1, "policy: reading the report: "},
		{"help", []string{"-h"}, 0, "Usage of policy"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			if code := run(tt.args, &stdout, &stderr); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("standard error %q, want %q in it", stderr.String(), tt.want)
			}
		})
	}
}

func TestSplice(t *testing.T) {
	t.Parallel()
	const text = beginMark + "new\n" + endMark
	tests := []struct{ name, old, want string }{
		{"no file", "", text},
		{"no section", "# Title\n\n\n", "# Title\n\n" + text},
		{"a section", "a\n" + beginMark + "old\n" + endMark + "b\n", "a\n" + text + "b\n"},
		{"begin alone", "a\n" + beginMark, ""},
		{"end alone", "a\n" + endMark, ""},
		{"end before begin", endMark + beginMark, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := splice(tt.old, text)
			if got != tt.want {
				t.Errorf("text\n-want %q\n+got  %q", tt.want, got)
			}
			if wantErr := tt.want == ""; (err != nil) != wantErr {
				t.Errorf("error %v, want one: %t", err, wantErr)
			}
		})
	}
}
