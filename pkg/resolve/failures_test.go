// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/resolve"
)

// TestFailures counts SERVFAIL replies by route, with the first clients that got them.
func TestFailures(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "ok.test. 60 IN A 192.0.2.1")
	p := plan(t, u)
	p.Routes = append(p.Routes, resolve.Route{Suffix: []byte("\x04corp\x00"), Upstream: u, TTL: bounds()})
	p.Cluster = []byte("\x07cluster\x05local\x00")
	r := newResolver(t, p)
	ask := func(addr, name string) {
		c := newClient(r, false)
		c.from.Addr = netip.AddrPortFrom(netip.MustParseAddr(addr), 40000)
		c.send(pack(t, query(name, dns.TypeA)))
		<-c.got
	}
	ask("10.0.0.1", "ok.test.")
	assert.Equal(t, "without a failure", 0, len(r.TakeFailures()))
	u.mu.Lock()
	u.err = errors.New("away")
	u.mu.Unlock()
	ask("10.0.0.1", "OK.test.")                                      // from the cache
	for _, name := range []string{"A.test.", "b.test.", "b.test."} { // the last one is a cached failure
		ask("10.0.0.1", name)
	}
	ask("10.0.0.2", "b.test.")
	ask("2001:db8::1", "x.corp.")
	want := map[string]resolve.RouteFailures{
		".": {Zone: ".", Queries: 4, Clients: []resolve.FailedClient{
			{Addr: netip.MustParseAddr("10.0.0.1"), Name: "a.test."}, {Addr: netip.MustParseAddr("10.0.0.2"), Name: "b.test."},
		}},
		"corp.": {Zone: "corp.", Queries: 1, Clients: []resolve.FailedClient{{Addr: netip.MustParseAddr("2001:db8::1"), Name: "x.corp."}}},
	}
	got := map[string]resolve.RouteFailures{}
	for _, f := range r.TakeFailures() {
		got[f.Zone] = f
	}
	assert.Equal(t, "failures", fmt.Sprint(want), fmt.Sprint(got))
	assert.Equal(t, "failures taken", 0, len(r.TakeFailures()))
	for i := range 20 {
		ask(fmt.Sprintf("10.0.1.%d", i), "c.test.")
	}
	if got := r.TakeFailures(); len(got) != 1 || got[0].Queries != 20 || len(got[0].Clients) != 8 {
		t.Errorf("failures of 20 clients: %+v", got)
	}
}
