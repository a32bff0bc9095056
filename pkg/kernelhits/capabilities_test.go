// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/capabilities"
)

// openHere is the variable of the environment that makes TestOpenHere do its work.
const openHere = "NODE_CACHE_TEST_OPEN"

// TestCapabilities loads and attaches the programs as a user without privileges.
func TestCapabilities(t *testing.T) {
	n := nodetest.Start(t, nodetest.Options{})
	self, err := os.Executable()
	assert.NoError(t, err)
	for _, tt := range []struct {
		name, caps, problem string
	}{
		{"those that a pod gets", "+net_admin,+net_bind_service,+bpf,+perfmon", ""},
		{"those of an agent without hits in the kernel", "+net_admin,+net_bind_service", "missing capability: BPF, PERFMON"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			caps := "-all," + tt.caps
			cmd := n.Node.Command(t.Context(), "setpriv", "--reuid", "65532", "--regid", "65532", "--clear-groups",
				"--inh-caps", caps, "--ambient-caps", caps, "--bounding-set", caps, "--no-new-privs", "--", self, "-test.run", "^TestOpenHere$", "-test.v")
			cmd.Env = append(cmd.Env, openHere+"=1")
			cmd.Dir = "/"
			out, err := cmd.CombinedOutput()
			if (err == nil) != (tt.problem == "") || !strings.Contains(string(out), tt.problem) {
				t.Errorf("%v, want a problem with %q: %s", err, tt.problem, out)
			}
		})
	}
}

// TestOpenHere opens a kernel and attaches it to the loopback link, by both hooks.
func TestOpenHere(t *testing.T) {
	if os.Getenv(openHere) == "" {
		t.Skip("for TestCapabilities")
	}
	k := open(t, nil)
	lo, err := netlink.LinkByName("lo")
	assert.NoError(t, err)
	assert.NoError(t, capabilities.Drop([]cap.Value{capabilities.NetAdmin, capabilities.BPF})) // as the agent, before the first interface
	for _, k.links.legacy = range []bool{false, true} {
		k.links.mu.Lock()
		assert.NoError(t, k.links.attachLocked(lo.Attrs().Index, "lo"))
		k.links.detachLocked(lo.Attrs().Index)
		k.links.mu.Unlock()
	}
}
