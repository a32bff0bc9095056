// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// nodeCache is the path of the binary under test, set by TestMain.
var nodeCache string

func TestMain(m *testing.M) {
	os.Exit(proctest.Main(m, &nodeCache))
}

// writeFile writes a file of the test's own and returns its path.
func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	assert.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// freePort finds a port of 127.0.0.1 that is free for UDP and for TCP.
func freePort(t *testing.T) int {
	t.Helper()
	return int(proctest.FreeAddr(t).Port())
}
