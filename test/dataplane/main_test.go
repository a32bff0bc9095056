// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodecache/node-cache/internal/proctest"
)

// Set by TestMain: the path of the binary under test, and of one from the same sources that has another version.
var nodeCache, upgraded string

const versionUpgraded = "upgraded"

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	folder, err := os.MkdirTemp("", "dataplane")
	if err == nil {
		defer func() { _ = os.RemoveAll(folder) }()
		upgraded = filepath.Join(folder, "node-cache")
		err = proctest.BuildPackage(upgraded, "cmd/node-cache", "-ldflags=-w -E main.entry -X main.version="+versionUpgraded)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return proctest.Main(m, &nodeCache)
}
