// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/nodecache/node-cache/internal/proctest"
)

// The environment of a test that runs in a namespace.
const (
	namespaceEnv = "CLUSTER_NAMESPACE" // its name
)

// isolated runs the calling test once more, in a network namespace of its own whose loopback device has these addresses
// besides 127.0.0.1. It reports true in there. Outside it reports false, with the run inside behind it, and the test
// has no more to do.
func isolated(t *testing.T, addresses ...string) bool {
	t.Helper()
	if os.Getenv(namespaceEnv) == t.Name() {
		script := "ip link set lo up"
		for _, a := range addresses {
			script += " && ip addr add " + a + " dev lo"
		}
		if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
			t.Fatalf("preparing lo: %v\n%s", err, out)
		}
		return true
	}
	for _, program := range []string{"ip", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: %v", program, err)
		}
	}
	flags := "-n"
	if os.Geteuid() != 0 {
		flags = "-rn" // root of a user namespace is enough
	}
	if out, err := exec.Command("unshare", flags, "true").CombinedOutput(); err != nil {
		t.Skipf("no right to make namespaces: %v: %s", err, strings.TrimSpace(string(out)))
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{flags, self, "-test.run=^" + t.Name() + "$", "-test.count=1", "-test.timeout=5m"}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	cmd := exec.CommandContext(t.Context(), "unshare", args...)
	cmd.Env = append(os.Environ(), namespaceEnv+"="+t.Name(), proctest.BinaryEnv+"="+nodeCache)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	// The marks of a test log would be taken for this test's own.
	text := strings.ReplaceAll(string(out), "--- ", "inside: ")
	if err != nil {
		t.Errorf("in its namespace: %v\n%s", err, text)
	} else {
		t.Logf("in its namespace:\n%s", text)
	}
	return false
}
