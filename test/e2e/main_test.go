// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
)

// nodeCache is the path of the binary under test, set by TestMain.
var nodeCache string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

// run builds the binary once and runs the tests against it.
func run(m *testing.M) int {
	if nodeCache = os.Getenv("E2E_BINARY"); nodeCache != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "node-cache-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	nodeCache = filepath.Join(dir, "node-cache")
	if err := build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build compiles node-cache into dir, which every user may then enter: one test starts the binary as nobody.
func build(dir string) error {
	if err := proctest.Build(nodeCache); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// program finds a program, also where Debian keeps servers, and skips the test where it is not installed.
func program(t *testing.T, name, debianPackage string) string {
	t.Helper()
	for _, candidate := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if found, err := exec.LookPath(candidate); err == nil {
			return found
		}
	}
	t.Skipf("no %s: apt-get install %s", name, debianPackage)
	return ""
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
