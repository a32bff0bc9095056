// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

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

// TestStaleWithoutRoute gives no stale answer for a name that a reload left without a route.
func TestStaleWithoutRoute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		y := late(t)
		next := *y.p
		next.Routes = nil
		y.r.Swap(&next)
		if got := y.ask(t, query("www.test.", dns.TypeA)); got != "SERVFAIL ede=22, failure after 0s" {
			t.Errorf("got %s", got)
		}
	})
}
