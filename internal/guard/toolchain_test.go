// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"regexp"
	"testing"
)

// TestToolchain has the program and what makes its image name the same release of Go: hack/image runs the go command of its own module.
func TestToolchain(t *testing.T) {
	t.Parallel()
	line := regexp.MustCompile(`(?m)^toolchain go1\.\d+\.\d+$`)
	want, got := line.FindString(string(content(t, "go.mod"))), line.FindString(string(content(t, "hack/image/go.mod")))
	if want == "" || got != want {
		t.Errorf("go.mod has %q, hack/image/go.mod %q", want, got)
	}
}
