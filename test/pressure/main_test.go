// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
)

var (
	nodeCache string // path of the binary under test
	long      = flag.Bool("long", false, "take the time and the rates that docs/reliability.md tells of")
)

func TestMain(m *testing.M) {
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

// eventually asks again and again until the condition holds, and tells how long that took. It fails the test when it is
// not within the limit.
func eventually(t *testing.T, limit time.Duration, what string, condition func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !condition() {
		if time.Since(began) > limit {
			t.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}

// figure prints what docs/reliability.md may quote.
func figure(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Attr("seen", fmt.Sprintf(format, args...))
}

// writeFile replaces a file in one step and returns its path.
func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}
