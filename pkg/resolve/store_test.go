// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
	"github.com/nodecache/node-cache/pkg/zone"
)

func zoneAlias(name, target string) zone.Service {
	return zone.Service{Namespace: "shop", Name: name, TTL: -1, Type: zone.ExternalName, ExternalName: target}
}

// equalLine compares two lines, letter case aside.
func equalLine(a, b string) bool { return strings.EqualFold(a, b) }

// A pending upstream answers when, and in the order, the test says.
type pending struct {
	asks []func(answer []byte)
	qs   [][]byte
}

// Ask implements resolve.Asker.
func (p *pending) Ask(q []byte, _ time.Time, to wire.AnswerReceiver, _ *wire.SendBatch) {
	p.qs = append(p.qs, q)
	p.asks = append(p.asks, func(answer []byte) {
		var batch wire.SendBatch
		to.Answered(answer, nil, &batch)
		batch.Flush()
	})
}

// answer lets flight n end with one address, whose TTL is given.
func (p *pending) answer(tb testing.TB, n int, ttl uint32, address string) {
	tb.Helper()
	m := unpack(tb, p.qs[n])
	r := new(dns.Msg).SetReply(m)
	rr, err := dns.NewRR(m.Question[0].Name + " 1 IN A " + address)
	if err != nil {
		tb.Fatal(err)
	}
	rr.Header().Ttl = ttl
	r.Answer = []dns.RR{rr}
	p.asks[n](pack(tb, r))
}

// first is the first address of the client's reply, "waits" if there is none yet.
func (c *client) first(tb testing.TB) string {
	tb.Helper()
	select {
	case reply := <-c.got:
		m := unpack(tb, reply)
		if len(m.Answer) == 0 {
			return dns.RcodeToString[m.Rcode]
		}
		return m.Answer[0].(*dns.A).A.String()
	default:
		return "waits"
	}
}

const owned = "web.shop.svc.cluster.local."

// owners is a plan whose names below shop are owned, and the owner of web.
func owners(t *testing.T, u resolve.Asker) (p *resolve.Plan, web []byte) {
	t.Helper()
	p = plan(t, u)
	domain := wireName(t, "cluster.local.")
	p.Owner = func(name []byte) []byte { return zone.Owner(name, domain) }
	return p, wireName(t, owned)
}

// TestOwnerChangedDuringQuery changes a Service while its name is queried. Neither the old answer
// nor the next one within the propagation delay is cached.
func TestOwnerChangedDuringQuery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := &pending{}
		p, web := owners(t, u)
		r := newResolver(t, p)
		before, after, with := newClient(r, false), newClient(r, false), newClient(r, false)
		pkt := pack(t, question(owned, dns.TypeA))
		before.send(pkt)
		time.Sleep(100 * time.Millisecond)
		p.Cache.OwnerChanged(web, time.Now())
		time.Sleep(100 * time.Millisecond)
		after.send(pkt)
		with.send(pkt) // joins the newer one
		if len(u.asks) != 2 {
			t.Fatalf("%d queries upstream, want 2", len(u.asks))
		}
		u.answer(t, 0, 30, "192.0.2.1")
		got := []string{before.first(t), after.first(t), with.first(t)}
		if diff := cmp.Diff([]string{"192.0.2.1", "waits", "waits"}, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		u.answer(t, 1, 30, "192.0.2.2")
		if got := []string{after.first(t), with.first(t)}; got[0] != "192.0.2.2" || got[1] != "192.0.2.2" {
			t.Errorf("after the event: %v", got)
		}
		after.send(pkt)
		if len(u.asks) != 3 {
			t.Errorf("%d queries upstream, want 3: nothing was cached", len(u.asks))
		}
		u.answer(t, 2, 30, "192.0.2.3")
		after.first(t)
		time.Sleep(time.Second)
		after.send(pkt) // a second after the event
		u.answer(t, 3, 30, "192.0.2.4")
		after.first(t)
		if after.send(pkt); after.first(t) != "192.0.2.4" || len(u.asks) != 4 {
			t.Errorf("%d queries upstream, want 4: the last answer is cached", len(u.asks))
		}
		p.Cache.OwnerChanged(web, time.Now().Add(time.Second))
		time.Sleep(2 * time.Second)
		after.send(pkt)
		if got := after.first(t); got != "waits" || len(u.asks) != 5 {
			t.Errorf("an event drops what is cached: %s, %d queries upstream", got, len(u.asks))
		}
		u.answer(t, 4, 30, "192.0.2.5")
		if s := r.Stats(); s.Inflight != 0 || s.Waiting != 0 {
			t.Errorf("in flight %d, waiting %d", s.Inflight, s.Waiting)
		}
	})
}

// TestOtherOwnerChanged changes other owners during a query. The query can be joined, and its
// answer is cached.
func TestOtherOwnerChanged(t *testing.T) {
	t.Parallel()
	for _, other := range []string{"db.shop.svc.cluster.local.", "shop.svc.cluster.local.", "web.other.svc.cluster.local."} {
		t.Run(other, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				u := &pending{}
				p, web := owners(t, u)
				long := time.Now().Add(-time.Hour)
				for p.Cache.OwnerChanged(wireName(t, other), long); p.Cache.ChangedSince(web, long.Add(-1)); p.Cache.OwnerChanged(wireName(t, other), long) {
					p, web = owners(t, u) // the two had one place in the table of owners
				}
				r := newResolver(t, p)
				one, two := newClient(r, false), newClient(r, false)
				pkt := pack(t, question(owned, dns.TypeA))
				one.send(pkt)
				time.Sleep(time.Second)
				p.Cache.OwnerChanged(wireName(t, other), time.Now())
				two.send(pkt)
				if len(u.asks) != 1 {
					t.Fatalf("%d queries upstream, want 1", len(u.asks))
				}
				u.answer(t, 0, 30, "192.0.2.1")
				two.first(t)
				if two.send(pkt); two.first(t) != "192.0.2.1" {
					t.Error("the answer was not cached")
				}
			})
		})
	}
}

// TestOutdatedRemovesNothing checks that an outdated uncacheable answer does not remove a newer
// cached one.
func TestOutdatedRemovesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := &pending{}
		p, web := owners(t, u)
		r := newResolver(t, p)
		old, young := newClient(r, false), newClient(r, false)
		pkt := pack(t, question(owned, dns.TypeA))
		old.send(pkt)
		time.Sleep(100 * time.Millisecond)
		p.Cache.OwnerChanged(web, time.Now())
		time.Sleep(1500 * time.Millisecond)
		young.send(pkt)
		u.answer(t, 1, 30, "192.0.2.2")
		young.first(t)
		u.answer(t, 0, 0, "192.0.2.1")
		old.first(t)
		if young.send(pkt); young.first(t) != "192.0.2.2" {
			t.Error("the answer from after the event is gone")
		}
	})
}

// TestRouteNoStore checks a route with NoStore: concurrent queries join, and failures are cached.
func TestRouteNoStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		y, m := newPlay(t), query("www.test.", dns.TypeA)
		y.p.Routes = append(y.p.Routes, resolve.Route{Suffix: wireName(t, "test."), Upstream: y.u, TTL: bounds(), NoStore: true})
		y.r = newResolver(t, y.p)
		y.u.be("good")
		for range 3 {
			if got := y.ask(t, m); got != newAtOnce {
				t.Errorf("got %s", got)
			}
		}
		y.ask(t, query("www.other.", dns.TypeA))
		if got := y.held(t, m) + ", " + y.held(t, query("www.other.", dns.TypeA)); got != "absent, fresh NOERROR | www.other. 100 192.0.2.2" || y.u.count() != 4 {
			t.Errorf("held %s after %d queries upstream, want 4", got, y.u.count())
		}
		y.u.be("NXDOMAIN")
		y.ask(t, m)
		y.ask(t, query("x.www.test.", dns.TypeA))
		if got := y.u.count(); got != 2 {
			t.Errorf("%d queries upstream, want 2: no denial is cached", got)
		}
		y.u.be("failing")
		got := []string{y.ask(t, m), y.ask(t, m)}
		if diff := cmp.Diff([]string{"SERVFAIL ede=22, failure after 0s", "SERVFAIL ede=13, failure after 0s"}, got); diff != "" || y.u.count() != 1 {
			t.Errorf("%d queries upstream (-want +got)\n%s", y.u.count(), diff)
		}
	})
}

// TestNoStoreTurnedOn reloads with NoStore while a query is in flight. Its answer is not cached.
func TestNoStoreTurnedOn(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]bool{"on": false, "off": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := &pending{}
			p := plan(t, u)
			r := newResolver(t, p)
			c := newClient(r, false)
			pkt := pack(t, question("www.test.", dns.TypeA))
			c.send(pkt)
			next := *p
			next.Routes = []resolve.Route{{Suffix: []byte{0}, Upstream: u, TTL: bounds(), NoStore: off}}
			r.Swap(&next)
			p.Cache.Flush([]byte{0})
			u.answer(t, 0, 30, "192.0.2.1")
			c.first(t)
			c.send(pkt)
			if got := c.first(t) == "waits"; got != off {
				t.Errorf("asked again %t, want %t", got, off)
			}
			if off {
				u.answer(t, 1, 30, "192.0.2.1")
			}
		})
	}
}

// TestRouteBounds gives each route's answers the bounds of their own route, and each
// record of a chain its own: it counts down alone, and the answer lives as long as the
// shortest.
func TestRouteBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t)
		u.mangle = func(m *dns.Msg) {
			name := m.Question[0].Name
			for _, text := range []string{name + " 10 IN CNAME far." + name, "far." + name + " 2 IN CNAME farther." + name, "farther." + name + " 900 IN A 192.0.2.1"} {
				rr, _ := dns.NewRR(text)
				m.Answer = append(m.Answer, rr)
			}
			if zone, gone := strings.CutPrefix(name, "gone."); gone {
				soa, _ := dns.NewRR(zone + " 900 IN SOA ns.example. host.example. 1 2 3 4 900")
				m.Rcode, m.Answer, m.Ns = dns.RcodeNameError, nil, []dns.RR{soa}
			}
		}
		p := plan(t, u)
		p.Routes = []resolve.Route{
			{Suffix: []byte{0}, Upstream: u, TTL: resolve.TTLs{Min: 5 * time.Second, Max: 600 * time.Second, Negative: 30 * time.Second}},
			{Suffix: wireName(t, "long."), Upstream: u, TTL: resolve.TTLs{Min: 60 * time.Second, Max: 600 * time.Second, Negative: 300 * time.Second}},
			{Suffix: wireName(t, "short."), Upstream: u, TTL: resolve.TTLs{Max: 7 * time.Second, Negative: time.Second}},
			{Suffix: wireName(t, "exact."), Upstream: u, Exact: true, TTL: resolve.TTLs{Min: 60 * time.Second, Max: 600 * time.Second}},
		}
		r := newResolver(t, p)
		c := newClient(r, false)
		ttls := func(name string) (list []uint32) {
			m := unpack(t, c.exchange(t, pack(t, question(name, dns.TypeA))))
			for _, rr := range append(m.Answer, m.Ns...) {
				list = append(list, rr.Header().Ttl)
			}
			return list
		}
		for name, want := range map[string][][]uint32{ // at first, a second later, and when the shortest is over
			"www.test.":   {{10, 5, 600}, {9, 4, 599}, {10, 5, 600}},
			"www.long.":   {{60, 60, 600}, {59, 59, 599}, {60, 60, 600}},
			"www.short.":  {{7, 2, 7}, {6, 1, 6}, {7, 2, 7}},
			"www.exact.":  {{10, 2, 600}, {9, 1, 599}, {10, 2, 600}},
			"gone.test.":  {{30}, {29}, {30}},
			"gone.long.":  {{300}, {299}, {300}},
			"gone.short.": {{1}, {1}, {1}},
		} {
			got := [][]uint32{ttls(name)}
			shortest := time.Hour
			for _, ttl := range got[0] {
				shortest = min(shortest, time.Duration(ttl)*time.Second)
			}
			time.Sleep(time.Second)
			got = append(got, ttls(name))
			time.Sleep(shortest - time.Second)
			got = append(got, ttls(name))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got)\n%s", name, diff)
			}
		}
	})
}

// TestAliasTargetsAreKeptUnderTheirName has the target of a cluster's alias, fetched for
// the alias, answered to who asks for the target, with its own TTL.
func TestAliasTargetsStoredByName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := shop(time.Now())
		inSync(s)
		p, root := clusterPlan(t, s, false)
		c := newClient(newResolver(t, p), false)
		c.exchange(t, pack(t, question("mail.shop.svc.cluster.local.", dns.TypeA)))
		time.Sleep(100 * time.Second)
		for _, name := range []string{"mail.example.com.", "other.shop.svc.cluster.local."} {
			got := unpack(t, c.exchange(t, pack(t, question(name, dns.TypeA))))
			if ttl := got.Answer[len(got.Answer)-1].Header().Ttl; ttl != 200 {
				t.Errorf("%s: TTL %d, want 200:\n%s", name, ttl, got)
			}
		}
		if n := root.count(); n != 1 {
			t.Errorf("%d queries upstream, want 1", n)
		}
	})
}
