// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

var nodeCache string // path of the binary under test

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

// run builds the programs, so that no test waits for that, and runs the tests.
func run(m *testing.M) int {
	if _, err := kubetest.Build(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return proctest.Main(m, &nodeCache)
}
