// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// left is a kernel with the rules of a predecessor.
func left(t *testing.T, fallback ...netip.AddrPort) *intercepttest.Fake {
	t.Helper()
	f := intercepttest.NewFake(time.Now)
	f.Overwrite(rules.Rules{Owner: "predecessor", Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: 53, Fallback: fallback})
	return f
}

// renew has an agent renew a lease on key.
func renew(t *testing.T, f *intercepttest.Fake, key netip.Addr) {
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

func TestRulesOfPredecessor(t *testing.T) {
	t.Parallel()
	fallback := netip.MustParseAddrPort("10.0.0.7:53")
	for _, test := range []struct {
		name   string
		change func(*config.Config)
		old    string
		stay   bool
		other  netip.Addr // whose lease another agent renews
	}{
		{name: "of another backend", change: func(*config.Config) {}, old: "iptables"},
		{
			name: "of a backend that is not used any more", old: dataplane.BackendNFTables,
			change: func(c *config.Config) { c.Intercept.Manage = false },
		},
		{
			name: "of iptables, with no rules wanted", old: "iptables",
			change: func(c *config.Config) { c.Intercept.Manage = false },
		},
		{
			name: "of an agent that runs at another address", old: dataplane.BackendNFTables, stay: true,
			change: func(c *config.Config) { c.Intercept.Manage = false }, other: netip.MustParseAddr("169.254.20.11"),
		},
		{
			name: "with a lease on an address of this agent", old: dataplane.BackendNFTables,
			change: func(c *config.Config) { c.Intercept.Manage = false }, other: netip.MustParseAddr("127.0.0.1"),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m, cfg := newFakeHost(), nodeConfig(t)
			cfg.Listen.Addresses = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
			test.change(&cfg)
			old := left(t, fallback)
			m.others = map[string]*intercepttest.Fake{test.old: old}
			if test.other.IsValid() {
				renew(t, old, test.other)
			}
			serveOnHost(t, m, cfg)
			if !test.stay {
				until(t, "the predecessor's rules are gone", func() bool { return old.Rules() == nil })
			} else if old.Rules() == nil {
				t.Error("the rules of a running agent are gone")
			}
		})
	}
}

// TestOldRulesStayUntilThereAreNew checks that a crash in between leaves the node with rules.
func TestOldRulesStayUntilThereAreNew(t *testing.T) {
	t.Parallel()
	m, old := newFakeHost(), left(t, netip.MustParseAddrPort("10.0.0.7:53"))
	m.others = map[string]*intercepttest.Fake{"iptables": old}
	unblock := m.kernel.Block(intercepttest.CallApply)
	a := agentOnHost(t, m, nodeConfig(t))
	runNode(t, a)
	until(t, "rules are being written", func() bool { return m.kernel.Calls().Started[intercepttest.CallApply] > 0 })
	if !answers(t, a) {
		t.Error("an agent that waits for a lock does not answer")
	}
	if old.Rules() == nil {
		t.Error("the old rules are gone before the new ones are written")
	}
	old.Fail(intercepttest.CallRemove, 1, errors.New("another process holds the lock"))
	unblock()
	until(t, "removing was tried", func() bool { return old.Calls().Started[intercepttest.CallRemove] == 1 })
	m.kernel.Flush() // a reason to write rules again
	until(t, "the old rules are gone", func() bool { return old.Rules() == nil })
}

// TestFallbackOfAnotherBackend uses the fallback of another backend's rules until a newer one is known.
func TestFallbackOfAnotherBackend(t *testing.T) {
	t.Parallel()
	fallback := netip.MustParseAddrPort("10.0.0.7:53")
	m, cfg := newFakeHost(), nodeConfig(t)
	cfg.Intercept.Fallback = config.Fallback{Central: true}
	m.others = map[string]*intercepttest.Fake{"iptables": left(t, fallback)}
	a := agentOnHost(t, m, cfg)
	runNode(t, a)
	until(t, "rules with the old fallback", func() bool {
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
	cfg.Intercept.Lease = time.Minute
	reload(t, a, cfg)
	if got := a.Config().Intercept.Lease; got != 3*time.Second {
		t.Errorf("a reload made the lease %s, want it to need a restart", got)
	}
	until(t, "a reload gives one", func() bool { return slices.Equal(m.kernel.Rules().Fallback, cfg.Intercept.Fallback.Addresses) })
	cfg.Intercept.Fallback = config.Fallback{}
	reload(t, a, cfg)
	until(t, "a reload takes it", none)
}
