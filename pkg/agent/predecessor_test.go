// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/rules"
)

// left is a kernel with the rules of a former agent.
func left(t *testing.T, fallback ...netip.AddrPort) *intercept.Fake {
	t.Helper()
	f := intercept.NewFake(time.Now)
	f.Overwrite(rules.Rules{Owner: "former", Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: 53, Fallback: fallback})
	return f
}

// renew has an agent renew a lease on key.
func renew(t *testing.T, f *intercept.Fake, key netip.Addr) {
	t.Helper()
	b := f.Open()
	if _, err := b.Apply(t.Context(), *f.Rules()); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			_ = b.Renew(t.Context(), []netip.Addr{key}, 3*time.Second)
			select {
			case <-stop:
				return
			case <-ticker.C:
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
	})
	until(t, "the lease is held", func() bool {
		s, err := b.State(t.Context())
		return err == nil && len(s.Leases) > 0
	})
}

func TestRulesOfAFormerAgent(t *testing.T) {
	t.Parallel()
	fallback := netip.MustParseAddrPort("10.0.0.7:53")
	for _, test := range []struct {
		name   string
		change func(*config.Config)
		former string
		stay   bool
		other  netip.Addr // whose lease somebody renews
	}{
		{name: "of another backend", change: func(*config.Config) {}, former: backendIPTables},
		{
			name: "of a backend that is not used any more", former: dataplane.BackendNFTables,
			change: func(c *config.Config) { c.Intercept.Manage = false },
		},
		{
			name: "of iptables, with no rules wanted", former: backendIPTables,
			change: func(c *config.Config) { c.Intercept.Manage = false },
		},
		{
			name: "of one that lives at another address", former: dataplane.BackendNFTables, stay: true,
			change: func(c *config.Config) { c.Intercept.Manage = false }, other: netip.MustParseAddr("169.254.20.11"),
		},
		{
			name: "with a lease on an address that this one has", former: dataplane.BackendNFTables,
			change: func(c *config.Config) { c.Intercept.Manage = false }, other: netip.MustParseAddr("127.0.0.1"),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m, cfg := newFakeHost(), nodeConfig(t)
			cfg.Listen.Addresses = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
			test.change(&cfg)
			former := left(t, fallback)
			m.former = map[string]*intercept.Fake{test.former: former}
			if test.other.IsValid() {
				renew(t, former, test.other)
			}
			a := agentOnHost(t, m, cfg)
			runNode(t, a)
			until(t, "the agent is ready", func() bool { return a.notReady() == nil })
			if !test.stay {
				until(t, "the former agent's rules are gone", func() bool { return former.Rules() == nil })
			} else if former.Rules() == nil {
				t.Error("the rules of an agent that lives are gone")
			}
		})
	}
}

// TestFormerRulesStayUntilThereAreNew has a crash in between leave the node with some.
func TestFormerRulesStayUntilThereAreNew(t *testing.T) {
	t.Parallel()
	m, former := newFakeHost(), left(t, netip.MustParseAddrPort("10.0.0.7:53"))
	m.former = map[string]*intercept.Fake{backendIPTables: former}
	unblock := m.kernel.Block(intercept.CallApply)
	a := agentOnHost(t, m, nodeConfig(t))
	runNode(t, a)
	until(t, "rules are being written", func() bool { return m.kernel.Calls().Started[intercept.CallApply] > 0 })
	if !answers(t, a) {
		t.Error("an agent that waits for a lock does not answer")
	}
	if former.Rules() == nil {
		t.Error("the former rules are gone before there are others")
	}
	former.Fail(intercept.CallRemove, 1, errors.New("somebody holds the lock"))
	unblock()
	until(t, "removing was tried", func() bool { return former.Calls().Started[intercept.CallRemove] == 1 })
	m.kernel.Flush() // a reason to write rules again
	until(t, "the former rules are gone", func() bool { return former.Rules() == nil })
}

// TestFallbackOfAnotherBackend is good until a newer one is known.
func TestFallbackOfAnotherBackend(t *testing.T) {
	t.Parallel()
	fallback := netip.MustParseAddrPort("10.0.0.7:53")
	m, cfg := newFakeHost(), nodeConfig(t)
	cfg.Intercept.Fallback = config.Fallback{Central: true}
	m.former = map[string]*intercept.Fake{backendIPTables: left(t, fallback)}
	a := agentOnHost(t, m, cfg)
	runNode(t, a)
	until(t, "rules with the former fallback", func() bool {
		r := m.kernel.Rules()
		return r != nil && slices.Equal(r.Fallback, []netip.AddrPort{fallback})
	})
}

func TestFallbackNone(t *testing.T) {
	t.Parallel()
	m, cfg := newFakeHost(), nodeConfig(t)
	m.kernel = left(t, netip.MustParseAddrPort("10.0.0.7:53"))
	cfg.Intercept.Fallback = config.Fallback{}
	a := agentOnHost(t, m, cfg)
	runNode(t, a)
	none := func() bool {
		r := m.kernel.Rules()
		return r != nil && r.Owner == a.token && len(r.Fallback) == 0
	}
	until(t, "rules without a fallback", none)
	cfg.Intercept.Fallback.Addresses = []netip.AddrPort{netip.MustParseAddrPort("10.0.0.9:53")}
	a.Reload(cfg, nil)
	until(t, "a reload gives one", func() bool { return slices.Equal(m.kernel.Rules().Fallback, cfg.Intercept.Fallback.Addresses) })
	cfg.Intercept.Fallback = config.Fallback{}
	a.Reload(cfg, nil)
	until(t, "a reload takes it", none)
}
