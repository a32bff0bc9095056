// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/nodecache/node-cache/internal/proctest"
)

// nodeCache is the path of the binary under test, set by TestMain.
var nodeCache string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

// run builds the binary once and runs the tests against it, or is an agent that can be made to stall.
func run(m *testing.M) int {
	if flag.NArg() == 2 && flag.Arg(0) == stallingAgent {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := runStallingAgent(ctx, flag.Arg(1)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	return proctest.Main(m, &nodeCache)
}
