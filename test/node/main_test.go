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
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
)

var (
	nodeCache string // path of the binary under test
	long      = flag.Bool("long", false, "take the time that docs/reliability.md tells of")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

// run builds the binary once and runs the tests against it, or is an agent that can be made to stall.
func run(m *testing.M) int {
	if flag.NArg() == 3 && flag.Arg(0) == stallingAgent {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := runStalling(ctx, flag.Arg(1), flag.Arg(2)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	return proctest.Main(m, &nodeCache)
}

// takes is how long, or how often, a test goes on: the shorter in an ordinary run.
func takes[T any](ordinary, longer T) T {
	if *long {
		return longer
	}
	return ordinary
}

// eventually asks again and again until the condition holds, and fails the test when it does not within the limit.
func eventually(t *testing.T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// figure prints what docs/reliability.md may quote.
func figure(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Attr("seen", fmt.Sprintf(format, args...))
}
