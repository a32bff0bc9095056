// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nodecache/node-cache/internal/proctest"
)

// binaries is where the programs are, built once.
var binaries string

func TestMain(m *testing.M) { os.Exit(withBinaries(m)) }

func withBinaries(m *testing.M) int {
	dir, err := os.MkdirTemp("", "play-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binaries = dir
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, "play"), ".").CombinedOutput()
	if err == nil {
		err = proctest.Build(filepath.Join(dir, "node-cache"))
	}
	if err == nil {
		err = os.Chmod(dir, 0o755) // also for who is not root
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "building: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
