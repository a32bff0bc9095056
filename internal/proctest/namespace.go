// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// namespaceEnv names, inside a namespace, the test that runs there.
const namespaceEnv = "PROCTEST_NAMESPACE"

// InNamespace runs the calling test once more, in network and mount namespaces of its own, where it may bind port 53 and mount
// over files. The loopback device has these addresses there besides 127.0.0.1. It reports true in there. Outside it reports
// false, with the run inside behind it, and the test has no more to do. What can skip the test must come before.
func InNamespace(t *testing.T, nodeCache string, addresses ...string) bool {
	t.Helper()
	if os.Getenv(namespaceEnv) == t.Name() {
		steps := append(make([]string, 0, 1+len(addresses)), "ip link set lo up")
		for _, a := range addresses {
			steps = append(steps, "ip addr add "+a+" dev lo")
		}
		if out, err := exec.CommandContext(t.Context(), "sh", "-c", strings.Join(steps, " && ")).CombinedOutput(); err != nil {
			t.Fatalf("preparing lo: %v\n%s", err, out)
		}
		return true
	}
	FindProgram(t, "ip", "iproute2")
	unshare := FindProgram(t, "unshare", "util-linux")
	flags := "-nm"
	if os.Geteuid() != 0 {
		flags = "-rnm" // root of a user namespace is enough
	}
	if out, err := exec.CommandContext(t.Context(), unshare, flags, "true").CombinedOutput(); err != nil {
		t.Skipf("no permission to make namespaces: %v: %s", err, strings.TrimSpace(string(out)))
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	timeout := time.Duration(0)
	if deadline, ok := t.Deadline(); ok {
		timeout = time.Until(deadline) - 5*time.Second // it prints what hangs
	}
	cmd := exec.CommandContext(t.Context(), unshare, flags, self, "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.timeout="+timeout.String(), "-test.v")
	cmd.Env = append(os.Environ(), namespaceEnv+"="+t.Name(), BinaryEnv+"="+nodeCache)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	// The marks of a test log would be taken for this test's own.
	t.Logf("in its namespace:\n%s", strings.NewReplacer("--- ", "inside: ", "=== ", "inside: ").Replace(string(out)))
	if err != nil {
		t.Errorf("in its namespace: %v", err)
	}
	return false
}
