// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/nodecache/node-cache/internal/clitest"
)

// TestHelp checks the help of each command.
func TestHelp(t *testing.T) {
	t.Parallel()
	if n := clitest.Help(t, rootCommand()); n != 12 {
		t.Errorf("%d commands, want twelve", n)
	}
}

// TestPages checks the commands of the pages.
func TestPages(t *testing.T) {
	t.Parallel()
	if n := clitest.Pages(t, "../..", `kubectl node-cache (.*)$`, rootCommand); n < 15 {
		t.Errorf("%d commands, want fifteen", n)
	}
}
