// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

var _ intercept.Backend = (*Backend)(nil)

// applyCount is how often the same rules are applied.
const applyCount = 1_000

// TestApplyAgain applies the same rules repeatedly while leases are renewed and another
// program changes a table of its own.
func TestApplyAgain(t *testing.T) {
	t.Parallel()
	hosts := nodetest.Start(t, nodetest.Options{Pods: 1})
	b := newBackend(t, hosts.Node)
	r := linkLocalRules(central4())
	apply(t, b, r)
	renew(t, b, r)
	plain, before := ruleset(t, hosts.Node, "-s"), ruleset(t, hosts.Node, "-s", "-a") // with handles
	other := newBackend(t, hosts.Node)
	begin := time.Now()
	for i := range applyCount {
		renew(t, b, r) // a transaction increments the generation of the ruleset
		if i%2 == 0 {
			var tx batch
			tx.addTable("kube-proxy", 0)
			tx.deleteTable("kube-proxy")
			assert.NoError(t, other.writer.commit(&tx))
		}
		if apply(t, b, r) {
			t.Fatalf("Apply number %d of what is there changed something", i)
		}
	}
	t.Logf("%d of them took %v", applyCount, time.Since(begin))
	if diff := cmp.Diff(before, ruleset(t, hosts.Node, "-s", "-a")); diff != "" {
		t.Errorf("the rules changed (-before +after):\n%s", diff)
	}

	changed := linkLocalRules(netip.MustParseAddrPort("10.201.0.3:53"))
	for i := range 100 {
		if !apply(t, b, []rules.Rules{changed, r}[i%2]) {
			t.Fatal("an Apply of other rules changed nothing")
		}
	}
	if diff := cmp.Diff(plain, ruleset(t, hosts.Node, "-s")); diff != "" {
		t.Errorf("the rules grew (-before +after):\n%s", diff)
	}
}

// TestWatch checks that rules removed by another program are written again.
func TestWatch(t *testing.T) {
	t.Parallel()
	r := linkLocalRules(central4(), netip.MustParseAddrPort("[fd00:201::2]:53"))
	s := newHarness(t, r)
	r.Fallback = s.central()
	apply(t, s.backend, r)
	renew(t, s.backend, r)

	var calls atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changed := make(chan struct{}, 1)
	done := make(chan error, 1)
	go func() {
		done <- s.backend.Watch(ctx, func() {
			calls.Add(1)
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	<-changed // the call at the start
	for range 50 {
		renew(t, s.backend, r)
		apply(t, s.backend, r)
	}

	for _, harm := range [][]string{
		{"flush", "ruleset"}, {"delete", "table", "inet", fallbackTable}, {"flush", "chain", "inet", fallbackTable, chainFallback},
	} {
		begin := time.Now()
		if out, err := s.Node.Output(t.Context(), "nft", harm...); err != nil {
			t.Fatalf("nft %v: %v\n%s", harm, err, out)
		}
		s.expectAnswers(t, r, agentName) // other programs cannot remove the lease
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Fatalf("nft %v was not noticed", harm)
		}
		if !apply(t, s.backend, r) {
			t.Errorf("nft %v: nothing had to change", harm)
		}
		t.Logf("nft %v: repaired after %v", harm, time.Since(begin))
	}
	assert.NoError(t, s.backend.Release(t.Context(), keys(r), 0))
	s.expectAnswers(t, r, centralName)
	if n := calls.Load(); n > 25 { // 1, and a few for each removal, but none for our own 50 renewals
		t.Errorf("changed was called %d times", n)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	again := 0
	if err := s.backend.Watch(ctx, func() { again++ }); err != nil || again != 1 {
		t.Errorf("Watch again: %v, %d calls", err, again)
	}
}

// TestFallbackRemovedMeanwhile checks Apply while another program removes the fallback
// table all the time, also while Apply reads what it wrote.
func TestFallbackRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	hosts := nodetest.Start(t, nodetest.Options{Pods: 1})
	b, other := newBackend(t, hosts.Node), newBackend(t, hosts.Node)
	r := linkLocalRules(central4())
	for round := range 5 {
		var over atomic.Bool
		var group sync.WaitGroup
		group.Go(func() {
			for !over.Load() {
				var tx batch
				tx.deleteTable(fallbackTable)
				_ = other.writer.commit(&tx) // the table may not exist
			}
		})
		for range 5 {
			_, _ = b.Apply(t.Context(), r) // an error is fine: the table may be removed at any time
		}
		over.Store(true)
		group.Wait()
		apply(t, b, r)
		state, err := b.State(t.Context())
		assert.NoError(t, err)
		if !slices.Equal(state.Fallback, r.Fallback) {
			t.Fatalf("round %d: the fallback is %v after an Apply, want %v", round, state.Fallback, r.Fallback)
		}
	}
}

// TestRemove checks that the node is as before, several times.
func TestRemove(t *testing.T) {
	t.Parallel()
	hosts := nodetest.Start(t, nodetest.Options{Pods: 1})
	if out, err := hosts.Node.Output(t.Context(), "nft", "table inet firewall { chain c { type filter hook input priority 0; ct state new counter accept; }; }"); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	before := ruleset(t, hosts.Node, "-a")
	for i := range 8 { // every combination twice
		r := linkLocalRules(central4())
		if i%2 == 1 {
			r = transparentRules()
		}
		b := newBackend(t, hosts.Node)
		apply(t, b, r)
		renew(t, b, r)
		name := ""
		if i%4 < 2 {
			name = r.Owner
		}
		if i%4 == 2 { // as after a kill of the agent
			assert.NoError(t, b.Close())
			b = newBackend(t, hosts.Node)
			// A child that another test has forked has the sockets until it executes its program.
			for tries := 0; tries < 5000 && errors.Is(b.Remove(t.Context(), name), unix.EPERM); tries++ {
				time.Sleep(time.Millisecond)
			}
		}
		assert.NoError(t, b.Remove(t.Context(), name))
		if diff := cmp.Diff(before, ruleset(t, hosts.Node, "-a")); diff != "" {
			t.Fatalf("round %d left (-before +after):\n%s", i, diff)
		}
		if s, err := b.State(t.Context()); err != nil || s.Present || s.Count != 0 {
			t.Fatalf("State: %+v, %v", s, err)
		}
		assert.NoError(t, errors.Join(b.Remove(t.Context(), name), b.Close()))
	}
}

// TestTwoAgents stops an agent after its successor has started.
func TestTwoAgents(t *testing.T) {
	t.Parallel()
	r := linkLocalRules(central4(), netip.MustParseAddrPort("[fd00:201::2]:53"))
	s := newHarness(t, r)
	r.Fallback = s.central()
	apply(t, s.backend, r)
	renew(t, s.backend, r)

	newer, r2 := newBackend(t, s.Node), r
	r2.Owner = "b2"
	apply(t, newer, r2)
	s.expectAnswers(t, r, agentName) // the older agent still holds its lease
	renew(t, newer, r2)
	state, err := newer.State(t.Context())
	if err != nil || state.Owner != r2.Owner || len(state.Leases) != 2 {
		t.Errorf("State: %+v, %v", state, err)
	}
	if err := newer.Remove(t.Context(), ""); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "its agent is running") {
		t.Errorf("Remove of what belongs to a running agent: %v", err)
	}
	if err := s.backend.Remove(t.Context(), r.Owner); !errors.Is(err, rules.ErrOwned) {
		t.Errorf("Remove by the older agent: %v, want ErrOwned", err)
	}
	s.expectAnswers(t, r, agentName)
	assert.NoError(t, newer.Release(t.Context(), keys(r), 0))
	s.expectAnswers(t, r, centralName)
	if state, err = newer.State(t.Context()); err != nil || state.Owner != r2.Owner || len(state.Fallback) != 2 {
		t.Errorf("State: %+v, %v", state, err)
	}
	same := newBackend(t, s.Node)
	if _, err := same.Apply(t.Context(), r2); err == nil || !strings.Contains(err.Error(), "another process owns it") {
		t.Errorf("Apply under the name of an agent that runs: %v", err)
	}
}

// TestWithoutOwnedTables works as on kernels before 5.12.
func TestWithoutOwnedTables(t *testing.T) {
	t.Parallel()
	r := linkLocalRules(central4(), netip.MustParseAddrPort("[fd00:201::2]:53"))
	s := newHarness(t, r)
	r.Fallback = s.central()
	s.backend.ownerless = true
	apply(t, s.backend, r)
	renew(t, s.backend, r)
	s.expectAnswers(t, r, agentName)

	newer, r2 := newBackend(t, s.Node), r
	newer.ownerless, r2.Owner = true, "b2"
	apply(t, newer, r2)
	s.expectAnswers(t, r, agentName) // by the older agent's lease
	assert.NoError(t, s.backend.Release(t.Context(), keys(r), 0))
	if !apply(t, newer, r2) {
		t.Error("the older agent's table was not removed")
	}
	if all, err := newer.reader.listTables(); err != nil || len(all) != 2 {
		t.Errorf("tables: %v, %v", all, err)
	}
	s.expectAnswers(t, r, centralName)
}

// TestMissingCapability runs all methods with NET_ADMIN only, and with no capability.
// TestTrackNotSupported: a kernel without an option that only the rules for Cilium need gets all other rules.
func TestTrackNotSupported(t *testing.T) {
	t.Parallel()
	hosts := nodetest.Start(t, nodetest.Options{Pods: 1})
	b := newBackend(t, hosts.Node)
	r := linkLocalRules(central4())
	r.Track, r.MarkHost = true, true
	b.refuseTrack = fmt.Errorf("adding a rule to track-prerouting: %w", unix.ENOENT)
	if !apply(t, b, r) {
		t.Error("the first Apply changed nothing")
	}
	text := ruleset(t, hosts.Node)
	if strings.Contains(text, "chain track") || !strings.Contains(text, "chain mark") || !strings.Contains(text, "dnat") {
		t.Errorf("rules without those for conntrack:\n%s", text)
	}
	b.refuseTrack = nil
	if apply(t, b, r) {
		t.Error("the second Apply changed something")
	}
}

func TestMissingCapability(t *testing.T) {
	t.Parallel()
	hosts := nodetest.Start(t, nodetest.Options{Pods: 1})
	tests := []struct {
		name         string
		capabilities uint32
		want         error
	}{
		{name: "NET_ADMIN", capabilities: 1 << unix.CAP_NET_ADMIN},
		{name: "none", want: unix.EPERM},
	}
	for _, tt := range tests {
		got := make(chan error)
		go func() {
			// The thread without capabilities cannot return to its namespace. It ends with this
			// goroutine.
			runtime.LockOSThread()
			var failed error
			_ = hosts.Node.Do(func() error {
				capabilities := [2]unix.CapUserData{{Effective: tt.capabilities, Permitted: tt.capabilities}}
				if failed = unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &capabilities[0]); failed == nil {
					failed = fullLifecycle(t.Context())
				}
				return nil
			})
			got <- failed
		}()
		err := <-got
		if !errors.Is(err, tt.want) || err != nil && !strings.Contains(err.Error(), tt.name) && !strings.Contains(err.Error(), "NET_ADMIN") {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

// fullLifecycle calls all methods of a Backend on the calling thread.
func fullLifecycle(ctx context.Context) (err error) {
	b, err := New(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	r := linkLocalRules(central4())
	if _, err := b.Apply(ctx, r); err != nil {
		return err
	}
	watched, cancel := context.WithCancel(ctx)
	if err := b.Watch(watched, cancel); err != nil {
		return err
	}
	r.Fallback[0] = netip.MustParseAddrPort("10.201.0.3:53")
	_, again := b.Apply(ctx, r)
	_, state := b.State(ctx)
	return errors.Join(again, state, b.Renew(ctx, keys(r), longLease), b.Release(ctx, keys(r), longLease), b.Remove(ctx, r.Owner))
}

// TestClosed checks that Close ends waiting calls.
func TestClosed(t *testing.T) {
	t.Parallel()
	hosts := nodetest.Start(t, nodetest.Options{Pods: 1})
	b := newBackend(t, hosts.Node)
	r := linkLocalRules(central4())
	apply(t, b, r)
	err := b.Watch(t.Context(), func() { _ = b.Close() })
	if err == nil {
		t.Error("Watch of what is closed went well")
	}
	if err := b.Renew(t.Context(), keys(r), longLease); err == nil {
		t.Error("Renew of what is closed went well")
	}
	if left, err := newBackend(t, hosts.Node).reader.listTables(); err != nil || len(left) != 1 || !slices.Contains(slices.Collect(maps.Keys(left)), fallbackTable) {
		t.Errorf("left: %v, %v, want the fallback", left, err)
	}
}

// TestRenewDoesNotWait renews while an Apply waits.
func TestRenewDoesNotWait(t *testing.T) {
	t.Parallel()
	hosts := nodetest.Start(t, nodetest.Options{Pods: 1})
	b := newBackend(t, hosts.Node)
	r := linkLocalRules(central4())
	apply(t, b, r)
	b.applyMu.Lock()
	defer b.applyMu.Unlock()
	b.reader.mu.Lock()
	defer b.reader.mu.Unlock()
	renew(t, b, r) // must not wait for the Apply
}

func BenchmarkRenew(b *testing.B) {
	bench(b, func(backend *Backend, r rules.Rules) error { return backend.Renew(b.Context(), keys(r), longLease) })
}

func BenchmarkApplyUnchanged(b *testing.B) {
	bench(b, func(backend *Backend, r rules.Rules) error {
		_, err := backend.Apply(b.Context(), r)
		return err
	})
}

func BenchmarkApplyChanged(b *testing.B) {
	n := uint16(0)
	bench(b, func(backend *Backend, r rules.Rules) error {
		n++
		r.Admin = 9000 + n%2
		_, err := backend.Apply(b.Context(), r)
		return err
	})
}

func bench(b *testing.B, do func(*Backend, rules.Rules) error) {
	b.Helper()
	hosts := nodetest.Start(b, nodetest.Options{Pods: 1})
	var backend *Backend
	err := hosts.Node.Do(func() (err error) {
		backend, err = New(slog.New(slog.DiscardHandler))
		return err
	})
	assert.NoError(b, err)
	defer func() { _ = backend.Close() }()
	r := linkLocalRules(central4())
	if _, err := backend.Apply(b.Context(), r); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		assert.NoError(b, do(backend, r))
	}
}
