// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// byOther is what CoreDNS answers here.
const byOther = "coredns"

// TestForeignResolver starts a real CoreDNS, which sets SO_REUSEPORT, at the agent's very addresses and port: it gets no query,
// and the agent names it. An agent that starts after it does not share the addresses with it.
func TestForeignResolver(t *testing.T) {
	t.Parallel()
	b := newHarness(t, options{})
	a := b.start(t)
	b.startCoreDNS(t)
	asked := 0
	for range 10 {
		asked += b.askAll(t, byAgent)
	}
	proctest.Figure(t, "CoreDNS at the agent's addresses: %d of %d queries answered by the agent", asked, asked)
	var status string
	named := fmt.Sprintf("a process of user 0 is also bound to udp://%s:53", agentIPv4) // the agent has no SYS_PTRACE
	proctest.Eventually(t, time.Minute, "the agent names CoreDNS", func() bool {
		status = b.adminPage(t, "/status")
		return strings.Contains(status, named)
	})
	for _, network := range []string{"udp", "tcp"} {
		for _, addr := range b.dnsAddrs {
			if s := network + "://" + addr.String(); !strings.Contains(status, s+`"`) {
				t.Errorf("the status does not name CoreDNS's socket %s:\n%s", s, status)
			}
		}
	}
	if page := b.adminPage(t, "/metrics"); strings.Contains(page, "nodecache_foreign_sockets 0\n") || !strings.Contains(page, "nodecache_foreign_sockets ") {
		t.Error("the metric says that there is no foreign socket")
	}

	a.Kill()
	later := b.launch(t)
	if err := later.Wait(t, time.Minute); err == nil {
		t.Error("an agent has started and ended well beside CoreDNS")
	}
	if log := later.Stderr.String(); !strings.Contains(log, "address already in use") || !strings.Contains(log, "ss -lnptu") {
		t.Errorf("the agent that starts after CoreDNS does not say what is in its way:\n%s", log)
	}
}

// startCoreDNS runs CoreDNS at the agent's addresses on the node, and waits until it has bound them.
func (b *harness) startCoreDNS(t *testing.T) *proctest.Process {
	t.Helper()
	program, err := kubetest.Program(t.Context(), "coredns")
	assert.NoError(t, err)
	file := filepath.Join(t.TempDir(), "Corefile")
	text := fmt.Sprintf(".:53 {\n\tbind %s %s\n\ttemplate IN ANY . {\n\t\tanswer \"{{ .Name }} 60 IN TXT %s\"\n\t}\n}\n", agentIPv4, agentIPv6, byOther)
	proctest.WriteFile(t, file, text)
	c := proctest.Start(t, "CoreDNS", b.Node.Command(t.Context(), program, "-conf", file))
	proctest.Eventually(t, time.Minute, "CoreDNS listens", func() bool {
		if c.Ended() {
			t.Fatalf("CoreDNS has ended: %v", c.Err())
		}
		return strings.Contains(c.Stdout.String(), "CoreDNS-") // which it says once every socket is bound
	})
	return c
}
