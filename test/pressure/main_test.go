// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"os"
	"testing"

	"github.com/nodecache/node-cache/internal/proctest"
)

// nodeCache is the path of the binary under test, set by TestMain.
var nodeCache string

func TestMain(m *testing.M) {
	if to := os.Getenv(attacksEnv); to != "" {
		os.Exit(attackUntilSignal(to))
	}
	os.Exit(proctest.Main(m, &nodeCache))
}
