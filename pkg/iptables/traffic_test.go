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

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// A load queries the agent's addresses, and as control a server that no rule concerns.
type load struct{ agent, control []*nodetest.Meter }

// startLoad queries all addresses of r from the pod and from the node, over UDP and TCP, 600 times a second in all. The
// control gets half as many queries at the same time: what it loses, the machine loses.
func startLoad(t *testing.T, hosts *nodetest.Network, r rules.Rules) *load {
	t.Helper()
	const rate = 100
	l := &load{}
	start := func(h *nodetest.Host, to netip.AddrPort) *nodetest.Meter {
		m, err := nodetest.StartMeter(nodetest.MeterConfig{
			Host: h, Target: to, Timeout: 30 * time.Second, // a late answer is the machine's, not the rules'
			Loads: []nodetest.Load{{Network: "udp", Rate: rate}, {Network: "udp", Fresh: true, Rate: rate / 4}, {Network: "tcp", Fresh: true, Rate: rate / 4}},
		})
		assert.NoError(t, err)
		return m
	}
	control := netip.AddrPortFrom(hosts.Upstream.IPv4, 5399)
	serve(t, hosts.Upstream, control, "control")
	for _, h := range []*nodetest.Host{hosts.Node, hosts.Pods[0]} {
		l.control = append(l.control, start(h, control))
		for _, a := range r.Addresses {
			l.agent = append(l.agent, start(h, netip.AddrPortFrom(a, r.Port)))
		}
	}
	return l
}

// stop ends the load and returns its report, and how many queries may be lost on a machine as busy as the control found it.
func (l *load) stop() (report nodetest.Report, mayLose int) {
	sum := func(all []*nodetest.Meter) (sum nodetest.Report) {
		for _, m := range all {
			sum.Outcomes = append(sum.Outcomes, m.Stop().Outcomes...)
		}
		return sum
	}
	var group sync.WaitGroup
	for _, m := range append(l.agent, l.control...) {
		group.Go(func() { m.Stop() })
	}
	group.Wait()
	report, control := sum(l.agent), sum(l.control)
	if control.Sent() > 0 {
		mayLose = 3 * control.Lost() * report.Sent() / control.Sent()
	}
	return report, mayLose
}

// expectAll stops the load and checks that each query was answered, and by one server only.
func (l *load) expectAll(t *testing.T, server string) {
	t.Helper()
	report, mayLose := l.stop()
	t.Logf("%d queries, by %v", report.Sent(), report.By())
	if report.Sent() == 0 || report.Lost() > mayLose || report.By()[server] != report.Count(nodetest.Answered) {
		t.Errorf("not all were answered by the %s: %s; %d may be lost", server, report, mayLose)
	}
}

// TestFlushIsRepaired: another program removes rules while clients query. The watch reports it, and Apply restores them.
func TestFlushIsRepaired(t *testing.T) {
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
			hosts, b := openNode(t, tc.variant)
			r := linkLocal()
			servers(t, hosts, r)
			apply(t, b, r)
			want := tablesOf(t, hosts)

			ctx, cancel := context.WithCancel(t.Context())
			var group sync.WaitGroup
			defer group.Wait()
			defer cancel()
			reported := make(chan struct{}, 1)
			group.Go(func() {
				if err := b.Watch(ctx, func() {
					select {
					case reported <- struct{}{}:
					default:
					}
				}); err != nil {
					t.Errorf("watching: %v", err)
				}
			})
			<-reported // at the start
			if apply(t, b, r) {
				t.Error("nothing happened, and yet rules changed")
			}
			renew(t, b)
			queries := startLoad(t, hosts, r)
			begin := time.Now()
			for _, command := range tc.flush {
				run(t, hosts, command)
			}
			for changed := false; !changed; {
				select {
				case <-reported:
					changed = apply(t, b, r)
				case <-time.After(time.Minute): // 0.5 s on an idle machine
					t.Fatal("the watch reports no change")
				}
			}
			took := time.Since(begin)
			report, mayLose := queries.stop()
			t.Logf("restored in %s; of %d queries %d lost, by %v", took, report.Sent(), report.Lost(), report.By())
			if report.Count(nodetest.Lost) > mayLose { // the queries without a lease are refused or answered, not lost
				t.Errorf("queries were lost: %s; %d may be", report, mayLose)
			}
			assert.NoError(t, b.Release(t.Context(), r.Addresses, 0))
			// A deleted jump comes back in front, where it was.
			proctest.Eventually(t, time.Minute, "as before", func() bool { return tablesOf(t, hosts) == want })
		})
	}
}

// TestLockHeld: another program holds the lock. Changes of rules wait for it and fail; leases and queries do not wait.
func TestLockHeld(t *testing.T) {
	t.Parallel()
	hosts, b := openNode(t, Legacy)
	r := linkLocal()
	servers(t, hosts, r)
	apply(t, b, r)
	renew(t, b)
	release := lock(t, hosts)
	queries := startLoad(t, hosts, r)

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
		renew(t, b)
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
	queries.expectAll(t, "agent")
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

// lock takes the lock of the node's iptables-legacy.
func lock(t *testing.T, hosts *nodetest.Network) (release func()) {
	t.Helper()
	file, err := os.OpenFile(hosts.Node.XtablesLock(), os.O_CREATE|os.O_RDWR, 0o600)
	assert.NoError(t, err)
	assert.NoError(t, unix.Flock(int(file.Fd()), unix.LOCK_EX))
	release = sync.OnceFunc(func() { _ = file.Close() })
	t.Cleanup(release)
	return release
}

// TestSessionsEnd: a session with an agent without a lease is reset at once.
func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		for _, r := range []rules.Rules{linkLocal(), transparent()} {
			t.Run(string(v)+" "+r.Mode.String(), func(t *testing.T) {
				t.Parallel()
				hosts, b := openNode(t, v)
				servers(t, hosts, r)
				apply(t, b, r)
				renew(t, b)
				m, err := nodetest.StartMeter(nodetest.MeterConfig{
					Host: hosts.Pods[0], Target: netip.AddrPortFrom(r.Leases()[0].Key, r.Port), Loads: []nodetest.Load{{Network: "tcp", Rate: 100}},
				})
				assert.NoError(t, err)
				if _, ok := m.Await("agent", time.Time{}, time.Minute); !ok {
					t.Error("the session was never the agent's")
				}
				keys := []netip.Addr{r.Leases()[0].Key}
				assert.NoError(t, b.Release(t.Context(), keys, 0))
				proctest.Eventually(t, time.Minute, "a session ended", func() bool {
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
			hosts, b := openNode(t, v)
			run(t, hosts, "iptables-"+string(v)+" -A INPUT -p udp --dport 777 -m comment --comment no-j-ACCEPT -j DROP")
			run(t, hosts, "ip6tables-"+string(v)+" -P INPUT DROP")
			before, err := b.Drops(t.Context())
			assert.NoError(t, err)
			for _, to := range []string{"10.201.0.1:777", "[fd00:201::1]:777"} {
				c, err := hosts.Pods[0].Dial(t.Context(), "udp", to)
				assert.NoError(t, err)
				if _, err := c.Write([]byte("hello")); err != nil {
					t.Error(err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
			rule := "iptables -t filter -A INPUT -p udp -m udp --dport 777 -m comment --comment no-j-ACCEPT -j DROP"
			policy := "ip6tables -t filter -P INPUT DROP"
			proctest.Eventually(t, time.Minute, "two drops counted", func() bool {
				after, err := b.Drops(t.Context())
				assert.NoError(t, err)
				return after[rule] == before[rule]+1 && after[policy] > before[policy]
			})
			if len(before) != 2 {
				t.Errorf("rules that drop are %v, want two", before)
			}
		})
	}
}

// TestMissingCapability: the error names the missing capability.
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
				hosts := nodetest.Start(t, nodetest.Options{Pods: 1})
				name := "-" + strings.ToLower(right)
				cmd := hosts.Node.Command(t.Context(), "setpriv", "--bounding-set", name, "--inh-caps", name, "--",
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
