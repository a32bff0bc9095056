// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
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
		respond(to, answer, nil, &batch)
		batch.Flush()
	})
}

// answer ends query n with one address, whose TTL is given.
func (p *pending) answer(tb testing.TB, n int, ttl uint32, address string) {
	tb.Helper()
	m := unpack(tb, p.qs[n])
	r := new(dns.Msg).SetReply(m)
	rr := record(tb, m.Question[0].Name+" 1 IN A "+address)
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

// TestReroutedDuringQuery gives a name another upstream during a query. The client gets the answer of the old one, which is not
// cached. If the upstream stays it is.
func TestReroutedDuringQuery(t *testing.T) {
	t.Parallel()
	for _, stays := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			u, next := &pending{}, &pending{}
			p := plan(t, u)
			r := newResolver(t, p)
			c, pkt := newClient(r, false), pack(t, question(owned, dns.TypeA))
			c.send(pkt)
			if stays {
				next = u
			}
			swapped := plan(t, next)
			swapped.Cache = p.Cache
			r.Swap(swapped)
			u.answer(t, 0, 30, "192.0.2.1")
			assert.Equal(t, "answer", "192.0.2.1", c.first(t))
			c.send(pkt)
			if cached := c.first(t) == "192.0.2.1"; cached != stays {
				t.Errorf("the upstream stays: %t, and the answer is cached: %t", stays, cached)
			}
			if !stays {
				next.answer(t, 0, 30, "192.0.2.2")
				c.first(t)
			}
		})
	}
}
