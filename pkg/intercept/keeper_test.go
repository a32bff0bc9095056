// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/iptables"
	"github.com/nodecache/node-cache/pkg/nftables"
	"github.com/nodecache/node-cache/pkg/rules"
)

// TestKeeper runs a Keeper with a real Prober on a real kernel.
func TestKeeper(t *testing.T) {
	t.Parallel()
	for _, k := range []struct {
		name  string
		open  func() (intercept.Backend, error)
		flush [][]string
	}{
		{"nftables", func() (intercept.Backend, error) { return nftables.New(slog.New(slog.DiscardHandler)) }, [][]string{{"nft", "flush", "ruleset"}}},
		{"iptables-nft", openIptables(iptables.Nft), flushIptables("-nft")},
		{"iptables-legacy", openIptables(iptables.Legacy), flushIptables("-legacy")},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			w := newKernelNode(t, k.open, k.flush)
			w.wait = 100 * time.Millisecond // do not wait long for a silent agent
			testKeeper(t, w)
		})
	}
}

func testKeeper(t *testing.T, w *kernelNode) {
	t.Helper()
	l := w.Layout()
	b := w.Open(t)
	defer func() {
		assert.NoError(t, b.Close())
	}()
	prober := &intercept.Prober{
		Port: l.Port, Token: Agent, // the servers answer with their names
		Dial: func(ctx context.Context, network string, addr netip.AddrPort) (conn net.Conn, err error) {
			err = w.hosts.Node.Do(func() error {
				conn, err = intercept.DialMarked(ctx, network, addr)
				return err
			})
			return conn, err
		},
	}
	lines := &logBuffer{}
	k, err := intercept.New(intercept.Config{
		Backend: b, Probe: prober.Probe, Now: time.Now, Lease: 3 * time.Second, Log: lines.logger(),
		Rules: rules.Rules{Owner: "ours", Addresses: l.Addresses, Port: l.Port, Admin: l.Admin, Fallback: l.Fallbacks},
	})
	assert.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("stats: %+v\nlog: %s", k.Stats(), lines)
		}
	}()
	here := []string{Agent}
	w.waitForServers(t, "without a lease", []string{Fallback(0), Fallback(1)})
	k.Start()
	w.waitForServers(t, "started", here)
	w.freeze(true)
	w.waitForServers(t, "wedged", []string{Fallback(0), Fallback(1)})
	w.freeze(false)
	w.waitForServers(t, "recovered", here)
	before := k.Stats().Changes
	w.Flush(t)
	flushed := time.Now()
	for k.Stats().Changes == before {
		if time.Since(flushed) > 30*time.Second {
			t.Fatal("flushed rules were not put back within 30 s")
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("flushed: rules put back after %s", time.Since(flushed).Round(time.Millisecond))
	w.waitForServers(t, "flushed", here)
	k.SetFallback(l.Fallbacks[:1])
	assert.NoError(t, k.Release(t.Context(), 0))
	w.waitForServers(t, "released, with another fallback", []string{Fallback(0)})
	assert.NoError(t, k.Remove(t.Context()))
	w.waitForServers(t, "removed", here)
	state, err := b.State(t.Context())
	if err != nil || state.Present {
		t.Errorf("the state after Remove is %+v (%v), want nothing", state, err)
	}
}

func (k *kernelNode) freeze(on bool) {
	for _, a := range k.agents {
		a.Pause(on)
	}
}

// waitForServers queries from a pod over UDP until the servers in want answer ten times
// in a row. It logs the time from the first of these answers.
func (k *kernelNode) waitForServers(t *testing.T, when string, want []string) {
	t.Helper()
	q := Query{From: Pod, Network: "udp", To: netip.AddrPortFrom(k.layout.Addresses[0], k.layout.Port)}
	begun := time.Now()
	since := begun
	for row := 0; row < 10; {
		c := k.Dial(t, q)
		who := c.Ask()
		c.Close()
		if slices.Contains(want, who) {
			if row++; row == 1 {
				since = time.Now()
			}
			continue
		}
		row = 0
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("%s: %s answers after 30 s, want one of %v", when, who, want)
		}
	}
	t.Logf("%s: %v answered after %s", when, want, since.Sub(begun).Round(time.Millisecond))
}
