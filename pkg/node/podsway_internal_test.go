// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// A namedBackend is a backend of another name.
type namedBackend struct {
	intercept.Backend

	name      string
	trackless bool
}

func (b *namedBackend) String() string  { return b.name }
func (b *namedBackend) Trackless() bool { return b.trackless }

// newWatchedNode returns a node in mode link-local on a host, before its first pass over the rules.
func newWatchedNode(t *testing.T, host *changingHost, backend string) *Node {
	t.Helper()
	cfg := Config{Host: host, Token: "416155b7", Log: slog.New(slog.DiscardHandler), Target: func() Target { return Target{} }}
	cfg.Config.Intercept.Mode = config.ModeLinkLocal
	n, err := New(cfg)
	assert.NoError(t, err)
	n.podsWay.open(&namedBackend{Backend: intercepttest.NewFake(time.Now).Open(), name: backend}, dataplane.Found{})
	return n
}

func fallbackRules() rules.Rules {
	return rules.Rules{
		Addresses: []netip.Addr{netip.MustParseAddr("169.254.20.10")}, Port: 53, Fallback: []netip.AddrPort{netip.MustParseAddrPort("10.1.1.1:53")},
	}
}

func leaseOf(addr string) rules.Lease { return rules.Lease{Key: netip.MustParseAddr(addr)} }

// TestWayOfPods: what is known of pods' packets, by the data plane, the policy engines and the rules of others.
func TestWayOfPods(t *testing.T) {
	t.Parallel()
	const nft, legacy = dataplane.BackendNFTables, dataplane.BackendIPTablesLegacy
	works := intercept.FallbackResult{State: intercept.FallbackWorks}
	unverified := func(why string) intercept.FallbackResult {
		return intercept.FallbackResult{State: intercept.FallbackUnverified, Why: why}
	}
	broken := intercept.FallbackResult{State: intercept.FallbackBroken, Why: "chain x exempts their packets from conntrack"}
	notrack := func(backend string, priority int, certain bool) []dataplane.Notrack {
		return []dataplane.Notrack{{Where: "chain x", Backend: backend, Priority: priority, Certain: certain, IPv4: true}}
	}
	const byCilium = "Cilium handles packets of pods before netfilter"
	for _, tt := range []struct {
		name    string
		backend string // empty: nftables
		found   dataplane.Found
		host    changingHost
		lease   string // empty: IPv4
		change  func(n *Node)
		mode    rules.Mode
		track   bool
		want    intercept.FallbackResult
	}{
		{name: "kube-proxy", want: works},
		{name: "Cilium", found: dataplane.Found{Proxy: dataplane.Cilium, Early: true}, host: changingHost{cilium: true}, track: true, want: unverified(byCilium)},
		{name: "Cilium was installed after the start", host: changingHost{cilium: true}, track: true, want: unverified(byCilium)},
		{name: "Open vSwitch", found: dataplane.Found{Proxy: dataplane.OVS, Early: true}, want: unverified("Open vSwitch handles packets of pods before netfilter")},
		{
			name: "policies", host: changingHost{policies: []string{"Calico", "kube-router"}},
			want: unverified("policies of Calico and kube-router must let pods reach the fallback's servers, not only the agent"),
		},
		{name: "an engine that is gone", found: dataplane.Found{Policies: []string{"Calico"}}, want: works},
		{
			name: "an engine that cannot be read again", found: dataplane.Found{Policies: []string{"Calico"}}, host: changingHost{policiesErr: errors.New("interrupted")},
			want: unverified("policies of Calico must let pods reach the fallback's servers, not only the agent"),
		},
		{name: "exempt after the agent's rules", host: changingHost{notracks: notrack("", -300, true)}, track: true, want: works},
		{name: "exempt before them", host: changingHost{notracks: notrack("", -310, true)}, track: true, want: broken},
		{
			name: "may be exempt before them", host: changingHost{notracks: notrack("", -320, false)}, track: true,
			want: unverified("chain x may exempt their packets from conntrack"),
		},
		{name: "of the other family", host: changingHost{notracks: notrack("", -320, true)}, lease: "fd00::a", track: true, want: works},
		{
			name: "on a kernel without such rules of the agent", host: changingHost{notracks: notrack("", -300, true)}, track: true, want: broken,
			change: func(n *Node) { n.podsWay.backend.(*namedBackend).trackless = true },
		},
		{name: "iptables, in the same table", backend: legacy, host: changingHost{notracks: notrack(legacy, -300, true)}, track: true, want: works},
		{name: "iptables, in the other variant", backend: legacy, host: changingHost{notracks: notrack(dataplane.BackendIPTablesNFT, -300, true)}, track: true, want: broken},
		{name: "iptables, later in nftables", backend: legacy, host: changingHost{notracks: notrack("", -299, true)}, track: true, want: works},
		{
			name: "unread", host: changingHost{notracksErr: errors.New("too many")},
			want: unverified("rules that may exempt their packets from conntrack were not all read: too many"),
		},
		{
			name: "transparent", host: changingHost{notracks: notrack("", -320, true)}, mode: rules.Transparent, want: works,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			backend, lease := nft, "169.254.20.10"
			if tt.backend != "" {
				backend = tt.backend
			}
			if tt.lease != "" {
				lease = tt.lease
			}
			n := newWatchedNode(t, &tt.host, backend)
			n.podsWay.open(n.podsWay.backend, tt.found)
			r := fallbackRules()
			r.Mode = tt.mode
			n.podsWay.adapt(t.Context(), &r)
			if tt.change != nil {
				tt.change(n)
			}
			assert.Same(t, "way", tt.want, n.podsWay.of(leaseOf(lease)))
			assert.Same(t, "track", tt.track, r.Track)
		})
	}
}

// TestReadingsAreRare: a reading is followed by a pause of a minute, and of so many times as long as it took, unless the fallback changes.
func TestReadingsAreRare(t *testing.T) {
	t.Parallel()
	host := &changingHost{}
	n := newWatchedNode(t, host, dataplane.BackendNFTables)
	now := time.Unix(1_800_000_000, 0)
	n.podsWay.now = func() time.Time { return now }
	r := fallbackRules()
	for _, step := range []struct {
		name  string
		after time.Duration
		takes time.Duration
		want  int // readings so far
	}{
		{"first", 0, time.Millisecond, 1},
		{"soon", 59 * time.Second, 0, 1},
		{"after a minute", time.Second, 20 * time.Millisecond, 2},
		{"not long after one that took long", 3 * time.Minute, 0, 2},
		{"later", 30 * time.Second, time.Minute, 3},
		{"after one on a machine that stood still", 10 * time.Minute, 0, 4},
	} {
		now = now.Add(step.after)
		host.reading = func() { now = now.Add(step.takes) }
		n.podsWay.adapt(t.Context(), &r)
		assert.Same(t, step.name, step.want, host.readings)
	}
	r.Fallback = append(r.Fallback, netip.MustParseAddrPort("10.1.1.2:53"))
	n.podsWay.adapt(t.Context(), &r)
	assert.Same(t, "another fallback", 5, host.readings)
	r.Fallback = nil
	n.podsWay.adapt(t.Context(), &r)
	r = fallbackRules()
	r.Mode = rules.Transparent
	n.podsWay.adapt(t.Context(), &r)
	assert.Same(t, "no fallback, or none of the agent's", 5, host.readings)
	r.Excluded, r.Services = true, []netip.Addr{netip.MustParseAddr("10.96.0.10")}
	r.Fallback = append(r.Fallback, netip.MustParseAddrPort("10.1.1.3:53"))
	n.podsWay.adapt(t.Context(), &r)
	assert.Same(t, "an excluded Service", 6, host.readings)
	assert.Same(t, "destinations of its queries", r.Services, n.podsWay.flows.Addresses, cmpopts.EquateComparable(netip.Addr{}))
}
