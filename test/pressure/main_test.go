// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"flag"
	"os"
	"testing"

	"github.com/nodecache/node-cache/internal/proctest"
)

var (
	nodeCache string // path of the binary under test
	long      = flag.Bool("long", false, "take the time and the rates that docs/reliability.md tells of")
)

func TestMain(m *testing.M) {
	if to := os.Getenv(attacksEnv); to != "" {
		os.Exit(attackUntilSignal(to))
	}
	flag.Parse()
	os.Exit(proctest.Main(m, &nodeCache))
}

// takes is how long, how often or how fast: the less in an ordinary run.
func takes[T any](ordinary, longer T) T {
	if *long {
		return longer
	}
	return ordinary
}
