// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/nodecache/node-cache/internal/proctest"
)

// freePort finds a port of 127.0.0.1 that is free for UDP and for TCP.
func freePort(t *testing.T) int {
	t.Helper()
	return int(proctest.FreeAddr(t).Port())
}
