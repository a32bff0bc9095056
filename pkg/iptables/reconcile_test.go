// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

func TestManyReconciles(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			hosts, b := openNode(t, v)
			r := linkLocal()
			if !apply(t, b, r) {
				t.Error("the first Apply changed nothing")
			}
			want := tablesOf(t, hosts)

			before, begin := b.runs(), time.Now()
			const many = 1000
			for range many {
				if apply(t, b, r) {
					t.Fatal("the same rules again were a change")
				}
			}
			took, ran := time.Since(begin), b.runs()-before
			t.Logf("%d reconciles: %s each, %d programs in all", many, took/many, ran)
			// One full read each half minute, of 26 programs at most.
			if most := 26 * int64(took/maxReadAge+1); ran > most {
				t.Errorf("%d programs were run, want at most %d", ran, most)
			}

			b.own.now, b.other.now = nil, nil // each read is a full one
			before, begin = b.runs(), time.Now()
			const full = 4
			for range full {
				if apply(t, b, r) {
					t.Fatal("the same rules again were a change")
				}
			}
			t.Logf("%d full reads: %s and %d programs each", full, time.Since(begin)/full, (b.runs()-before)/full)
			if diff := cmp.Diff(want, tablesOf(t, hosts)); diff != "" {
				t.Errorf("tables (-before +after):\n%s", diff)
			}
		})
	}
}

// A node with rules of others: in all tables, of all hooks, with chains, policies and
// jumps where we hang ours.
const foreign = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -j RETURN
COMMIT
*raw
-A PREROUTING -p tcp -m tcp --dport 9 -j DROP
-A OUTPUT -p udp -m udp --dport 9 -j CT --notrack
COMMIT
*filter
:FIREWALL - [0:0]
-A INPUT -j FIREWALL
-A OUTPUT -j FIREWALL
-A FIREWALL -p tcp -m tcp --dport 9 -j DROP
-P FORWARD ACCEPT
COMMIT
*mangle
-A FORWARD -p tcp -m tcp --dport 9 -j DROP
COMMIT
`

// restore writes rules into both variants' tables of a node, or into one's.
func restore(tb testing.TB, hosts *nodetest.Network, text string, programs ...string) {
	tb.Helper()
	for _, p := range programs {
		cmd := hosts.Node.Command(tb.Context(), p, "--noflush")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			tb.Fatalf("%s: %v\n%s", p, err, out)
		}
	}
}

func restorers(v Variant) []string {
	return []string{"iptables-" + string(v) + "-restore", "ip6tables-" + string(v) + "-restore"}
}

// TestRemoveRestoresTheNode writes and removes rules many times, by agents that remove them and by agents that are
// killed. The node is then as before.
func TestRemoveRestoresTheNode(t *testing.T) {
	t.Parallel()
	times := proctest.OrdinaryOrSoak(4, 12) // every combination once, or three times
	for _, v := range variants() {
		for name, prepare := range map[string]string{"of others' rules": foreign, "bare": ""} {
			t.Run(string(v)+" "+name, func(t *testing.T) {
				t.Parallel()
				hosts, b := openNode(t, v)
				restore(t, hosts, prepare, restorers(v)...)
				if v == Legacy && prepare == "" {
					// The kernel makes an old table when it is first named, and
					// never takes it away: they are there from the beginning.
					restore(t, hosts, "*raw\nCOMMIT\n*nat\nCOMMIT\n*filter\nCOMMIT\n", restorers(v)...)
				}
				want := tablesOf(t, hosts)
				for i := range times {
					r := linkLocal()
					if i%2 == 1 {
						r = transparent()
					}
					apply(t, b, r)
					renew(t, b)
					owner := r.Owner
					if i%4 > 1 { // another program cleans up after one that was killed
						b, owner = open(t, hosts, Config{Variant: v, Now: time.Now, LockWait: time.Second}), ""
					}
					if err := b.Remove(t.Context(), owner); err != nil {
						t.Fatalf("removing, time %d: %v", i, err)
					}
					if i > 2 && i < times-3 {
						continue // the comparison takes longer than all else
					}
					if diff := cmp.Diff(want, tablesOf(t, hosts)); diff != "" {
						t.Fatalf("tables after time %d (-before +after):\n%s", i, diff)
					}
				}
			})
		}
	}
}

// TestForeignRulesStay: rules of other programs stay unchanged while our rules exist.
func TestForeignRulesStay(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			hosts, b := openNode(t, v)
			restore(t, hosts, foreign, restorers(v)...)
			save := func() string { return run(t, hosts, "iptables-"+string(v)+"-save") }
			others := func(text string) (list []string) {
				for line := range strings.Lines(text) {
					if !strings.HasPrefix(line, "#") && !strings.Contains(line, "NODE-CACHE") {
						list = append(list, counters.ReplaceAllString(line, "[]"))
					}
				}
				return list
			}
			want := others(save())
			apply(t, b, linkLocal())
			got := save()
			if diff := cmp.Diff(want, others(got)); diff != "" {
				t.Errorf("others' rules (-before +after):\n%s", diff)
			}
			if n := strings.Count(got, "-j NODE-CACHE-"); n != 7 {
				t.Errorf("%d jumps to our chains, want 7:\n%s", n, got)
			}
		})
	}
}

// TestJumpsAreRepaired: if kube-proxy inserts its jump before ours, ours moves to the front again. A duplicate jump is
// removed.
func TestJumpsAreRepaired(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			hosts, b := openNode(t, v)
			apply(t, b, transparent())
			restore(t, hosts, "*nat\n:KUBE-SERVICES - [0:0]\n-I PREROUTING 1 -j KUBE-SERVICES\n-A OUTPUT -j NODE-CACHE-DNAT\n-A OUTPUT -j NODE-CACHE-DNAT\nCOMMIT\n"+
				"*raw\n-I PREROUTING 1 -p tcp -m tcp --dport 9 -j DROP\nCOMMIT\n", restorers(v)...)
			if !apply(t, b, transparent()) {
				t.Error("nothing had to change")
			}
			want := "-A OUTPUT -j NODE-CACHE-DNAT\n-A PREROUTING -j NODE-CACHE-DNAT\n"
			for i := range b.own.last {
				jumps := ""
				for _, line := range b.own.last[i].lines["nat"] {
					if strings.Contains(line, " -j NODE-CACHE-") {
						jumps += line + "\n"
					}
				}
				assert.Same(t, fmt.Sprintf("family %d: jumps", i), want, jumps)
			}
			saved := run(t, hosts, "iptables-"+string(v)+"-save -t raw")
			if strings.Index(saved, "--dport 9 -j DROP") > strings.Index(saved, "-A PREROUTING -j NODE-CACHE-PRE") {
				t.Errorf("another program's rule does not stay in front:\n%s", saved)
			}
			if apply(t, b, transparent()) {
				t.Error("the second Apply changed something")
			}
		})
	}
}

// TestJumpsAheadOfCilium: Cilium puts its jumps before ours again, as when it starts. Without conntrack no answer of the fallback
// reaches a pod, until the next Apply.
func TestJumpsAheadOfCilium(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			hosts, b := openNode(t, v)
			assert.NoError(t, nodetest.ImitateCilium(t.Context(), hosts.Node, string(v), true))
			r := linkLocal()
			r.Track, r.MarkHost = true, true
			servers(t, hosts, r)
			apply(t, b, r)
			fromFallback := func() (n int) {
				for _, a := range r.Addresses {
					for _, network := range []string{"udp", "tcp"} {
						who, _ := nodetest.Ask(hosts.Pods[0], netip.AddrPortFrom(a, r.Port), network)
						if who == "fallback" {
							n++
						}
					}
				}
				return n
			}
			assert.Same(t, "answers of the fallback", 4, fromFallback())
			for _, program := range []string{"iptables-", "ip6tables-"} {
				for _, line := range nodetest.CiliumFeeders() {
					run(t, hosts, program+string(v)+" "+strings.Replace(line, "-I ", "-D ", 1))
					run(t, hosts, program+string(v)+" "+line)
				}
			}
			assert.Same(t, "answers of the fallback behind Cilium's jumps", 0, fromFallback())
			b.own.now = nil // as after maxReadAge: the kernel's counts of rules are the same
			if !apply(t, b, r) {
				t.Error("nothing had to change")
			}
			assert.Same(t, "answers of the fallback after the repair", 4, fromFallback())
			if apply(t, b, r) {
				t.Error("the second Apply changed something")
			}
		})
	}
}

// TestOtherVariantIsCleared: an agent with the other variant removes the rules of its predecessor.
func TestOtherVariantIsCleared(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			hosts, b := openNode(t, v)
			apply(t, b, linkLocal())
			other := Legacy
			if v == Legacy {
				other = Nft
			}
			next := open(t, hosts, Config{Variant: other, Now: time.Now})
			if s, err := next.State(t.Context()); err != nil || s.Count == 0 || len(s.Fallback) != 4 {
				t.Errorf("the next agent reads %+v, %v; want the rules of the other variant", s, err)
			}
			apply(t, next, linkLocal())
			for _, program := range []string{"iptables-", "ip6tables-"} {
				if out := run(t, hosts, program+string(v)+"-save"); strings.Contains(out, "NODE-CACHE") {
					t.Errorf("left behind:\n%s", out)
				}
				if out := run(t, hosts, program+string(other)+"-save"); !strings.Contains(out, "NODE-CACHE") {
					t.Errorf("%s%s has no rules", program, other)
				}
			}
		})
	}
}

func TestVariantOfNode(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name       string
		nft, old   string // what is there
		want       Variant
		wantReason string
	}{
		{"bare", "", "", Nft, "with no sign of iptables-legacy"},
		{"kube-proxy in legacy", "", "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n", Legacy, "this node uses iptables-legacy"},
		{"kube-proxy in nft", "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n", "", Nft, "this node uses iptables-nft"},
		{"kubelet in legacy", "", "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n", Legacy, "this node uses iptables-legacy"},
		{"hint in nft", "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n", "", Nft, "this node uses iptables-nft"},
		{"kube-proxy weighs more than a hint", "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n", "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n", Legacy, "this node uses iptables-legacy"},
		{"a table in legacy", "", "*nat\n:DOCKER - [0:0]\nCOMMIT\n", Legacy, "because of its tables"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			hosts := nodetest.Start(t, nodetest.Options{Pods: 1})
			restore(t, hosts, tc.nft, restorers(Nft)[0])
			restore(t, hosts, tc.old, restorers(Legacy)[0])
			b := open(t, hosts, Config{})
			if b.String() != "iptables-"+string(tc.want) || !strings.HasSuffix(b.Reason(), tc.wantReason) {
				t.Errorf("%s because %q, want %s because %q", b, b.Reason(), tc.want, tc.wantReason)
			}
		})
	}
}
