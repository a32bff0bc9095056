// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nodecache/node-cache/internal/kubetest"
)

var (
	programs  kubetest.Programs // what the tests' clusters run
	nodeCache string            // path of the binary under test
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

// run builds the programs once and runs the tests with them.
func run(m *testing.M) int {
	var err error
	if programs, err = kubetest.Build(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if nodeCache = os.Getenv(binaryEnv); nodeCache != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "node-cache-cluster-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	nodeCache = filepath.Join(dir, "node-cache")
	args := []string{"build", "-buildvcs=false", "-trimpath", "-o", nodeCache}
	if os.Getenv("E2E_RACE") != "" {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, "../../cmd/node-cache")...).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building node-cache: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
