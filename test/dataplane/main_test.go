// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"os"
	"testing"

	"github.com/nodecache/node-cache/internal/proctest"
)

// nodeCache is the path of the binary under test, set by TestMain.
var nodeCache string

func TestMain(m *testing.M) { os.Exit(proctest.Main(m, &nodeCache)) }
