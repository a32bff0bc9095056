// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodecache/node-cache/internal/proctest"
)

// namespaceEnv names, inside a namespace, the test that runs there.
const namespaceEnv = "E2E_NAMESPACE"

// inNamespace runs the calling test once more, in network and mount namespaces of its own, where it may bind port
// 53 and mount over files. It reports true in there. Outside it reports false, with the run inside behind it, and
// the test has no more to do. What can skip the test must come before.
func inNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(namespaceEnv) == t.Name() {
		if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
			t.Fatalf("bringing up lo: %v\n%s", err, out)
		}
		return true
	}
	proctest.FindProgram(t, "ip", "iproute2")
	unshare := proctest.FindProgram(t, "unshare", "util-linux")
	flags := "-nm"
	if os.Geteuid() != 0 {
		flags = "-rnm" // root of a user namespace is enough
	}
	if out, err := exec.Command(unshare, flags, "true").CombinedOutput(); err != nil {
		t.Skipf("no right to make namespaces: %v: %s", err, strings.TrimSpace(string(out)))
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), unshare, flags, self, "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.timeout=3m")
	cmd.Env = append(os.Environ(), namespaceEnv+"="+t.Name(), "E2E_BINARY="+nodeCache)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		// The marks of a test log would be taken for this test's own.
		t.Errorf("in its namespace: %v\n%s", err, strings.ReplaceAll(string(out), "--- ", "inside: "))
	}
	return false
}

// mountOver puts a file of the test's own in the place of a system file, for this namespace only.
func mountOver(t *testing.T, target, text string) {
	t.Helper()
	file := writeFile(t, filepath.Join(t.TempDir(), filepath.Base(target)), text)
	behind, err := filepath.EvalSymlinks(target)
	if err != nil {
		t.Fatalf("following %s: %v", target, err)
	}
	if err := syscall.Mount(file, behind, "", syscall.MS_BIND, ""); err != nil {
		t.Fatalf("mounting over %s: %v", behind, err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(behind, syscall.MNT_DETACH) }) // so that the folder above can go
}
