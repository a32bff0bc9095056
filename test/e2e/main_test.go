// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
)

// nodeCache is the path of the binary under test, set by TestMain.
var nodeCache string

func TestMain(m *testing.M) {
	os.Exit(proctest.Main(m, &nodeCache))
}

// seconds reads the length of a load from the environment.
func seconds(t *testing.T, variable string, otherwise int) time.Duration {
	t.Helper()
	n := otherwise
	if text := os.Getenv(variable); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			t.Fatalf("%s: %q is no number of seconds", variable, text)
		}
	}
	return time.Duration(n) * time.Second
}

// eventually asks again and again until the condition holds, and fails the test when it does not within the limit.
func eventually(t *testing.T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// writeFile writes a file of the test's own and returns its path.
func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
