// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"errors"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// newOutsideClient returns a client of the outside view.
func newOutsideClient(r *resolve.Resolver) *client {
	c := newClient(r, false)
	c.worker = r.NewOutsideWorker()
	return c
}

// outsideRoutes returns the routes of a view that asks u for all names.
func outsideRoutes(u resolve.Asker) []resolve.Route {
	return []resolve.Route{{Suffix: []byte{0}, Upstream: u, TTL: bounds()}}
}

// TestOutsideView asks both views for names that the cluster has, blocks, rewrites or routes. The outside view asks the node's servers for
// each, and neither view gets an answer of the other from the cache, in whichever order they ask.
func TestOutsideView(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name            string
		asked           string
		inside, outside string
	}{
		{"a Service", "web.shop.svc.cluster.local.", "NOERROR aa | web.shop.svc.cluster.local. 5 10.96.0.7", "NXDOMAIN / ."},
		{"a name that the central resolver has", "x.cluster.local.", "NOERROR | x.cluster.local. 3 10.96.0.9", "NXDOMAIN / ."},
		{"a stub zone", "a.stub.cluster.local.", "NOERROR | a.stub.cluster.local. 300 192.0.2.77", "NXDOMAIN / ."},
		{"a blocked name", "ads.test.", "NXDOMAIN ede=15", "NOERROR | ads.test. 300 198.51.100.1"},
		{"a rewritten name", "old.test.", "NOERROR | old.test. 60 192.0.2.3", "NOERROR | old.test. 300 198.51.100.2"},
		{"a name of both", "db.example.", "NOERROR | db.example. 60 192.0.2.3", "NOERROR | db.example. 60 198.51.100.3"},
	} {
		for _, first := range []string{"inside", "outside"} {
			t.Run(tt.name+", first "+first, func(t *testing.T) {
				t.Parallel()
				s := shop(time.Now())
				inSync(s)
				p := clusterPlan(t, s, true)
				p.Block = blockLists(t, []byte("ads.test\n"))
				var err error
				p.Rewrites, err = resolve.NewRewrites([]resolve.Rewrite{{Kind: resolve.RewriteExact, From: "old.test", To: "db.example"}})
				assert.NoError(t, err)
				node := newUpstream(t, "ads.test. 300 IN A 198.51.100.1", "old.test. 300 IN A 198.51.100.2", "db.example. 60 IN A 198.51.100.3")
				node.mangle = func(m *dns.Msg) {
					if len(m.Answer) == 0 {
						m.Rcode = dns.RcodeNameError
						m.Ns = []dns.RR{record(t, ". 30 IN SOA a. b. 1 1 1 1 30")}
					}
				}
				p.Outside = outsideRoutes(node)
				r := newResolver(t, p)
				inside, outside := newClient(r, false), newOutsideClient(r)
				pkt := pack(t, query(tt.asked, dns.TypeA))
				ask := map[string]func(){
					"inside": func() {
						assert.Equal(t, "inside", tt.inside, say(unpack(t, inside.exchange(t, pkt))))
					},
					"outside": func() {
						assert.Equal(t, "outside", tt.outside, say(unpack(t, outside.exchange(t, pkt))))
					},
				}
				order := []string{"inside", "outside"}
				if first == "outside" {
					slices.Reverse(order)
				}
				for range 2 { // the second time from the cache
					for _, name := range order {
						ask[name]()
					}
				}
				assert.Equal(t, "queries to the node's servers", 1, node.count())
			})
		}
	}
}

// TestOutsideStale has the node's servers fail: the outside view gives its own expired answer, and none of the other view.
func TestOutsideStale(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := plan(t, newUpstream(t, "www.test. 30 IN A 192.0.2.1", "other.test. 3000 IN A 192.0.2.2"))
		var err error
		p.Cache, err = cache.New(cache.Config{Size: 8 << 20, ServeStale: cache.ServeStale{Window: time.Hour, TTL: 30 * time.Second}}, time.Now())
		assert.NoError(t, err)
		node := newUpstream(t, "www.test. 30 IN A 198.51.100.1")
		p.Outside = outsideRoutes(node)
		r := newResolver(t, p)
		inside, outside := newClient(r, false), newOutsideClient(r)
		www, other := pack(t, query("www.test.", dns.TypeA)), pack(t, query("other.test.", dns.TypeA))
		inside.exchange(t, other)
		assert.Equal(t, "fresh", "NOERROR | www.test. 30 198.51.100.1", say(unpack(t, outside.exchange(t, www))))
		node.err = errors.New("down")
		time.Sleep(time.Minute)
		assert.Equal(t, "stale", "NOERROR | www.test. 30 198.51.100.1 ede=3", say(unpack(t, outside.exchange(t, www))))
		assert.Equal(t, "not cached", dns.RcodeServerFailure, unpack(t, outside.exchange(t, other)).Rcode)
		assert.Equal(t, "the other view", "NOERROR | www.test. 30 192.0.2.1", say(unpack(t, inside.exchange(t, www))))
		synctest.Wait()
	})
}

// TestOutsideRefuses has queries that the cluster's view may answer, and self-queries, which both do.
func TestOutsideRefuses(t *testing.T) {
	t.Parallel()
	s := shop(time.Now())
	inSync(s)
	p := clusterPlan(t, s, false)
	local(p)
	p.Self, p.Version, p.Hostname = "a1b2c3", "9.9", "node1"
	p.TransferTo = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	p.Loop = func([]byte) bool { return true }
	node := newUpstream(t)
	p.Outside = outsideRoutes(node)
	c := newOutsideClient(newResolver(t, p))
	c.from.Addr = netip.MustParseAddrPort(near)
	loop := wire.AppendLoopName(nil, [wire.LoopNonce]byte{1}, []byte{0})
	name, _, err := dns.UnpackDomainName(loop, 0)
	assert.NoError(t, err)
	for what, pkt := range map[string][]byte{
		"version":            classed(t, "version.bind.", dns.TypeTXT, dns.ClassCHAOS),
		"host name":          classed(t, "hostname.bind.", dns.TypeTXT, dns.ClassCHAOS),
		"transfer":           pack(t, question("cluster.local.", dns.TypeAXFR)),
		"a probe for a loop": pack(t, question(name, dns.TypeA)),
		"without recursion":  pack(t, &dns.Msg{MsgHdr: dns.MsgHdr{Id: 7}, Question: question("web.shop.svc.cluster.local.", dns.TypeA).Question}),
	} {
		assert.Equal(t, "rcode for "+what, dns.RcodeRefused, unpack(t, c.exchange(t, pkt)).Rcode)
	}
	assert.Equal(t, "queries to the node's servers", 0, node.count())
	m := unpack(t, c.exchange(t, classed(t, resolve.SelfName, dns.TypeTXT, dns.ClassCHAOS)))
	if m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
		t.Errorf("the self-query got %s", m)
	}
}

// TestOutsideReload replaces the plan while a query of the outside view is in flight: its answer stays in the cache if that view still asks
// the same servers, whatever the other view does, and only then.
func TestOutsideReload(t *testing.T) {
	t.Parallel()
	for name, stays := range map[string]bool{"the same servers": true, "other servers": false, "none": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				node := newUpstream(t, "www.test. 300 IN A 198.51.100.1")
				node.gate = make(chan struct{})
				before := plan(t, newUpstream(t))
				before.Outside = outsideRoutes(node)
				r := newResolver(t, before)
				c := newOutsideClient(r)
				c.send(pack(t, question("www.test.", dns.TypeA)))
				synctest.Wait()
				after := plan(t, newUpstream(t))
				after.Cache = before.Cache
				switch name {
				case "the same servers":
					after.Outside = outsideRoutes(node)
				case "other servers":
					after.Outside = outsideRoutes(newUpstream(t))
				}
				r.Swap(after)
				close(node.gate)
				assert.Equal(t, "rcode", dns.RcodeSuccess, unpack(t, <-c.got).Rcode)
				assert.Equal(t, "the answer is in the cache", stays, before.Cache.Stats().Entries == 1)
			})
		})
	}
}

// TestOutsideOff has no servers of the node: the view fails, so that its clients ask another server.
func TestOutsideOff(t *testing.T) {
	t.Parallel()
	c := newOutsideClient(newResolver(t, plan(t, newUpstream(t, "www.test. 300 IN A 192.0.2.1"))))
	assert.Equal(t, "rcode", dns.RcodeServerFailure, unpack(t, c.exchange(t, pack(t, question("www.test.", dns.TypeA)))).Rcode)
}

// TestOutsideExplained explains answers by the entries and routes of the outside view.
func TestOutsideExplained(t *testing.T) {
	t.Parallel()
	p := plan(t, newUpstream(t, "www.corp.test. 60 IN A 192.0.2.1"))
	p.Routes = append(p.Routes, resolve.Route{Suffix: wireName(t, "corp.test."), Upstream: newUpstream(t), TTL: bounds()})
	p.Outside = outsideRoutes(newUpstream(t, "www.corp.test. 300 IN A 198.51.100.1"))
	local(p)
	c := newOutsideClient(newResolver(t, p))
	for i, want := range []string{`^source=upstream upstream=\S+ left=300s took=\S+ route=\.$`, `^source=cache state=fresh age=\d+s left=(300|299)s route=\.$`} {
		got := explanationsTo(t, c, wish("www.corp.test."))
		if len(got) != 1 || !regexp.MustCompile(want).MatchString(got[0]) {
			t.Errorf("reply %d explains %q, want %s", i, got, want)
		}
	}
}

func TestOutsideHitAllocatesNothing(t *testing.T) {
	p := plan(t, newUpstream(t))
	p.Outside = outsideRoutes(newUpstream(t, "www.test. 300 IN A 198.51.100.1"))
	c := newOutsideClient(newResolver(t, p))
	pkt := pack(t, query("www.test.", dns.TypeA))
	c.exchange(t, pkt)
	wantNoAllocations(t, c.worker, &c.from, pkt, time.Now())
}

// TestOutsideFields names what of a plan is none of the outside view. A new field fails it, until somebody decides.
func TestOutsideFields(t *testing.T) {
	t.Parallel()
	inside := []string{
		"Zones", "Routes", "Outside", "Owner", "Version", "Hostname", "Cluster", "SearchPath", "TransferTo", "Keys", "Unreachable", "Copied",
		"Rewrites", "LocalData", "DNS64", "SkyDNS", "Block", "NotBlocked",
	}
	both := []string{
		"Cache", "UDPSize", "Deadline", "Inflight", "Waiting", "PerClient", "FailureTTL", "StaleAfter", "Cut", "Keepalive", "Self", "QueryLog",
		"Watchers", "Tap", "Pods", "Loop", "Local",
	}
	for field := range reflect.TypeFor[resolve.Plan]().Fields() {
		if field.IsExported() && !slices.Contains(inside, field.Name) && !slices.Contains(both, field.Name) {
			t.Errorf("is %s for both views, or not for the outside view? see compileOutside", field.Name)
		}
	}
}
