// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
	"github.com/nodecache/node-cache/pkg/zone"
)

// late is a play with an answer for www.test. that is expired.
func late(t *testing.T) *stateTest {
	t.Helper()
	y := newPlay(t)
	y.prepare(t, "late")
	return y
}

// TestOverdue checks a query that exceeds StaleAfter: all waiters get the stale answer, and the
// query goes on as a refresh.
func TestOverdue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		y := late(t)
		y.u.be("slow")
		pkt := pack(t, query("www.test.", dns.TypeA))
		clients := make([]*client, 5)
		start := time.Now()
		for i := range clients {
			clients[i] = newClient(y.r, i%2 == 0)
			clients[i].send(pkt)
			time.Sleep(10 * time.Millisecond)
		}
		if s := y.r.Stats(); s.Waiting != 5 || s.Inflight != 1 {
			t.Errorf("%d wait for %d in-flight queries, want 5 for 1", s.Waiting, s.Inflight)
		}
		for i, c := range clients {
			got := unpack(t, <-c.got)
			if took := time.Since(start); took != 200*time.Millisecond || say(got) != "NOERROR | www.test. 30 192.0.2.1 ede=3" {
				t.Errorf("client %d got %s after %s, want the stale answer after 200 ms", i, say(got), took)
			}
		}
		synctest.Wait()
		if s := y.r.Stats(); s.Waiting != 0 || s.Inflight != 1 {
			t.Errorf("afterwards %d wait for %d in-flight queries, want none, for 1", s.Waiting, s.Inflight)
		}
		if got := y.ask(t, query("www.test.", dns.TypeA)); got != oldAtOnce {
			t.Errorf("who comes then gets %s", got)
		}
		if got, joined := y.held(t, query("www.test.", dns.TypeA)), y.r.Stats().Joined; got != heldResting || joined != 4 {
			t.Errorf("held %s, %d joined; who comes then does not join", got, joined)
		}
		y.settle()
		if took := time.Since(start); took < 300*time.Millisecond || took > 320*time.Millisecond {
			t.Errorf("the query ended after %s", took)
		}
		if got := y.ask(t, query("www.test.", dns.TypeA)); got != "NOERROR | www.test. 100 192.0.2.2, cache after 0s" || y.u.count() != 1 {
			t.Errorf("and then %s, after %d queries upstream", got, y.u.count())
		}
	})
}

// TestOverdueRefresh lets an answer expire during its refresh. Clients that join then get a stale
// answer.
func TestOverdueRefresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		y, m := newPlay(t), query("www.test.", dns.TypeA)
		y.ask(t, m)
		y.ask(t, m)
		time.Sleep(98 * time.Second)
		y.u.be("silent")
		start := time.Now()
		for _, want := range []struct {
			at    time.Duration // since the refresh began
			reply string
		}{
			{0, "NOERROR | www.test. 2 192.0.2.1, cache after 0s"},
			{1900 * time.Millisecond, "NOERROR | www.test. 1 192.0.2.1, cache after 0s"},
			{2100 * time.Millisecond, oldAtOnce},
			{2200 * time.Millisecond, oldAtOnce},
			{3900 * time.Millisecond, oldAtOnce},
		} {
			time.Sleep(want.at - time.Since(start))
			if got := y.ask(t, m); got != want.reply {
				t.Errorf("after %s: %s, want %s", want.at, got, want.reply)
			}
		}
		if got := y.u.count(); got != 1 {
			t.Errorf("%d queries upstream, want 1", got)
		}
		y.settle()
		if s := y.r.Stats(); s.Waiting != 0 {
			t.Errorf("%d wait", s.Waiting)
		}
	})
}

// TestOverdueBetweenMissAndResolve has a query that AnswerFromMemory missed while the query was in
// time, and that Resolve brings to it when it is overdue.
func TestOverdueBetweenMissAndResolve(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		y := late(t)
		y.u.be("silent")
		pkt := pack(t, query("www.test.", dns.TypeA))
		first, second := newClient(y.r, false), newClient(y.r, false)
		first.send(pkt)
		time.Sleep(199 * time.Millisecond)
		now := time.Now()
		if _, verdict := second.worker.AnswerFromMemory(pkt, &second.from, now, nil); verdict != wire.Missed {
			t.Fatalf("verdict %v, want a miss", verdict)
		}
		time.Sleep(2 * time.Millisecond)
		second.worker.Resolve(&second.from, now, second)
		second.worker.Flush(time.Now())
		for i, c := range []*client{first, second} {
			select {
			case got := <-c.got:
				if say(unpack(t, got)) != "NOERROR | www.test. 30 192.0.2.1 ede=3" {
					t.Errorf("client %d got %s", i, say(unpack(t, got)))
				}
			default:
				t.Errorf("client %d waits still", i)
			}
		}
		y.settle()
		if s := y.r.Stats(); s.Joined != 1 || s.Waiting != 0 {
			t.Errorf("%d joined, %d wait", s.Joined, s.Waiting)
		}
	})
}

// TestStaleGone removes the stale answer while its query is overdue. The waiters keep waiting.
func TestStaleGone(t *testing.T) {
	t.Parallel()
	for mood, want := range map[string]string{
		"slow":   "NOERROR | www.test. 100 192.0.2.2, upstream after 300ms",
		"silent": "SERVFAIL ede=22, failure after 4s",
	} {
		t.Run(mood, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				y := late(t)
				y.u.be(mood)
				time.AfterFunc(100*time.Millisecond, func() { y.p.Cache.Flush([]byte{0}) })
				if got := y.ask(t, query("www.test.", dns.TypeA)); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		})
	}
}

// TestStaleFallbacks checks queries for which a stale answer is not used as usual.
func TestStaleFallbacks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		alter func(*stateTest, *dns.Msg)
		want  string
		asked int
	}{
		{"not to be asked for upstream", func(_ *stateTest, m *dns.Msg) { m.RecursionDesired = false }, "REFUSED, refused after 0s", 0},
		{"with the DO bit it is another question", func(_ *stateTest, m *dns.Msg) { m.IsEdns0().SetDo() }, "SERVFAIL ede=22, failure after 0s", 1},
		{"of another type it is another question", func(_ *stateTest, m *dns.Msg) { m.Question[0].Qtype = dns.TypeAAAA }, "SERVFAIL ede=22, failure after 0s", 1},
		{"turned off", func(y *stateTest, _ *dns.Msg) { y.p.Cache.SetServeStale(cache.ServeStale{}) }, "SERVFAIL ede=22, failure after 0s", 1},
		{"turned shorter", func(y *stateTest, _ *dns.Msg) { y.p.Cache.SetServeStale(cache.ServeStale{Window: 5 * time.Second}) }, "SERVFAIL ede=22, failure after 0s", 1},
		{"another TTL", func(y *stateTest, _ *dns.Msg) {
			y.p.Cache.SetServeStale(cache.ServeStale{Window: time.Hour, TTL: 7 * time.Second})
		}, "NOERROR | www.test. 7 192.0.2.1 ede=3, stale after 0s", 1},
		{"without EDNS", func(_ *stateTest, m *dns.Msg) { m.Extra = nil }, "NOERROR | www.test. 30 192.0.2.1, stale after 0s", 1},
		{"in another spelling", func(_ *stateTest, m *dns.Msg) { m.Question[0].Name = "WwW.tEsT." }, "NOERROR | WwW.tEsT. 30 192.0.2.1 ede=3, stale after 0s", 1},
		{"without a route", func(y *stateTest, _ *dns.Msg) {
			next := *y.p
			next.Routes = nil
			y.r.Swap(&next)
		}, "SERVFAIL ede=22, failure after 0s", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				y, m := late(t), query("www.test.", dns.TypeA)
				y.u.be("failing")
				tt.alter(y, m)
				if got := y.ask(t, m); got != tt.want || y.u.count() != tt.asked {
					t.Errorf("got %s and %d queries upstream, want %s and %d", got, y.u.count(), tt.want, tt.asked)
				}
			})
		})
	}
}

// TestBackoffWithoutRD answers queries without RD from memory.
func TestBackoffWithoutRD(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		y, m := newPlay(t), query("www.test.", dns.TypeA)
		y.prepare(t, "resting")
		m.RecursionDesired = false
		if got := y.ask(t, m); got != oldAtOnce {
			t.Errorf("got %s, want %s", got, oldAtOnce)
		}
	})
}

// TestLateDenials gives denials past their time, too: the address of one family is
// worth little to a client that gets SERVFAIL for the other.
func TestStaleDenials(t *testing.T) {
	t.Parallel()
	for mood, want := range map[string]string{
		"NXDOMAIN": "NXDOMAIN / test. ede=19, stale after 0s",
		"NODATA":   "NOERROR / test. ede=3, stale after 0s",
	} {
		t.Run(mood, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				y, m := newPlay(t), query("www.test.", dns.TypeA)
				y.u.be(mood)
				y.ask(t, m)
				time.Sleep(25 * time.Second)
				y.u.be("failing")
				for i := range 2 { // by a flight that fails, and at rest
					if got := y.ask(t, m); got != want || y.u.count() != 1 {
						t.Errorf("reply %d: %s and %d queries upstream, want %s and 1", i, got, y.u.count(), want)
					}
				}
			})
		})
	}
}

// TestRefreshBackoff counts upstream queries for a name that fails. The pauses double up to the
// stale TTL.
func TestRefreshBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		y, m := late(t), query("www.test.", dns.TypeA)
		y.u.be("failing")
		start := time.Now()
		var asked []time.Duration
		for time.Since(start) < 2*time.Minute {
			before := y.u.count()
			if got := y.ask(t, m); got != oldAtOnce {
				t.Fatalf("after %s: %s", time.Since(start), got)
			}
			if y.u.count() > before {
				asked = append(asked, time.Since(start))
			}
			time.Sleep(100 * time.Millisecond)
		}
		want := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second, 15 * time.Second, 31 * time.Second, 61 * time.Second, 91 * time.Second}
		if diff := cmp.Diff(want, asked); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		y.u.be("good")
		time.Sleep(30 * time.Second)
		if got := y.ask(t, m); got != newAtOnce {
			t.Errorf("recovered: %s", got)
		}
	})
}

// TestUncacheableAnswer checks that an uncacheable answer removes the cached one.
func TestUncacheableAnswer(t *testing.T) {
	t.Parallel()
	for _, mood := range []string{"zero", "NXDOMAIN without SOA"} {
		for _, state := range []string{"late", "due"} {
			t.Run(mood+", "+state, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					y, m := newPlay(t), query("www.test.", dns.TypeA)
					y.prepare(t, state)
					y.u.be(mood)
					y.ask(t, m)
					y.settle()
					if got := y.held(t, m); got != "absent" {
						t.Errorf("held: %s", got)
					}
				})
			})
		}
	}
}

// TestStaleOnShed returns the stale answer instead of SERVFAIL to shed queries, with a backoff of
// one second.
func TestStaleOnShed(t *testing.T) {
	t.Parallel()
	for name, bound := range map[string]func(*resolve.Plan){
		"flights": func(p *resolve.Plan) { p.Inflight = 1 },
		"waiting": func(p *resolve.Plan) { p.Waiting = 1 },
		"client":  func(p *resolve.Plan) { p.PerClient = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				y := late(t)
				bound(y.p)
				y.u.be("silent")
				busy := newClient(y.r, false)
				busy.send(pack(t, question("busy.test.", dns.TypeA)))
				for i := range 3 {
					if got := y.ask(t, query("www.test.", dns.TypeA)); got != oldAtOnce {
						t.Errorf("reply %d: %s", i, got)
					}
				}
				want := heldResting
				if name == "client" { // others may still ask for it
					want = "late"
				}
				if got := y.held(t, query("www.test.", dns.TypeA)); got != want {
					t.Errorf("held: %s, want %s", got, want)
				}
				time.Sleep(time.Second)
				if got := y.held(t, query("www.test.", dns.TypeA)); got != "late" {
					t.Errorf("held a second later: %s", got)
				}
				if got := y.ask(t, query("new.test.", dns.TypeA)); !strings.HasPrefix(got, "SERVFAIL ede=0, shed") {
					t.Errorf("a name that is not held: %s", got)
				}
				turned := uint64(2) // the first of the three, before it rested, and the new name
				if name == "client" {
					turned = 4
				}
				shed := y.r.Stats().Shed
				if got := sum(shed[:]); got != turned || y.u.count() != 1 {
					t.Errorf("%d sheds, %d queries upstream, want %d and 1", got, y.u.count(), turned)
				}
				<-busy.got
			})
		})
	}
}

// TestStaleClusterNames prefers the zone fallback to a stale answer of the central resolver.
func TestStaleClusterNames(t *testing.T) {
	t.Parallel()
	const gone = "none.shop.svc.cluster.local."
	for _, tt := range []struct {
		name  string
		stale bool // the view
		mood  string
		want  []string
	}{
		{gone, true, "crowded", []string{"NXDOMAIN aa / cluster.local. ede=19, zone after 0s", "NXDOMAIN aa / cluster.local. ede=19, zone after 0s"}},
		{gone, true, "failing", []string{"NXDOMAIN aa / cluster.local. ede=19, zone after 0s", "NXDOMAIN aa / cluster.local. ede=19, zone after 0s"}},
		{gone, true, "silent", []string{"NXDOMAIN aa / cluster.local. ede=19, zone after 200ms", "NXDOMAIN aa / cluster.local. ede=19, zone after 0s"}},
		{"x.cluster.local.", true, "failing", []string{"NOERROR | x.cluster.local. 30 192.0.2.1 ede=3, stale after 0s", "NOERROR | x.cluster.local. 30 192.0.2.1 ede=3, stale after 0s"}},
		{"mail.shop.svc.cluster.local.", false, "failing", []string{
			"NOERROR aa | mail.shop.svc.cluster.local. 5 mail.example.com. | mail.example.com. 30 192.0.2.1 ede=3, stale after 0s",
			"NOERROR aa | mail.shop.svc.cluster.local. 5 mail.example.com. | mail.example.com. 30 192.0.2.1 ede=3, stale after 0s",
		}},
		{"mail.shop.svc.cluster.local.", false, "silent", []string{
			"NOERROR aa | mail.shop.svc.cluster.local. 5 mail.example.com. | mail.example.com. 30 192.0.2.1 ede=3, stale after 200ms",
			"NOERROR aa | mail.shop.svc.cluster.local. 5 mail.example.com. | mail.example.com. 30 192.0.2.1 ede=3, stale after 0s",
		}},
	} {
		t.Run(fmt.Sprint(tt.name, tt.mood), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				y, s := newPlay(t), shop(time.Now())
				for _, kind := range []zone.Kind{zone.Services, zone.Slices, zone.Namespaces} {
					s.SetSynced(kind)
					if tt.stale {
						s.ConfirmFresh(kind, time.Now().Add(-time.Hour))
					} else {
						s.SetAlwaysFresh(kind)
					}
				}
				y.p.Zone = view(t, s, true)
				y.p.Routes = append(y.p.Routes, resolve.Route{Suffix: wireName(t, "cluster.local."), Upstream: y.u, TTL: bounds(), Exact: true})
				y.p.Inflight = 1
				y.r = newResolver(t, y.p)
				m := query(tt.name, dns.TypeA)
				y.ask(t, m)
				time.Sleep(110 * time.Second)
				if y.u.be(tt.mood); tt.mood == "crowded" { // there is no room but for another
					y.u.be("silent")
					newClient(y.r, false).send(pack(t, query("busy.test.", dns.TypeA)))
				}
				for i, want := range tt.want {
					if diff := cmp.Diff(want, y.ask(t, m)); diff != "" {
						t.Errorf("reply %d (-want +got)\n%s", i, diff)
					}
				}
				if got := y.u.count(); got != 1 {
					t.Errorf("%d queries upstream, want 1", got)
				}
			})
		})
	}
}
