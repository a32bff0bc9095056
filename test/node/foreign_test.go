// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// byOther is what CoreDNS answers here.
const byOther = "coredns"

// TestForeignResolver starts a real CoreDNS, which sets SO_REUSEPORT, at the agent's very addresses and port: it gets no query.
func TestForeignResolver(t *testing.T) {
	t.Parallel()
	b := newBed(t, options{})
	b.start(t)
	b.startCoreDNS(t)
	asked := 0
	for range 10 {
		asked += b.askAll(t, byAgent)
	}
	figure(t, "CoreDNS at the agent's addresses: %d of %d queries answered by the agent", asked, asked)
}

// startCoreDNS runs CoreDNS at the agent's addresses on the node, and waits until it has bound them.
func (b *bed) startCoreDNS(t *testing.T) *proctest.Process {
	t.Helper()
	program, err := kubetest.Program(t.Context(), "coredns")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "Corefile")
	text := fmt.Sprintf(".:53 {\n\tbind %s %s\n\ttemplate IN ANY . {\n\t\tanswer \"{{ .Name }} 60 IN TXT %s\"\n\t}\n}\n", agentIPv4, agentIPv6, byOther)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := proctest.Start(t, "CoreDNS", b.Node.Command(t.Context(), program, "-conf", file))
	eventually(t, 15*time.Second, "CoreDNS listens", func() bool {
		if c.Ended() {
			t.Fatalf("CoreDNS has ended: %v", c.Err())
		}
		return strings.Contains(c.Stdout.String(), "CoreDNS-") // which it says once every socket is bound
	})
	return c
}
