// SPDX-License-Identifier: Apache-2.0

package push_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/names/push"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// What a change of the cluster's objects makes of subscribed names.
func TestChanges(t *testing.T) {
	t.Parallel()
	const web = "web.shop.svc.cluster.local"
	slice := func(n int) zone.Slice {
		s := zone.Slice{Namespace: "shop", Name: "web-1", Service: "web", Ports: []zone.Port{{Name: "http", Number: 80}}}
		for i := range n {
			s.Endpoints = append(s.Endpoints, zone.Endpoint{Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}, Hostname: fmt.Sprintf("web-%d", i), Ready: true})
		}
		return s
	}
	headless := func(h *harness, endpoints int) {
		h.store.PutService(zone.Service{Namespace: "shop", Name: "web", Type: zone.Headless, TTL: -1}, time.Now())
		h.store.PutSlice(slice(endpoints), time.Now())
	}
	tests := map[string]struct {
		before func(h *harness)
		names  []string
		change func(h *harness)
		want   string
	}{
		"another address": {
			func(h *harness) { h.put("web", "10.0.0.7") },
			[]string{web},
			func(h *harness) { h.put("web", "10.0.0.8", "fd00::8") },
			"push -" + web + " +" + web + " A 10.0.0.8 +" + web + " AAAA fd00::8 +" + web + " SRV 0 50 80 " + web + ".",
		},
		"a Service that is added": {
			nil,
			[]string{web},
			func(h *harness) { h.put("web", "10.0.0.7") },
			"push -" + web + " +" + web + " A 10.0.0.7 +" + web + " SRV 0 100 80 " + web + ".",
		},
		"a Service that is removed": {
			func(h *harness) { h.put("web", "10.0.0.7"); h.put("other", "10.0.0.9") },
			[]string{web},
			func(h *harness) { h.store.Delete(zone.Services, "shop", "web", time.Now()) }, "push -" + web,
		},
		"another Service": {
			func(h *harness) { h.put("web", "10.0.0.7") }, []string{web}, func(h *harness) { h.put("other", "10.0.0.8") }, "",
		},
		"a port, which is below the Service": {
			func(h *harness) { h.put("web", "10.0.0.7") },
			[]string{"_http._tcp." + web},
			func(h *harness) { h.put("web", "10.0.0.8") },
			"push -_http._tcp." + web + " +_http._tcp." + web + " A 10.0.0.8 +_http._tcp." + web + " SRV 0 100 80 " + web + ".",
		},
		"a name of the shape of no object": {
			nil, []string{"a.b.c." + web}, func(h *harness) { h.put("web", "10.0.0.7") }, "push -a.b.c." + web,
		},
		"the name above the first Service of a namespace": {
			func(*harness) {}, []string{"shop.svc.cluster.local"}, func(h *harness) { h.put("web", "10.0.0.7") }, "push -shop.svc.cluster.local",
		},
		"the name of a Namespace that is added": {
			func(*harness) {}, []string{"shop.svc.cluster.local"}, func(h *harness) { h.store.PutNamespace("shop", time.Now()) }, "push -shop.svc.cluster.local",
		},
		"names in a Namespace that is removed": {
			func(h *harness) {
				h.store.PutNamespace("shop", time.Now())
				h.store.PutNamespace("workshop", time.Now())
			},
			[]string{web, "web.workshop.svc.cluster.local"},
			func(h *harness) { h.store.Delete(zone.Namespaces, "", "shop", time.Now()) }, "push -" + web,
		},
		"a reverse name": {
			nil,
			[]string{"7.0.0.10.in-addr.arpa"},
			func(h *harness) { h.put("web", "10.0.0.7") },
			"push -7.0.0.10.in-addr.arpa +7.0.0.10.in-addr.arpa PTR " + web + ".",
		},
		"the reverse name of an endpoint": {
			func(h *harness) { headless(h, 1) },
			[]string{"1.0.1.10.in-addr.arpa"},
			func(h *harness) { headless(h, 2) },
			"push -1.0.1.10.in-addr.arpa +1.0.1.10.in-addr.arpa PTR web-1." + web + ".",
		},
		"a verified pod": {
			nil,
			[]string{"10-1-0-1.shop.pod.cluster.local"},
			func(h *harness) {
				h.store.PutPod(zone.Pod{Namespace: "shop", Name: "web-1", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.1")}}, time.Now())
			},
			"push -10-1-0-1.shop.pod.cluster.local +10-1-0-1.shop.pod.cluster.local A 10.1.0.1",
		},
		"an endpoint that is added": {
			func(h *harness) { headless(h, 1) },
			[]string{web},
			func(h *harness) { headless(h, 2) },
			"push -" + web + " +" + web + " A 10.1.0.0 +" + web + " A 10.1.0.1 +" + web + " SRV 0 50 80 web-0." + web + ". +" + web + " SRV 0 50 80 web-1." + web + ".",
		},
		"a set larger than a message: the removal alone": {
			func(h *harness) { headless(h, 0) }, []string{web}, func(h *harness) { headless(h, 2000) }, "push -" + web,
		},
		"an alias to another zone": {
			nil, []string{web}, func(h *harness) { h.alias("web", "www.example.com") }, "push -" + web + " +" + web + " CNAME www.example.com.",
		},
		"the target of an alias within the zone": {
			func(h *harness) { h.alias("web", "db.shop.svc.cluster.local") },
			[]string{web},
			func(h *harness) { h.put("db", "10.0.0.5") },
			"push -" + web + " +" + web + " CNAME db.shop.svc.cluster.local.",
		},
		"the target of an alias that is one no more": {
			func(h *harness) {
				h.alias("web", "db.shop.svc.cluster.local")
			},
			[]string{web},
			func(h *harness) {
				h.put("web", "10.0.0.7")
				synctest.Wait()
				time.Sleep(time.Second)
				h.put("db", "10.0.0.5")
			},
			"push -" + web + " +" + web + " A 10.0.0.7 +" + web + " SRV 0 100 80 " + web + ".",
		},
		"an import of a cluster set": {
			nil,
			[]string{"web.shop.svc.clusterset.local"},
			func(h *harness) {
				h.set.PutService(zone.Service{Namespace: "shop", Name: "web", Type: zone.ClusterIP, TTL: -1, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}, time.Now())
			},
			"push -web.shop.svc.clusterset.local +web.shop.svc.clusterset.local A 10.0.0.7",
		},
		"the namespace of a cluster set": {
			func(*harness) {}, []string{"shop.svc.clusterset.local"}, func(h *harness) { h.store.PutNamespace("shop", time.Now()) }, "push -shop.svc.clusterset.local",
		},
	}
	for label, tt := range tests {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				if tt.before == nil {
					h.put("first", "10.0.9.9") // of its namespace: that changes once
				} else {
					tt.before(h)
				}
				h.run(t)
				c := h.client("192.0.2.1")
				c.subscribe(t, tt.names...)
				synctest.Wait()
				c.take()
				tt.change(h)
				synctest.Wait()
				time.Sleep(time.Second)
				if got := c.take(); got != tt.want {
					t.Errorf("got  %s\nwant %s", got, tt.want)
				}
			})
		})
	}
}

// A session has a set of changed names: what changes often while the client does not read is pushed once, as it is when it reads again.
func TestSetNotQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.put("first", "10.0.0.1")
		h.run(t)
		c := h.client("192.0.2.1")
		c.subscribe(t, "web.shop.svc.cluster.local", "db.shop.svc.cluster.local", "gone.shop.svc.cluster.local")
		synctest.Wait()
		c.take()
		c.setFull(true)
		for i := range 100 {
			h.put("web", fmt.Sprintf("10.0.0.%d", i))
			h.put("gone", fmt.Sprintf("10.0.1.%d", i))
			synctest.Wait()
		}
		c.session.Handle(dso.AppendUnsubscribe(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), 3))
		time.Sleep(2 * time.Second)
		if got := c.heartbeats(); got != 0 {
			t.Errorf("%d heartbeats vouch for names that were not pushed", got)
		}
		c.setFull(false)
		time.Sleep(2 * time.Second)
		want := "push -web.shop.svc.cluster.local +web.shop.svc.cluster.local A 10.0.0.99 +web.shop.svc.cluster.local SRV 0 100 80 web.shop.svc.cluster.local."
		if got := c.take(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		time.Sleep(50 * time.Millisecond) // between two groups of sessions
		c.heartbeats()
		time.Sleep(10 * time.Second)
		if got := c.heartbeats(); got != 5 {
			t.Errorf("%d heartbeats in 10 s, want 5", got)
		}
	})
}

// A change goes out at once. The next ones wait for four times as long as that took, at most 50 ms, and are sent together.
func TestBatches(t *testing.T) {
	t.Parallel()
	for label, tt := range map[string]struct{ sessions, wait int }{"few sessions": {5, 20}, "many": {100, 50}} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.run(t)
				var clients []*client
				for range tt.sessions {
					c := h.client("192.0.2.1")
					c.subscribe(t, "web.shop.svc.cluster.local", "db.shop.svc.cluster.local")
					c.take()
					c.setTakes(time.Millisecond)
					clients = append(clients, c)
				}
				start := time.Now()
				h.put("web", "10.0.0.1")
				time.Sleep(time.Duration(tt.sessions)*time.Millisecond + 1)
				for _, c := range clients {
					if c.take() == "" {
						t.Fatal("the first change was not pushed at once")
					}
				}
				for i := range tt.wait - 1 {
					h.put("web", fmt.Sprintf("10.0.0.%d", 10+i))
					h.put("db", fmt.Sprintf("10.0.1.%d", 10+i))
					time.Sleep(time.Millisecond)
				}
				for _, c := range clients {
					if got := c.take(); got != "" {
						t.Fatalf("after %s: %s", time.Since(start), got)
					}
				}
				time.Sleep(time.Duration(1+tt.sessions) * time.Millisecond)
				web, db := fmt.Sprintf("10.0.0.%d", 8+tt.wait), fmt.Sprintf("10.0.1.%d", 8+tt.wait)
				for _, c := range clients {
					if got := c.take(); strings.Count(got, "push") != 1 || !strings.Contains(got, web) || !strings.Contains(got, db) {
						t.Fatalf("after %s: %s", time.Since(start), got)
					}
				}
			})
		})
	}
}

// A client that does not read is cut after 5 s; the others have their pushes and heartbeats.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run(t)
		stuck, other := h.client("192.0.2.1"), h.client("192.0.2.2")
		for _, c := range []*client{stuck, other} {
			c.subscribe(t, "web.shop.svc.cluster.local")
			c.take()
		}
		stuck.setFull(true)
		h.put("web", "10.0.0.1")
		time.Sleep(4900 * time.Millisecond)
		if got := stuck.take(); got != "" {
			t.Errorf("after 4.9 s: %s", got)
		}
		time.Sleep(300 * time.Millisecond)
		if got := stuck.take(); got != "abort" {
			t.Errorf("after 5.2 s: %q, want an abort", got)
		}
		if got := other.take(); !strings.HasPrefix(got, "push ") {
			t.Errorf("the other client: %q", got)
		}
		if st := h.Stats(); st.Ended.Slow != 1 || st.Sessions != 1 || st.Subscriptions != 1 {
			t.Errorf("stats %+v", st)
		}
	})
}

// A heartbeat that had no room at its turn is sent as soon as the client has read, not at the next turn: two turns are nearly the 5 s
// after which clients leave.
func TestLateHeartbeat(t *testing.T) {
	t.Parallel()
	for label, changed := range map[string]bool{"the heartbeat has no room": false, "a changed name has none": true} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				h.run(t)
				c := h.client("192.0.2.1")
				c.subscribe(t, "web.shop.svc.cluster.local")
				for c.heartbeats() == 0 {
					time.Sleep(time.Millisecond)
				}
				for c.heartbeats() == 0 {
					time.Sleep(time.Millisecond)
				}
				time.Sleep(1900 * time.Millisecond)
				c.setFull(true)
				if changed {
					h.put("web", "10.0.0.1")
				}
				time.Sleep(300 * time.Millisecond) // its turn is in the middle
				c.setFull(false)
				time.Sleep(150 * time.Millisecond)
				if got := c.heartbeats(); got != 1 {
					t.Errorf("%d heartbeats after the client has read, want 1", got)
				}
				time.Sleep(1900 * time.Millisecond) // and the next turn
				if got := c.heartbeats(); got != 1 {
					t.Errorf("%d heartbeats at the next turn, want 1", got)
				}
			})
		})
	}
}

// After the server could not run for a while, all heartbeats that are due are sent at once, not in the turns of the next 2 s.
func TestHeartbeatsAfterAStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run(t)
		stall := h.client("192.0.2.1")
		stall.subscribe(t, "web.shop.svc.cluster.local")
		var others []*client
		for range 40 {
			c := h.client("192.0.2.2")
			c.subscribe(t, "db.shop.svc.cluster.local")
			others = append(others, c)
		}
		time.Sleep(2 * time.Second)
		stall.setTakes(2500 * time.Millisecond)
		for _, c := range others {
			c.heartbeats()
		}
		h.put("web", "10.0.0.1")
		synctest.Wait()
		stall.setTakes(0)
		time.Sleep(2600 * time.Millisecond)
		for i, c := range others {
			if c.heartbeats() == 0 {
				t.Errorf("client %d has no heartbeat", i)
			}
		}
	})
}

// A client that subscribes as fast as it reads leaves no room but for its first PUSHes. Changes go before these.
func TestChangeBeforeFirstPush(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.put("first", "10.0.0.1")
		h.run(t)
		c := h.client("192.0.2.1")
		c.subscribe(t, "web.shop.svc.cluster.local")
		c.mu.Lock()
		c.turns, c.full = true, true
		c.mu.Unlock()
		h.put("web", "10.0.0.2")
		time.Sleep(time.Second)
		c.take()
		c.subscribe(t, "first.shop.svc.cluster.local")
		if got := c.take(); !strings.Contains(got, "-web.shop.svc.cluster.local") || !strings.Contains(got, "-first.shop.svc.cluster.local") {
			t.Errorf("after the next SUBSCRIBE: %s", got)
		}
	})
}

// For a client that does not read, no record is read either, however often other names change.
func TestNothingIsBuiltInVain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.put("first", "10.0.0.1")
		h.run(t)
		stuck := h.client("192.0.2.1")
		stuck.subscribe(t, "web.shop.svc.cluster.local")
		stuck.setFull(true)
		h.put("web", "10.0.0.2")
		stuck.subscribe(t, "first.shop.svc.cluster.local")
		for i := range 100 {
			h.put("other", fmt.Sprintf("10.0.1.%d", i))
			synctest.Wait()
		}
		before := h.reads.Load()
		time.Sleep(time.Second)
		if got := h.reads.Load() - before; got != 0 || before != 1 {
			t.Errorf("records were read %d times, and %d times later; want 1 for the first SUBSCRIBE", before, got)
		}
		stuck.take()
		stuck.setFull(false)
		time.Sleep(time.Second)
		if got := stuck.take(); strings.Count(got, "-web") != 1 || strings.Count(got, "-first") != 1 {
			t.Errorf("after the client has read: %s", got)
		}
	})
}

// While PUSHes have no room, no heartbeat vouches for what the client has. Afterwards it gets the names that it still subscribes to.
func TestUnread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run(t)
		h.put("new", "10.0.0.5")
		c := h.client("192.0.2.1")
		c.subscribe(t, "db.shop.svc.cluster.local", "left.shop.svc.cluster.local", "leaves.shop.svc.cluster.local")
		c.session.Handle(subscribe(t, 11, "web.shop.svc.cluster.local", wire.TypeA))
		c.session.Handle(subscribe(t, 12, "web.shop.svc.cluster.local", wire.TypeAAAA))
		c.take()
		c.setUnread(func() { c.unsubscribe(3) })
		for _, name := range []string{"db", "left", "leaves", "web"} {
			h.put(name, "10.0.0.1")
		}
		synctest.Wait()
		c.unsubscribe(2)
		c.unsubscribe(11)
		c.subscribe(t, "new.shop.svc.cluster.local")
		if got := c.take(); got != "4 NOERROR" {
			t.Errorf("without room: %s", got)
		}
		time.Sleep(4 * time.Second)
		if got := c.heartbeats(); got != 0 {
			t.Errorf("%d heartbeats without room", got)
		}
		c.setUnread(nil)
		time.Sleep(200 * time.Millisecond)
		got := c.take()
		for _, name := range []string{"db", "web", "new"} {
			if !strings.Contains(got, "-"+name+".") {
				t.Errorf("no change of %s in %s", name, got)
			}
		}
		if strings.Contains(got, "-lea") || strings.Contains(got, "-left") {
			t.Errorf("changes of names without a subscription: %s", got)
		}
		c.setUnread(func() {})
		h.put("db", "10.0.0.2")
		time.Sleep(4 * time.Second)
		if got := c.take(); got != "" {
			t.Errorf("4 s of it, once more: %s", got)
		}
		c.unsubscribe(1)
		c.setUnread(nil)
		time.Sleep(200 * time.Millisecond)
		if got := c.take(); got != "" {
			t.Errorf("a name that it has left: %s", got)
		}
	})
}

// A panic ends the session that it was for, since it may have missed a change. The others stay.
func TestPanic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.run(t)
		c, other := h.client("192.0.2.1"), h.client("192.0.2.2")
		c.subscribe(t, "web.shop.svc.cluster.local")
		other.subscribe(t, "db.shop.svc.cluster.local")
		c.take()
		h.defect = true
		h.OwnerChanged([]byte("\x03web\x04shop\x03svc\x07cluster\x05local\x00"))
		synctest.Wait()
		h.defect = false
		time.Sleep(3 * time.Second)
		if got := c.take(); got != "abort" {
			t.Errorf("got %q, want an abort", got)
		}
		if st := h.Stats(); st.Panics != 1 || st.Sessions != 1 || other.heartbeats() == 0 {
			t.Errorf("stats %+v", st)
		}
	})
}

// The end of the server ends the sessions with a Retry Delay, after which nothing is sent or answered.
func TestEnd(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	c := h.client("192.0.2.1")
	c.subscribe(t, "web.shop.svc.cluster.local")
	c.take()
	h.EndAll()
	h.EndAll()
	if got := c.take(); got != "retry delay NOERROR" {
		t.Errorf("got %q", got)
	}
	c.subscribe(t, "db.shop.svc.cluster.local")
	h.put("web", "10.0.0.1")
	if got := c.take(); got != "" {
		t.Errorf("after the end: %s", got)
	}
	c.session.Close()
	c = h.client("192.0.2.1") // ends while a SUBSCRIBE is answered
	c.sending = func() { c.sending = nil; h.EndAll() }
	c.subscribe(t, "web.shop.svc.cluster.local")
	if st := h.Stats(); st.Sessions != 0 || st.Subscriptions != 0 || st.Names != 0 || st.Bytes != 0 {
		t.Errorf("what is left: %+v", st)
	}
}

// Bounds: subscriptions of a session, and memory of all. Who has most makes room for who has less.
func TestBounds(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	hostile := h.client("192.0.2.1")
	names := func(i int) string { return fmt.Sprintf("n%d.shop.svc.cluster.local", i) }
	for i := range push.MaxSubscriptions {
		hostile.subscribe(t, names(i))
	}
	hostile.take()
	hostile.subscribe(t, names(-1))
	if got, want := hostile.take(), "16385 REFUSED retry 5m0s"; got != want {
		t.Errorf("one more: %s, want %s", got, want)
	}
	h.budget = h.Stats().Bytes
	other := h.client("192.0.2.2")
	other.subscribe(t, "web.shop.svc.cluster.local")
	if got := other.take(); got != "1 NOERROR" {
		t.Errorf("the other client: %s", got)
	}
	if got := hostile.take(); got != "retry delay SERVFAIL" {
		t.Errorf("the client with most: %s", got)
	}
	h.budget = h.Stats().Bytes
	again := h.client("192.0.2.1")
	again.subscribe(t, "db.shop.svc.cluster.local")
	if got, want := again.take(), "1 SERVFAIL retry 1m0s"; got != want {
		t.Errorf("one who has as many: %s, want %s", got, want)
	}
	h.budget = 1 << 30
	other.subscribe(t, "a.shop.svc.cluster.local", "b.shop.svc.cluster.local")
	other.take()
	h.budget = h.Stats().Bytes
	again.subscribe(t, "db.shop.svc.cluster.local")
	if got, want := again.take(), "2 SERVFAIL retry 1m0s"; got != want {
		t.Errorf("at once again: %s, want %s", got, want)
	}
	if st := h.Stats(); st.Ended.Memory != 1 || st.Refused != (push.Refused{Count: 1, Memory: 2}) || st.Subscriptions != 3 {
		t.Errorf("stats %+v", st)
	}
}

// A session subscribes to one name with 16 types. With more, each subscription would cost more than the one before.
func TestTypes(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	c := h.client("192.0.2.1")
	for rrtype := range uint16(17) {
		c.session.Handle(subscribe(t, 1+rrtype, "web.shop.svc.cluster.local", 100+rrtype))
	}
	if got, want := c.take(), "; 17 REFUSED retry 5m0s"; !strings.HasSuffix(got, "; 16 NOERROR"+want) {
		t.Errorf("17 types: %s", got)
	}
	c.session.Handle(subscribe(t, 18, "db.shop.svc.cluster.local", 100))
	c.session.Handle(dso.AppendUnsubscribe(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), 3))
	c.session.Handle(subscribe(t, 19, "web.shop.svc.cluster.local", 117))
	if got, want := c.take(), "18 NOERROR; 19 NOERROR"; got != want {
		t.Errorf("another name, and one type in place of another: %s, want %s", got, want)
	}
	c.session.Handle(subscribe(t, 20, "web.shop.svc.cluster.local", 117))
	if got := c.take(); got != "abort" {
		t.Errorf("the same again: %s", got)
	}
}

// A client that subscribes and leaves in a loop costs nothing in the end.
func TestLoop(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	c := h.client("192.0.2.1")
	c.session.Handle(keepalive(dso.Request, 1))
	h.alias("n1", "db.shop.svc.cluster.local")
	for i := range 20000 {
		c.id = 9
		c.subscribe(t, fmt.Sprintf("n%d.shop.svc.cluster.local", i%7))
		c.session.Handle(dso.AppendUnsubscribe(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), 10))
		c.take()
	}
	if st := h.Stats(); st.Names != 0 || st.Bytes != 0 || st.Ended.Protocol != 0 || h.Owners() != 0 {
		t.Errorf("what is left: %+v, %d owners", st, h.Owners())
	}
}

// Too many owners change before a round: then all names count as changed.
func TestOverflow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		c := h.client("192.0.2.1")
		c.subscribe(t, "web.shop.svc.cluster.local")
		c.take()
		for i := range 1<<16 + 1 {
			h.OwnerChanged(fmt.Appendf(nil, "\x07n%06d\x04shop\x03svc\x07cluster\x05local\x00", i))
		}
		h.run(t)
		synctest.Wait()
		if got := c.take(); got != "push -web.shop.svc.cluster.local" {
			t.Errorf("got %q", got)
		}
	})
}

// Whatever a client sends, the index holds what its sessions hold, and nothing after they have ended.
func FuzzSession(f *testing.F) {
	frame := func(msgs ...[]byte) (out []byte) {
		for _, m := range msgs {
			out, _ = wire.SealFrame(append(wire.OpenFrame(out), m...), len(out))
		}
		return out
	}
	f.Add(frame(keepalive(dso.Request, 1), subscribe(f, 2, "web.shop.svc.cluster.local", 255), subscribe(f, 3, "alias.shop.svc.cluster.local", 1)))
	f.Add(frame(subscribe(f, 2, "web.shop.svc.cluster.local", 255), dso.AppendUnsubscribe(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), 2)))
	f.Add(frame(subscribe(f, 2, "7.0.0.10.in-addr.arpa", 12), dso.AppendRetryDelay(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), 2)))
	h := newHarness(f)
	h.put("web", "10.0.0.7")
	h.alias("alias", "web.shop.svc.cluster.local")
	f.Fuzz(func(t *testing.T, stream []byte) {
		c := h.client("192.0.2.1")
		c.session.Handle(keepalive(dso.Request, 1))
		r := wire.NewFrameReader(1 << 10)
		for len(stream) > 0 {
			n := copy(r.Buffer(), stream)
			r.Advance(n)
			stream = stream[n:]
			for {
				msg, ok := r.Next(wire.HeaderLen)
				if !ok || msg == nil {
					break
				}
				c.session.Handle(msg)
			}
		}
		for _, msg := range c.raw {
			m, err := dso.Parse(msg)
			if err != nil {
				t.Fatalf("the server sent %x: %v", msg, err)
			}
			if m.Primary().Type == dso.TypePush {
				assert.NoError(t, m.Changes(func(dso.Change) bool { return true }))
			}
		}
		c.session.Close()
		if st := h.Stats(); st.Sessions != 0 || st.Subscriptions != 0 || st.Names != 0 || st.Bytes != 0 || h.Owners() != 0 {
			t.Fatalf("what is left: %+v, %d owners", st, h.Owners())
		}
	})
}
