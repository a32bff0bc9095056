// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"errors"
	"fmt"
	"os"
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
	if err := errors.Join(
		proctest.BuildPackage(filepath.Join(dir, "play"), "internal/play"), proctest.Build(filepath.Join(dir, "node-cache")),
		os.Chmod(dir, 0o755), // also for who is not root
	); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
