// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFindSections(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		text string
		want []section
		err  string // part of the error; empty: none
	}{
		{name: "no marker", text: "# Title\n\n<!-- a remark -->\n"},
		{
			name: "two sections",
			text: "x\n<!-- begin a -->\none\n<!-- end a -->\ny\n  <!--begin b-->\n<!-- end b -->",
			want: []section{
				{name: "a", text: "<!-- begin a -->\none\n<!-- end a -->\n"},
				{name: "b", text: "  <!--begin b-->\n<!-- end b -->"},
			},
		},
		{name: "without an end", text: "<!-- begin a -->\none\n", err: `"a" has no end`},
		{name: "without a begin", text: "<!-- end a -->\n", err: `"a" ends without a begin`},
		{name: "one inside another", text: "<!-- begin a -->\n<!-- begin b -->\n", err: `"b" begins inside "a"`},
		{name: "the end of another", text: "<!-- begin a -->\n<!-- end b -->\n", err: `"b" ends without a begin`},
		{name: "one name twice", text: strings.Repeat("<!-- begin a -->\n<!-- end a -->\n", 2), err: `"a" begins twice`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := findSections(tt.text)
			if (err == nil) != (tt.err == "") || (err != nil && !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("findSections: error %v, want %q", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(section{})); diff != "" {
				t.Errorf("findSections (-want +got):\n%s", diff)
			}
		})
	}
}

func TestKeepSections(t *testing.T) {
	t.Parallel()
	const mine = "<!-- begin cluster -->\nnew\n<!-- end cluster -->\n"
	frame := "# New\n\n<!-- begin cluster -->\n<!-- end cluster -->\n\nlast\n"
	tests := []struct {
		name string
		old  []section
		want string
	}{
		{name: "nothing old", want: frame},
		{
			name: "at its place",
			old:  []section{{name: "cluster", text: "<!-- begin cluster -->\n$1 figures\n<!-- end cluster -->\n"}},
			want: "# New\n\n<!-- begin cluster -->\n$1 figures\n<!-- end cluster -->\n\nlast\n",
		},
		{
			name: "at the end where the frame has no place",
			old:  []section{{name: "other", text: "<!-- begin other -->\nmine\n<!-- end other -->\n"}},
			want: frame + "\n<!-- begin other -->\nmine\n<!-- end other -->\n",
		},
	}
	if got := keepSections("", []section{{name: "cluster", text: mine}}); got != mine {
		t.Errorf("a section without a file: %q, want the section", got)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, keepSections(frame, tt.old)); diff != "" {
				t.Errorf("keepSections (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRewrite goes the whole way of a second run over a file in which another command wrote.
func TestRewrite(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "performance.md")
	mine := "<!-- begin cluster -->\n| agent | 71.2 % |\n<!-- end cluster -->\n"
	if err := os.WriteFile(path, []byte("stale figures\n"+mine), 0o600); err != nil {
		t.Fatal(err)
	}
	_, old, err := readReport(path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := serversSample().render()
	if err != nil {
		t.Fatal(err)
	}
	if err := replaceFile(path, keepSections(text, old)); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(got), "stale") || strings.Count(string(got), mine) != 1 {
		t.Errorf("the file has not the new text with the old section once:\n%s", got)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".bench-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

// TestReadSectionsRefuses keeps a file whose markers do not pair from being rewritten.
func TestReadSectionsRefuses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "performance.md")
	if err := os.WriteFile(path, []byte("<!-- begin cluster -->\nlong work\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readReport(path); err == nil {
		t.Error("readReport accepted a section without an end")
	}
	if text, got, err := readReport(filepath.Join(t.TempDir(), "absent.md")); text != "" || got != nil || err != nil {
		t.Errorf("readReport of an absent file = %v, %v, want nothing", got, err)
	}
}
