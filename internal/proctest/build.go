// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// Build compiles node-cache to path, as version "test": static, as it is released. E2E_RACE in the environment adds the race
// detector, which needs a C library.
func Build(path string) error {
	if os.Getenv("E2E_RACE") != "" {
		return BuildPackage(path, "cmd/node-cache", "-ldflags=-X main.version=test", "-race")
	}
	return BuildPackage(path, "cmd/node-cache", "-ldflags=-E main.entry -X main.version=test")
}

// BuildPackage compiles a program of this module, static unless it has the race detector.
func BuildPackage(path, folder string, flags ...string) error {
	args := append([]string{"build", "-buildvcs=false", "-trimpath", "-o", path}, flags...)
	cmd := exec.CommandContext(context.Background(), "go", append(args, "github.com/nodecache/node-cache/"+folder)...)
	if !slices.Contains(flags, "-race") {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", folder, err, out)
	}
	return nil
}

// BinaryEnv is the environment variable that names a prebuilt binary.
const BinaryEnv = "E2E_BINARY"

// Main runs a package's tests against the binary at *path and returns their exit status. The binary is the one that
// E2E_BINARY names, or one that is built now and removed afterwards. Every user may start it.
func Main(m *testing.M, path *string) int {
	if *path = os.Getenv(BinaryEnv); *path != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "node-cache-test-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		*path = filepath.Join(dir, "node-cache")
		err = errors.Join(os.Chmod(dir, 0o755), Build(*path)) //nolint:gosec // one test starts it as another user
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// FindProgram finds a program with [LookProgram]. It skips the test if the program is not installed.
func FindProgram(t *testing.T, name, debianPackage string) string {
	t.Helper()
	path, err := LookProgram(name)
	if err != nil {
		t.Skipf("no %s: apt-get install %s", name, debianPackage)
	}
	return path
}

// LookProgram returns the absolute path of a program on PATH or in the folders of daemons.
func LookProgram(name string) (string, error) {
	for _, folder := range []string{"", "/usr/sbin/", "/sbin/", "/usr/local/sbin/"} {
		if found, err := exec.LookPath(folder + name); err == nil {
			return filepath.Abs(found)
		}
	}
	return "", fmt.Errorf("%s is not installed", name)
}
