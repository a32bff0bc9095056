// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"
)

// TestMain makes the test binary the child of a doctor, which is run as its own program.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == doctorChild {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}
