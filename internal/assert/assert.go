// SPDX-License-Identifier: Apache-2.0

// Package assert compares what a test wants with what it got.
package assert

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// NoError ends the test at an error.
func NoError(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Equal reports two values that differ.
func Equal[T comparable](tb testing.TB, what string, want, got T) {
	tb.Helper()
	if got != want {
		tb.Errorf("%s: %v, want %v", what, got, want)
	}
}

// Same reports where two values differ, which may have parts.
func Same[T any](tb testing.TB, what string, want, got T, options ...cmp.Option) {
	tb.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// update is the flag -update of a package's tests.
//
//nolint:gochecknoglobals // as every flag of a test binary
var update = flag.Bool("update", false, "rewrite the files that tests compare with")

// Updating reports whether tests rewrite the files that they compare with.
func Updating() bool { return *update }

// Golden compares a text with a file, or rewrites the file.
func Golden(tb testing.TB, file, got string) {
	tb.Helper()
	if *update {
		NoError(tb, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	NoError(tb, err)
	Same(tb, file+", rewritten with -update", string(want), got)
}

// GoldenPairs compares what do makes of each text in a txtar file with the text behind that one, or rewrites the file.
func GoldenPairs(t *testing.T, file string, do func(t *testing.T, name, text string) string) {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	NoError(t, err)
	for pairs := archive.Files; len(pairs) > 1; pairs = pairs[2:] {
		t.Run(pairs[0].Name, func(t *testing.T) {
			got := do(t, pairs[0].Name, string(pairs[0].Data))
			if *update {
				pairs[1].Data = []byte(got)
			}
			Same(t, "what is made of it", string(pairs[1].Data), got)
		})
	}
	if *update {
		NoError(t, os.WriteFile(file, txtar.Format(archive), 0o644))
	}
}
