// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
)

// TestTracer has a tracer of each family beside those that were killed.
func TestTracer(t *testing.T) {
	t.Parallel()
	h := nodetest.Start(t, nodetest.Options{})
	hasTable := func() bool { return strings.Contains(ruleset(t, h.Node), "table inet "+TraceTable+" {") }
	open := func(src string) (tr *Tracer, err error) {
		failed := h.Node.Do(func() error {
			tr, err = NewTracer(netip.MustParseAddr(src))
			return nil
		})
		assert.NoError(t, failed)
		return tr, err
	}
	for _, tt := range []struct {
		name, src string
		before    func()
	}{
		{name: "the first", src: "198.18.0.2", before: func() {}},
		{name: "the next", src: "fd00::2", before: func() {}},
		{name: "after a killed one", src: "198.18.0.2", before: func() {
			killed := startProcess(t, h.Node, traceProcess+"=198.18.0.2")
			assert.Equal(t, "the table of a running process", true, hasTable())
			if _, err := open("198.18.0.2"); err == nil || !strings.Contains(err.Error(), "another process owns it") {
				t.Errorf("beside a running process: error %v", err)
			}
			assert.NoError(t, killed.Process.Kill())
			_, _ = killed.Process.Wait() // the kernel closes the sockets of a process before its end
			assert.Equal(t, "the table of a killed process", false, hasTable())
		}},
		{name: "after one whose table has no owner", src: "198.18.0.2", before: func() {
			out, err := h.Node.Output(t.Context(), "nft", "add", "table", "inet", TraceTable)
			if err != nil {
				t.Fatal(out)
			}
		}},
	} {
		tt.before()
		tracer, err := open(tt.src)
		assert.NoError(t, err)
		text := ruleset(t, h.Node, "--numeric")
		for _, want := range []string{"hook prerouting priority -399", "hook output priority -399", "saddr " + tt.src + " meta nftrace set 1", "daddr " + tt.src + " meta nftrace set 1", "flags owner"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the ruleset has no %q:\n%s", tt.name, want, text)
			}
		}
		assert.NoError(t, tracer.Close())
		assert.Equal(t, tt.name+": the table after Close", false, hasTable())
	}
}
