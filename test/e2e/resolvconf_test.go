// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestWithoutConfiguration is the first thing a newcomer does: the agent without a file, in front of the machine's
// own resolv.conf, and a query to the address it prints.
func TestWithoutConfiguration(t *testing.T) {
	t.Parallel()
	proctest.FindProgram(t, "nsd", "nsd")
	proctest.FindProgram(t, "dig", "bind9-dnsutils")
	if !proctest.InNamespace(t, nodeCache) {
		return
	}
	startNSDAt(t, netip.MustParseAddrPort("127.0.0.2:53"), mainZone())
	mountOver(t, "/etc/resolv.conf", "nameserver 127.0.0.2\n")
	a := launch(t, settings{address: "127.0.0.1", port: 1053, admin: 9253}, exec.Command(nodeCache, "agent"), "")
	for _, transport := range []string{"+notcp", "+tcp"} {
		got := dig(t, a.addr, "host.e2e.test", "A", transport)
		assert.Same(t, fmt.Sprintf("dig %s", transport), []string{"host.e2e.test. IN A 192.0.2.10"}, got.answer)
	}
	if out := a.Stdout.String(); !strings.Contains(out, "dig @127.0.0.1 -p 1053") {
		t.Errorf("stdout does not tell what to type:\n%s", out)
	}
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
