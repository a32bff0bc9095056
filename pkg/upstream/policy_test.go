// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// threeServers are three targets with a policy.
type threeServers struct {
	pool    *upstream.Pool
	servers []*upstreamtest.Server
}

func newThreeServers(t *testing.T, policy upstream.Policy, actions ...upstreamtest.Action) *threeServers {
	t.Helper()
	tr := &threeServers{}
	memory := upstreamtest.Network{}
	cfg := upstream.Config{Policy: policy, Dial: memory.Dial}
	for i, addr := range list(addrA, addrB, addrC)[:len(actions)] {
		s := upstreamtest.New(upstreamtest.Always(actions[i]))
		memory[addr.Addr] = s
		tr.servers = append(tr.servers, s)
		cfg.Targets = append(cfg.Targets, target("udp", addr.Addr))
	}
	tr.pool = newPool(t, cfg)
	run(t, tr.pool)
	return tr
}

// asked sends n queries, with a pause of a millisecond after each, and returns the servers that were asked.
func (tr *threeServers) asked(t *testing.T, n int) string {
	t.Helper()
	var b strings.Builder
	for range n {
		before := make([]int, len(tr.servers))
		for i, s := range tr.servers {
			before[i] = len(s.Queries())
		}
		ask(t, tr.pool)
		for i, s := range tr.servers {
			b.WriteString(strings.Repeat("ABC"[i:i+1], len(s.Queries())-before[i]))
		}
		b.WriteString(" ")
		time.Sleep(time.Millisecond)
	}
	return strings.TrimSpace(b.String())
}
