// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
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
				time.AfterFunc(100*time.Millisecond, func() { y.p.Cache.Flush([]byte{0}, true) })
				assert.Equal(t, "got", want, y.ask(t, query("www.test.", dns.TypeA)))
			})
		})
	}
}

// TestZoneFallback asks a central resolver that fails for cluster names, of which some were answered before. The zone
// precedes a stale answer, and a central resolver that is known to be down gets no query for a name that the zone denies.
func TestZoneFallback(t *testing.T) {
	t.Parallel()
	const (
		gone, mail = "none.shop.svc.cluster.local.", "mail.shop.svc.cluster.local."
		denied     = "NXDOMAIN aa / cluster.local. ede=19, zone after "
		held       = "NOERROR aa | web.shop.svc.cluster.local. 5 10.96.0.7 ede=3, zone after 0s"
		stale      = "NOERROR | x.cluster.local. 30 192.0.2.1 ede=3, stale after 0s"
		aliased    = "NOERROR aa | mail.shop.svc.cluster.local. 5 mail.example.com. | mail.example.com. 30 192.0.2.1 ede=3, stale after "
	)
	for _, tt := range []struct {
		name        string
		confirmed   bool   // the zone is fresh
		mood        string // of the central resolver
		before      bool   // it answered the query before
		unreachable bool
		want        [2]string
		asked       int
	}{
		{name: gone, mood: "failing", want: [2]string{denied + "0s", denied + "0s"}, asked: 1},
		{name: gone, mood: "failing", unreachable: true, want: [2]string{denied + "0s", denied + "0s"}},
		{name: gone, mood: "failing", before: true, want: [2]string{denied + "0s", denied + "0s"}, asked: 1},
		{name: gone, mood: "crowded", before: true, want: [2]string{denied + "0s", denied + "0s"}, asked: 1},
		{name: gone, mood: "silent", before: true, want: [2]string{denied + "200ms", denied + "0s"}, asked: 1},
		{name: "web.shop.svc.cluster.local.", mood: "failing", want: [2]string{held, held}},
		{name: "x.cluster.local.", mood: "failing", want: [2]string{"SERVFAIL ede=22, failure after 0s", "SERVFAIL ede=13, failure after 0s"}, asked: 1},
		{name: "x.cluster.local.", mood: "failing", unreachable: true, want: [2]string{"SERVFAIL ede=22, failure after 0s", "SERVFAIL ede=13, failure after 0s"}, asked: 1},
		{name: "x.cluster.local.", mood: "failing", before: true, want: [2]string{stale, stale}, asked: 1},
		{name: mail, confirmed: true, mood: "failing", before: true, want: [2]string{aliased + "0s", aliased + "0s"}, asked: 1},
		{name: mail, confirmed: true, mood: "silent", before: true, want: [2]string{aliased + "200ms", aliased + "0s"}, asked: 1},
	} {
		t.Run(fmt.Sprint(tt.name, tt.mood, tt.before, tt.unreachable), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				y, s := newPlay(t), shop(time.Now())
				for _, kind := range []zone.Kind{zone.Services, zone.Slices, zone.Namespaces} {
					s.SetSynced(kind)
					if tt.confirmed {
						s.SetAlwaysFresh(kind)
					} else {
						s.ConfirmFresh(kind, time.Now().Add(-time.Hour))
					}
				}
				y.p.Zones = zone.Zones{view(t, s, true)}
				y.p.Routes = append(y.p.Routes, resolve.Route{Suffix: wireName(t, "cluster.local."), Upstream: y.u, TTL: bounds(), Exact: true})
				y.p.Inflight = 1
				y.p.Unreachable = func() bool { return tt.unreachable }
				y.r = newResolver(t, y.p)
				m := query(tt.name, dns.TypeA)
				if tt.before {
					y.ask(t, m)
					time.Sleep(110 * time.Second)
				}
				if y.u.be(tt.mood); tt.mood == "crowded" { // there is no room but for another
					y.u.be("silent")
					newClient(y.r, false).send(pack(t, query("busy.test.", dns.TypeA)))
				}
				for i, want := range tt.want {
					if diff := cmp.Diff(want, y.ask(t, m)); diff != "" {
						t.Errorf("reply %d (-want +got)\n%s", i, diff)
					}
				}
				assert.Equal(t, "queries upstream", tt.asked, y.u.count())
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
