// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/rules"
)

// meters ask at all addresses, from the pod and from the node, over UDP and TCP, 600 times a second in all.
func meters(t *testing.T, lab *nodetest.Network, r rules.Rules) (stop func() nodetest.Report) {
	t.Helper()
	const rate = 100
	var all []*nodetest.Meter
	for _, a := range r.Addresses {
		for _, h := range []*nodetest.Host{lab.Node, lab.Pods[0]} {
			m, err := nodetest.StartMeter(nodetest.MeterConfig{
				Host: h, Target: netip.AddrPortFrom(a, r.Port), Timeout: 3 * time.Second,
				Loads: []nodetest.Load{{Network: "udp", Rate: rate}, {Network: "udp", Fresh: true, Rate: rate / 4}, {Network: "tcp", Fresh: true, Rate: rate / 4}},
			})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, m)
		}
	}
	return func() nodetest.Report {
		var sum nodetest.Report
		var group sync.WaitGroup
		for _, m := range all {
			group.Go(func() { m.Stop() })
		}
		group.Wait()
		for _, m := range all {
			sum.Outcomes = append(sum.Outcomes, m.Report().Outcomes...)
		}
		return sum
	}
}

// expectAll checks that each query was answered, and by one server only.
func expectAll(t *testing.T, report nodetest.Report, who string) {
	t.Helper()
	t.Logf("%d queries, by %v", report.Sent(), report.By())
	if report.Sent() == 0 || report.Lost() > 0 || report.By()[who] != report.Sent() {
		t.Errorf("not all were answered by the %s: %s", who, report)
	}
}

func TestRenewalsLeakNothing(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			lab, b := openLab(t, v)
			r := linkLocal()
			servers(t, lab, r)
			apply(t, b, r)
			renew(t, b, 3*time.Second)
			stop := meters(t, lab, r)
			for range 300 {
				renew(t, b, 3*time.Second)
				time.Sleep(10 * time.Millisecond)
			}
			renew(t, b, time.Minute) // of the last queries
			expectAll(t, stop(), "agent")
			for _, a := range r.Addresses {
				flows, err := nodetest.ConntrackOf(lab.Node, netip.AddrPortFrom(a, r.Port))
				if err != nil || len(flows) != 0 {
					t.Errorf("%d connections of %s are tracked, %v; want none", len(flows), a, err)
				}
			}
		})
	}
}

// Rules change while queries go to the fallback: each meets the old ones or the new ones.
func TestChangesHaveNoGap(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			lab, b := openLab(t, v)
			all := linkLocal()
			all.Fallback = addrPorts("10.201.0.2:5301", "10.201.0.2:5302", "[fd00:201::2]:5301", "[fd00:201::2]:5302")
			servers(t, lab, all)
			one, other := all, all
			one.Fallback = addrPorts("10.201.0.2:5301", "[fd00:201::2]:5301")
			other.Fallback = addrPorts("10.201.0.2:5302", "[fd00:201::2]:5302")
			apply(t, b, all)
			stop := meters(t, lab, all)
			for range 10 {
				for _, r := range []rules.Rules{one, other, all} {
					if !apply(t, b, r) {
						t.Error("other targets changed nothing")
					}
				}
			}
			expectAll(t, stop(), "fallback")
		})
	}
}

// Another program takes all rules away while clients ask: the watch says so.
func TestFlushIsHealed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		variant Variant
		flush   []string
	}{
		{Nft, []string{"iptables-nft -t raw -F"}},
		{Nft, []string{"nft flush ruleset"}},
		{Legacy, []string{"iptables-legacy -t raw -F"}},
		{Legacy, []string{"iptables-legacy -t nat -F", "iptables-legacy -t raw -F", "iptables-legacy -t filter -F"}},
		{Legacy, []string{"ip6tables-legacy -t nat -D PREROUTING 1"}},
	} {
		t.Run(string(tc.variant)+" "+tc.flush[0], func(t *testing.T) {
			t.Parallel()
			lab, b := openLab(t, tc.variant)
			r := linkLocal()
			servers(t, lab, r)
			apply(t, b, r)
			want := tablesOf(t, lab)

			ctx, cancel := context.WithCancel(t.Context())
			var group sync.WaitGroup
			defer group.Wait()
			defer cancel()
			told := make(chan struct{}, 1)
			group.Go(func() {
				if err := b.Watch(ctx, func() {
					select {
					case told <- struct{}{}:
					default:
					}
				}); err != nil {
					t.Errorf("watching: %v", err)
				}
			})
			<-told // at the start
			if apply(t, b, r) {
				t.Error("nothing happened, and yet rules changed")
			}
			renew(t, b, time.Minute)
			stop := meters(t, lab, r)
			begin := time.Now()
			for _, command := range tc.flush {
				run(t, lab, command)
			}
			for changed := false; !changed; {
				select {
				case <-told:
					changed = apply(t, b, r)
				case <-time.After(10 * time.Second):
					t.Fatal("the watch says nothing")
				}
			}
			took := time.Since(begin)
			report := stop()
			t.Logf("healed in %s; of %d queries %d lost, by %v", took, report.Sent(), report.Lost(), report.By())
			if took > 10*time.Second { // 0.5 to 0.7 s on a machine that does little else
				t.Errorf("it took %s, want at most 10 s", took)
			}
			if report.Count(nodetest.Lost) > 0 {
				t.Errorf("queries were lost: %s", report)
			}
			if err := b.Release(t.Context(), r.Addresses, 0); err != nil {
				t.Fatal(err)
			}
			// A deleted jump comes back in front, where it was.
			eventually(t, 10*time.Second, "as before", func() bool { return tablesOf(t, lab) == want })
		})
	}
}

// Somebody holds the lock: rules wait for it and say so; leases and queries do not.
func TestLockHeld(t *testing.T) {
	t.Parallel()
	lab, b := openLab(t, Legacy)
	r := linkLocal()
	servers(t, lab, r)
	apply(t, b, r)
	renew(t, b, 3*time.Second)
	release := lock(t, lab)
	stop := meters(t, lab, r)

	other := r
	other.Fallback = r.Fallback[:1]
	failed := make(chan error, 1)
	begin := time.Now()
	go func() {
		_, err := b.Apply(t.Context(), other)
		failed <- err
	}()
	renewals := 0
	var err error
	for waiting := true; waiting; {
		renew(t, b, 3*time.Second)
		renewals++
		if _, err := b.State(t.Context()); err != nil {
			t.Errorf("reading the state: %v", err)
		}
		select {
		case err = <-failed:
			waiting = false
		case <-time.After(20 * time.Millisecond):
		}
	}
	t.Logf("Apply gave up after %s: %v; %d renewals meanwhile", time.Since(begin), err, renewals)
	if !errors.Is(err, ErrLocked) {
		t.Errorf("Apply: %v, want ErrLocked", err)
	}
	if renewals < 10 {
		t.Errorf("%d renewals while Apply waited", renewals)
	}
	renew(t, b, time.Minute) // of the last queries
	expectAll(t, stop(), "agent")
	if err := b.Release(t.Context(), r.Addresses, 0); err != nil {
		t.Errorf("releasing: %v", err)
	}
	if err := b.Remove(t.Context(), r.Owner); !errors.Is(err, ErrLocked) {
		t.Errorf("Remove: %v, want ErrLocked", err)
	}
	if s, err := b.State(t.Context()); err != nil || s.Owner != r.Owner || s.Count == 0 || len(s.Leases) != 0 {
		t.Errorf("state %+v, %v; want the rules still there and owned, not leased", s, err)
	}
	release()
	if !apply(t, b, other) {
		t.Error("the rules that waited changed nothing")
	}
	if err := b.Remove(t.Context(), r.Owner); err != nil {
		t.Errorf("Remove: %v", err)
	}
}

// IPVS has the service's address on a link of the node: the rewriting comes before.
func TestServiceAddressOnALink(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			lab, b := openLab(t, v)
			r := transparent()
			servers(t, lab, r)
			for _, s := range r.Services {
				if err := lab.Node.AddAddress(s); err != nil {
					t.Fatal(err)
				}
			}
			apply(t, b, r)
			renew(t, b, time.Minute)
			for _, s := range r.Services {
				for _, h := range []*nodetest.Host{lab.Node, lab.Pods[0]} {
					for _, network := range []string{"udp", "tcp"} {
						if who, err := nodetest.Ask(h, netip.AddrPortFrom(s, r.Port), network); who != "agent" {
							t.Errorf("%s asks %s over %s: %q answers, %v", h.Name, s, network, who, err)
						}
					}
				}
			}
		})
	}
}

// lock takes the lock of the node's iptables-legacy.
func lock(t *testing.T, lab *nodetest.Network) (release func()) {
	t.Helper()
	file, err := os.OpenFile(lab.Node.XtablesLock(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() { _ = file.Close() })
	t.Cleanup(release)
	return release
}

// A session with an agent that is gone ends at once; one with the fallback goes on.
func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		for _, r := range []rules.Rules{linkLocal(), transparent()} {
			t.Run(string(v)+" "+r.Mode.String(), func(t *testing.T) {
				t.Parallel()
				lab, b := openLab(t, v)
				servers(t, lab, r)
				apply(t, b, r)
				renew(t, b, time.Minute)
				m, err := nodetest.StartMeter(nodetest.MeterConfig{
					Host: lab.Pods[0], Target: netip.AddrPortFrom(r.Leases()[0].Key, r.Port), Loads: []nodetest.Load{{Network: "tcp", Rate: 100}},
				})
				if err != nil {
					t.Fatal(err)
				}
				if _, ok := m.Await("agent", time.Time{}, 5*time.Second); !ok {
					t.Error("the session was never the agent's")
				}
				keys := []netip.Addr{r.Leases()[0].Key}
				if err := b.Release(t.Context(), keys, 0); err != nil {
					t.Fatal(err)
				}
				eventually(t, 5*time.Second, "a session ended", func() bool {
					return m.Report().Count(nodetest.Reset)+m.Report().Count(nodetest.Refused) > 0
				})
				report := m.Stop()
				if report.Count(nodetest.Lost) > 0 {
					t.Errorf("queries were lost, want them refused: %s", report)
				}
			})
		}
	}
}

func TestDrops(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			lab, b := openLab(t, v)
			run(t, lab, "iptables-"+string(v)+" -A INPUT -p udp --dport 777 -m comment --comment no-j-ACCEPT -j DROP")
			run(t, lab, "ip6tables-"+string(v)+" -P INPUT DROP")
			before, err := b.Drops(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, to := range []string{"10.201.0.1:777", "[fd00:201::1]:777"} {
				c, err := lab.Pods[0].Dial(t.Context(), "udp", to)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.Write([]byte("hello")); err != nil {
					t.Error(err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
			rule := "iptables -t filter -A INPUT -p udp -m udp --dport 777 -m comment --comment no-j-ACCEPT -j DROP"
			policy := "ip6tables -t filter -P INPUT DROP"
			eventually(t, 5*time.Second, "two drops counted", func() bool {
				after, err := b.Drops(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return after[rule] == before[rule]+1 && after[policy] > before[policy]
			})
			if len(before) != 2 {
				t.Errorf("rules that drop are %v, want two", before)
			}
		})
	}
}

// The names of rights and modules that are missing.
func TestMissingCapability(t *testing.T) {
	t.Parallel()
	if os.Getenv("IPTABLES_TEST_RIGHTS") != "" {
		b, err := New(Config{Variant: Variant(os.Getenv("IPTABLES_TEST_RIGHTS"))})
		if err == nil {
			t.Fatalf("there is a backend: %s", b)
		}
		t.Logf("error: %v", err)
		return
	}
	for _, right := range []string{"NET_ADMIN", "NET_RAW"} {
		for _, v := range variants() {
			t.Run(right+" "+string(v), func(t *testing.T) {
				t.Parallel()
				lab := nodetest.Start(t, nodetest.Options{Pods: 1})
				name := "-" + strings.ToLower(right)
				cmd := lab.Node.Command(t.Context(), "setpriv", "--bounding-set", name, "--inh-caps", name, "--",
					os.Args[0], "-test.run=^TestMissingCapability$", "-test.v")
				cmd.Env = append(cmd.Env, "IPTABLES_TEST_RIGHTS="+string(v))
				out, err := cmd.CombinedOutput()
				if err != nil || !strings.Contains(string(out), "it needs the capability "+right) {
					t.Errorf("%v: want the missing capability named:\n%s", err, out)
				}
			})
		}
	}
}
