// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

var _ intercept.Backend = (*Backend)(nil)

func variants() []Variant { return []Variant{Nft, Legacy} }

// openNode makes a node with one pod, and a backend in the node.
func openNode(tb testing.TB, v Variant) (*nodetest.Network, *Backend) {
	tb.Helper()
	hosts := nodetest.Start(tb, nodetest.Options{Pods: 1})
	return hosts, open(tb, hosts, Config{Variant: v, Now: time.Now, LockWait: time.Second})
}

// open makes one more backend in the node, one with the node's own lock.
func open(tb testing.TB, hosts *nodetest.Network, cfg Config) *Backend {
	tb.Helper()
	var b *Backend
	err := hosts.Node.Do(func() (err error) {
		b, err = New(cfg)
		return err
	})
	assert.NoError(tb, err)
	for _, s := range []*variantTables{b.own, b.other} {
		if s == nil {
			continue
		}
		for _, p := range s.programs {
			p.env = []string{"XTABLES_LOCKFILE=" + hosts.Node.XtablesLock()}
		}
	}
	tb.Cleanup(func() {
		if err := b.Close(); err != nil {
			tb.Errorf("closing the backend: %v", err)
		}
	})
	return b
}

func apply(tb testing.TB, b *Backend, r rules.Rules) bool {
	tb.Helper()
	changed, err := b.Apply(tb.Context(), r)
	assert.NoError(tb, err)
	return changed
}

func renew(t *testing.T, b *Backend) {
	t.Helper()
	r := b.rules.Load()
	for _, l := range r.Leases() {
		assert.NoError(t, b.Renew(t.Context(), []netip.Addr{l.Key}, time.Minute))
	}
}

// runs is how many programs b has run.
func (b *Backend) runs() (n int64) {
	for _, s := range []*variantTables{b.own, b.other} {
		for _, p := range s.programs {
			n += p.runs.Load()
		}
	}
	return n
}

// run runs a program in the node.
func run(t *testing.T, hosts *nodetest.Network, command string) string {
	t.Helper()
	f := strings.Fields(command)
	out, err := hosts.Node.Output(context.Background(), f[0], f[1:]...)
	assert.NoError(t, err)
	return out
}

// servers has the agent answer at its addresses, and each fallback as "fallback".
func servers(t *testing.T, hosts *nodetest.Network, r rules.Rules) {
	t.Helper()
	for _, a := range r.Addresses {
		assert.NoError(t, hosts.Node.AddAddress(a))
		serve(t, hosts.Node, netip.AddrPortFrom(a, r.Port), "agent")
	}
	for _, f := range r.Fallback {
		serve(t, hosts.Upstream, f, "fallback")
	}
}

func serve(t *testing.T, h *nodetest.Host, a netip.AddrPort, name string) {
	t.Helper()
	s, err := nodetest.Serve(h, a, name)
	assert.NoError(t, err)
	t.Cleanup(s.Close)
}

// counters are those in brackets, which traffic changes.
var counters = regexp.MustCompile(`\[\d+:\d+\]`)

// tablesOf prints everything that is in a node's tables and sets, but for dates and counters.
func tablesOf(t *testing.T, hosts *nodetest.Network) string {
	t.Helper()
	var b strings.Builder
	for _, command := range []string{
		"nft -s list ruleset", "iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save", "ipset list",
	} {
		b.WriteString("$ " + command + "\n")
		for line := range strings.Lines(run(t, hosts, command)) {
			if !strings.HasPrefix(line, "#") {
				b.WriteString(counters.ReplaceAllString(line, "[]"))
			}
		}
	}
	return b.String()
}
