// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// searchHost is what the search paths of pods are made of.
func searchHost() *pods.Host {
	return &pods.Host{Domain: "cluster.local", Searches: []string{"corp.test"}, Ndots: 1, Except: []string{"excepted"}}
}

// searcher is a client whose pod has a search path, of a resolver that walks it.
func searcher(tb testing.TB, p *resolve.Plan, pod *pods.Pod) *client {
	tb.Helper()
	p.SearchPath, p.Pods = true, pods.NewIndex(time.Minute, searchHost())
	c := newClient(newResolver(tb, p), false)
	pod.Addrs = []netip.Addr{c.from.Addr.Addr()}
	p.Pods.Put(pod)
	p.Pods.Confirm(time.Now())
	return c
}

// denyTheRest denies each name for which an upstream has no records.
func denyTheRest(tb testing.TB, u *upstream) {
	tb.Helper()
	soa := record(tb, ". 600 IN SOA ns.test. host.test. 1 3600 600 86400 20")
	u.mangle = func(m *dns.Msg) {
		name := m.Question[0].Name
		if strings.HasPrefix(name, "failing.") {
			m.Rcode = dns.RcodeServerFailure
			return
		}
		if len(m.Answer) > 0 {
			return
		}
		m.Ns = []dns.RR{soa}
		if _, ok := u.records[dns.Question{Name: name, Qtype: dns.TypeA ^ dns.TypeAAAA ^ m.Question[0].Qtype, Qclass: dns.ClassINET}]; !ok {
			m.Rcode = dns.RcodeNameError
		}
	}
}

// TestSearchPath shows which queries are answered with a name under another suffix.
func TestSearchPath(t *testing.T) {
	t.Parallel()
	const first = ".shop.svc.cluster.local."
	records := []string{
		"www.example.test. 300 IN A 192.0.2.1", "www.example.test. 300 IN AAAA 2001:db8::1", "v4.example.test. 300 IN A 192.0.2.4",
		"intranet.corp.test. 300 IN A 192.0.2.2", "a.b.c.d.e.example.test. 300 IN A 192.0.2.5",
		"six.corp.test. 300 IN AAAA 2001:db8::6", "six. 300 IN A 192.0.2.6", "failing. 300 IN A 192.0.2.7", "www.lab.test. 300 IN A 192.0.2.8",
	}
	for _, tt := range []struct {
		name, ask string
		qtype     uint16
		pod       pods.Pod
		do        bool
		change    func(*resolve.Plan)
		want      string
	}{
		{name: "an outside name", ask: "www.example.test" + first, want: "NOERROR www.example.test. 192.0.2.1"},
		{name: "its AAAA records", ask: "www.example.test" + first, qtype: dns.TypeAAAA, want: "NOERROR www.example.test. 2001:db8::1"},
		{name: "no AAAA records there", ask: "v4.example.test" + first, qtype: dns.TypeAAAA, want: "NOERROR v4.example.test."},
		{name: "a name of the host's search list", ask: "intranet" + first, want: "NOERROR intranet.corp.test. 192.0.2.2"},
		{name: "a service by its whole name", ask: "web.shop.svc.cluster.local" + first, want: "NOERROR web.shop.svc.cluster.local. 10.96.0.7"},
		{
			name: "a service of another namespace", ask: "web.shop.other.svc.cluster.local.", pod: pods.Pod{Namespace: "other"},
			want: "NOERROR web.shop.svc.cluster.local. 10.96.0.7",
		},
		{name: "a service of the namespace", ask: "web" + first, want: "NOERROR 10.96.0.7"},
		{
			name: "an alias of the cluster", ask: "mail.shop.other.svc.cluster.local.", pod: pods.Pod{Namespace: "other"},
			want: "NOERROR mail.shop.svc.cluster.local. mail.example.com. 192.0.2.25",
		},
		{name: "no such name", ask: "gone.example.test" + first, want: "NXDOMAIN"},
		{name: "the other family decides", ask: "six" + first, want: "NOERROR six.corp.test."},
		{name: "a failure ends the walk", ask: "failing" + first, want: "NXDOMAIN"},
		{name: "in the case of the client", ask: "WWW.Example.test.shop.svc.Cluster.local.", want: "NOERROR www.example.test. 192.0.2.1"},
		{name: "as many dots as ndots", ask: "a.b.c.d.e.example.test" + first, want: "NXDOMAIN"},
		{name: "ndots 7", ask: "a.b.c.d.e.example.test" + first, pod: pods.Pod{DNS: pods.DNS{Ndots: 7}}, want: "NOERROR a.b.c.d.e.example.test. 192.0.2.5"},
		{name: "ndots 2", ask: "www.example.test" + first, pod: pods.Pod{DNS: pods.DNS{Ndots: 2}}, want: "NXDOMAIN"},
		{name: "searches of the pod", ask: "www" + first, pod: pods.Pod{DNS: pods.DNS{Searches: []string{"Lab.test."}}}, want: "NOERROR www.lab.test. 192.0.2.8"},
		{
			name: "dnsPolicy None", ask: "www.corp.test.", pod: pods.Pod{DNS: pods.DNS{Policy: "None", Searches: []string{"corp.test", "lab.test"}}},
			want: "NOERROR www.lab.test. 192.0.2.8",
		},
		{name: "dnsPolicy Default", ask: "six.corp.test.", qtype: dns.TypeA, pod: pods.Pod{DNS: pods.DNS{Policy: "Default"}}, want: "NOERROR"},
		{name: "dnsPolicy None without searches", ask: "www.example.test" + first, pod: pods.Pod{DNS: pods.DNS{Policy: "None"}}, want: "NXDOMAIN"},
		{name: "the root as the first search", ask: "www.", pod: pods.Pod{DNS: pods.DNS{Policy: "None", Searches: []string{".", "lab.test"}}}, want: "NXDOMAIN"},
		{name: "seven searches", ask: "www.example.test" + first, pod: pods.Pod{DNS: pods.DNS{Searches: []string{"a.test", "b.test", "c.test"}}}, want: "NXDOMAIN"},
		{name: "a label of the pod", ask: "www.example.test" + first, pod: pods.Pod{DNS: pods.DNS{Skip: true}}, want: "NXDOMAIN"},
		{name: "an excepted namespace", ask: "www.example.test.excepted.svc.cluster.local.", pod: pods.Pod{Namespace: "excepted"}, want: "NXDOMAIN"},
		{name: "the second suffix", ask: "www.example.test.svc.cluster.local.", want: "NXDOMAIN"},
		{name: "another pod's namespace", ask: "www.example.test.other.svc.cluster.local.", want: "NXDOMAIN"},
		{name: "the suffix alone", ask: first[1:], want: "NOERROR"},
		{name: "another type", ask: "www.example.test" + first, qtype: dns.TypeTXT, want: "NXDOMAIN"},
		{name: "a client that validates", ask: "www.example.test" + first, do: true, want: "NXDOMAIN"},
		{
			name: "addresses of DNS64", ask: "v4.example.test" + first, qtype: dns.TypeAAAA, want: "NOERROR v4.example.test. 64:ff9b::c000:204",
			change: func(p *resolve.Plan) {
				p.DNS64, _ = resolve.NewDNS64(netip.MustParsePrefix("64:ff9b::/96"), false, true)
			},
		},
		{
			name: "a rewritten name", ask: "www.old.test" + first, want: "NOERROR www.old.test. 192.0.2.1",
			change: func(p *resolve.Plan) {
				p.Rewrites, _ = resolve.NewRewrites([]resolve.Rewrite{{Kind: resolve.RewriteSuffix, From: ".old.test", To: ".example.test"}})
			},
		},
		{name: "stale pods", ask: "www.example.test" + first, change: func(p *resolve.Plan) { p.Pods.Confirm(time.Now().Add(-time.Hour)) }, want: "NXDOMAIN"},
		{name: "an unknown pod", ask: "www.example.test" + first, change: func(p *resolve.Plan) { p.Pods.Delete("shop", "web") }, want: "NXDOMAIN"},
		{name: "off", ask: "www.example.test" + first, change: func(p *resolve.Plan) { p.SearchPath = false }, want: "NXDOMAIN"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			now := time.Now()
			s := shop(now)
			inSync(s)
			p := clusterPlan(t, s, false)
			u := newUpstream(t, append(records, "mail.example.com. 300 IN A 192.0.2.25")...)
			denyTheRest(t, u)
			p.Routes[0].Upstream = u
			if tt.pod.Name = "web"; tt.pod.Namespace == "" {
				tt.pod.Namespace = "shop"
			}
			c := searcher(t, p, &tt.pod)
			if tt.change != nil {
				tt.change(p)
				c = newClient(newResolver(t, p), false)
			}
			if tt.qtype == 0 {
				tt.qtype = dns.TypeA
			}
			for _, when := range []string{"first", "from memory"} {
				m := unpack(t, c.exchange(t, pack(t, question(tt.ask, tt.qtype).SetEdns0(1232, tt.do))))
				assert.Equal(t, when, tt.want, said(m, tt.ask))
				assert.Equal(t, "question", tt.ask, m.Question[0].Name)
			}
		})
	}
}

// said returns the rcode of a reply, the names after the one asked, and the addresses.
func said(m *dns.Msg, asked string) string {
	out := dns.RcodeToString[m.Rcode]
	for _, rr := range m.Answer {
		switch r := rr.(type) {
		case *dns.CNAME:
			if strings.EqualFold(r.Hdr.Name, asked) && r.Hdr.Ttl > 30 {
				out += fmt.Sprintf(" TTL %d", r.Hdr.Ttl)
			}
			out += " " + r.Target
		case *dns.A:
			out += " " + r.A.String()
		case *dns.AAAA:
			out += " " + r.AAAA.String()
		}
	}
	return out
}

// TestSearchDecidedOnce has the addresses of one family move to another suffix between the queries of a client.
func TestSearchDecidedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t, "web. 1 IN A 192.0.2.1", "web. 1 IN AAAA 2001:db8::1", "v4. 1 IN A 192.0.2.4")
		denyTheRest(t, u)
		p := plan(t, u)
		p.Routes[0].NoStore = true
		c := searcher(t, p, &pods.Pod{Namespace: "shop", Name: "web"})
		askFor := func(name string, qtype uint16) string {
			name += ".shop.svc.cluster.local."
			return said(unpack(t, c.exchange(t, pack(t, question(name, qtype)))), name)
		}
		ask := func(qtype uint16) string { return askFor("web", qtype) }
		assert.Equal(t, "A", "NOERROR web. 192.0.2.1", ask(dns.TypeA))
		rr := record(t, "web.corp.test. 1 IN AAAA 2001:db8::2")
		u.mu.Lock()
		u.records[dns.Question{Name: "web.corp.test.", Qtype: dns.TypeAAAA, Qclass: dns.ClassINET}] = []dns.RR{rr}
		u.mu.Unlock()
		assert.Equal(t, "AAAA, then", "NOERROR web. 2001:db8::1", ask(dns.TypeAAAA))
		time.Sleep(6 * time.Second)
		assert.Equal(t, "AAAA, later", "NOERROR web.corp.test. 2001:db8::2", ask(dns.TypeAAAA))
		assert.Equal(t, "A, then", "NOERROR web.corp.test.", ask(dns.TypeA))

		assert.Equal(t, "A alone", "NOERROR v4. 192.0.2.4", askFor("v4", dns.TypeA))
		u.mu.Lock()
		delete(u.records, dns.Question{Name: "v4.", Qtype: dns.TypeA, Qclass: dns.ClassINET})
		u.mu.Unlock()
		assert.Equal(t, "AAAA, once A is gone", "NXDOMAIN v4.", askFor("v4", dns.TypeAAAA))
	})
}

// TestSearchExplained explains the answer to a pod to a client on its node, and to no other.
func TestSearchExplained(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "www.example.test. 300 IN A 192.0.2.1")
	denyTheRest(t, u)
	p := plan(t, u)
	local(p)
	c := searcher(t, p, &pods.Pod{Namespace: "shop", Name: "web"})
	r, q := newResolver(t, p), wish("www.example.test.shop.svc.cluster.local.")
	if got := explanations(t, r, q); len(got) != 1 || !strings.HasPrefix(got[0], "source=upstream") {
		t.Errorf("as the node: %q", got)
	}
	q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: wire.OptionExplain, Data: c.from.Addr.Addr().AsSlice()}}
	assert.Same(t, "as the pod", []string{"source=search found=www.example.test. upstream=udp://192.0.2.53:53"}, explanations(t, r, q))
	q.Question[0].Name = "none.example.test.shop.svc.cluster.local."
	for _, want := range []string{"source=upstream upstream=udp://192.0.2.53:53", "source=cache state=fresh"} {
		if got := explanations(t, r, q); len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("a name under no suffix: %q, want %q", got, want)
		}
	}
	q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: wire.OptionExplain, Data: []byte{10, 9, 9, 9}}}
	c.from.Addr = netip.MustParseAddrPort("10.1.2.4:53")
	assert.Equal(t, "to a client elsewhere", "NXDOMAIN", said(unpack(t, c.exchange(t, pack(t, q))), ""))
}

// TestSearchUpstreamQueries bounds what a walk costs upstream: one query for each family and suffix.
func TestSearchUpstreamQueries(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	denyTheRest(t, u)
	c := searcher(t, plan(t, u), &pods.Pod{Namespace: "shop", Name: "web", DNS: pods.DNS{Searches: []string{"a.test", "b.test"}}})
	for range 2 {
		c.exchange(t, pack(t, question("x.y.shop.svc.cluster.local.", dns.TypeA)))
		c.exchange(t, pack(t, question("x.y.shop.svc.cluster.local.", dns.TypeAAAA)))
	}
	if got := u.count(); got > 2*7 {
		t.Errorf("%d queries for 7 names", got)
	}
}

// outsideName returns a client whose pod has found a name outside, and its query for that.
func outsideName(tb testing.TB, now time.Time) (c *client, q []byte) {
	tb.Helper()
	s := shop(now)
	inSync(s)
	p := clusterPlan(tb, s, false)
	u := newUpstream(tb, "www.example.test. 300 IN A 192.0.2.1")
	denyTheRest(tb, u)
	p.Routes[0].Upstream = u
	c, q = searcher(tb, p, &pods.Pod{Namespace: "shop", Name: "web"}), pack(tb, question("www.example.test.shop.svc.cluster.local.", dns.TypeA))
	c.exchange(tb, q)
	return c, q
}

// TestSearchAllocations walks from memory, which allocates nothing once the name was found.
func TestSearchAllocations(t *testing.T) {
	now := time.Now()
	c, q := outsideName(t, now)
	wantNoAllocations(t, c.worker, &c.from, q, now)
}

// BenchmarkSearch is a walk from memory over four suffixes to a name in the cache.
func BenchmarkSearch(b *testing.B) {
	now := time.Now()
	c, q := outsideName(b, now)
	dst := make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		if _, verdict := c.worker.AnswerFromMemory(q, &c.from, now, dst); verdict != wire.Answered {
			b.Fatal("a miss")
		}
		c.worker.Flush(now)
	}
}

// TestSearchFlood has a pod ask for as many names as it can while upstream is silent: walks have the places of their client.
func TestSearchFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t)
		denyTheRest(t, u)
		u.gate = make(chan struct{})
		p := plan(t, u)
		p.PerClient = 10
		searcher(t, p, &pods.Pod{Namespace: "shop", Name: "web"})
		r := newResolver(t, p)
		c := newClient(r, false)
		c.got = make(chan []byte, 100)
		for i := range 100 {
			c.send(pack(t, question(fmt.Sprintf("x%d.shop.svc.cluster.local.", i), dns.TypeA)))
		}
		assert.Equal(t, "waiting", 10, r.Stats().Waiting)
		close(u.gate)
		synctest.Wait()
		rcodes := map[int]int{}
		for range 100 {
			rcodes[unpack(t, <-c.got).Rcode]++
		}
		assert.Same(t, "replies", map[int]int{dns.RcodeServerFailure: 90, dns.RcodeNameError: 10}, rcodes)
		assert.Equal(t, "in-flight queries afterwards", 0, r.Stats().Inflight+r.Stats().Waiting)
	})
}

// TestSearchLargeDenial shows that a denial of many KiB, which an upstream may send to a client over TCP, is not held for a walk.
func TestSearchLargeDenial(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.mangle = func(m *dns.Msg) {
		m.Rcode, m.Compress = dns.RcodeNameError, false
		owner := m.Question[0].Name
		for i := range 16 {
			letter := string(rune('a' + i)) // no two names share what is long
			target := strings.Repeat(strings.Repeat(letter, 63)+".", 3) + strings.Repeat(letter, 50) + ".corp.test."
			m.Answer = append(m.Answer, &dns.CNAME{Hdr: dns.RR_Header{Name: owner, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: 300}, Target: target})
			owner = target
		}
	}
	p := plan(t, u)
	searcher(t, p, &pods.Pod{Namespace: "shop", Name: "web", DNS: pods.DNS{Policy: "None", Searches: []string{"corp.test", "lab.test"}}})
	c := newClient(newResolver(t, p), true)
	m := unpack(t, c.exchange(t, pack(t, question("x.corp.test.", dns.TypeA))))
	assert.Equal(t, "rcode", dns.RcodeNameError, m.Rcode)
	if reply := pack(t, m); len(reply) < 4_097 {
		t.Errorf("a denial of %d bytes", len(reply))
	}
	assert.Equal(t, "queries", 1, u.count())
}

// TestSearchDeadline has an upstream that answers after two seconds each time: the client gets the denial within its deadline.
func TestSearchDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t)
		denyTheRest(t, u)
		p := plan(t, u)
		c := searcher(t, p, &pods.Pod{Namespace: "shop", Name: "web"})
		p.Routes[0].Upstream = slowAsker{u, 2 * time.Second}
		began := time.Now()
		m := unpack(t, c.exchange(t, pack(t, question("x.shop.svc.cluster.local.", dns.TypeA))))
		assert.Equal(t, "reply", "NXDOMAIN", said(m, ""))
		assert.Equal(t, "after", p.Deadline, time.Since(began))
	})
}

// A slowAsker passes queries on after some time.
type slowAsker struct {
	*upstream
	wait time.Duration
}

// Ask implements resolve.Asker.
func (s slowAsker) Ask(q []byte, until time.Time, to wire.AnswerReceiver, _ *wire.SendBatch) {
	time.AfterFunc(s.wait, func() {
		var batch wire.SendBatch
		s.upstream.Ask(q, until, to, &batch)
		batch.Flush()
	})
}

// A world says what exists, by a hash of the name and a seed.
type world uint64

// truth is what upstream answers: its rcode, and whether there are addresses.
func (w world) truth(name string, qtype uint16) (rcode int, found bool) {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d %s", w, name)
	x := h.Sum64() >> 8
	switch x % 16 {
	case 0, 1, 2, 3:
		return dns.RcodeSuccess, true
	case 4:
		return dns.RcodeSuccess, qtype == dns.TypeA
	case 5:
		return dns.RcodeSuccess, qtype == dns.TypeAAAA
	case 6:
		return dns.RcodeSuccess, false
	case 7:
		return dns.RcodeServerFailure, false
	case 8: // a server that does not know AAAA (RFC 4074)
		if qtype == dns.TypeAAAA {
			return dns.RcodeServerFailure, false
		}
		return dns.RcodeSuccess, true
	case 9:
		if qtype == dns.TypeAAAA {
			return dns.RcodeNameError, false
		}
		return dns.RcodeSuccess, true
	}
	return dns.RcodeNameError, false
}

// A stub is a resolver library. It looks a name up with a search list, and returns what the program gets.
type stub func(name string, search []string, ndots int, types []uint16, ask func(name string, qtype uint16) (rcode int, addrs []string)) string

// both asks for all types, as stubs do.
func both(name string, types []uint16, ask func(string, uint16) (int, []string)) (rcodes []int, addrs []string) {
	for _, qtype := range types {
		rcode, got := ask(name, qtype)
		rcodes, addrs = append(rcodes, rcode), append(addrs, got...)
	}
	return rcodes, addrs
}

// glibc is getaddrinfo of glibc 2.41 (res_query.c): a suffix without addresses is skipped.
func glibc(name string, search []string, ndots int, types []uint16, ask func(string, uint16) (int, []string)) string {
	noData, failed := false, false
	try := func(name string) (addrs []string) {
		rcodes, addrs := both(name, types, ask)
		noData = noData || slices.Contains(rcodes, dns.RcodeSuccess)
		failed = failed || slices.Contains(rcodes, dns.RcodeServerFailure)
		return addrs
	}
	names := make([]string, 0, len(search)+1)
	for _, suffix := range search {
		names = append(names, name+"."+suffix+".")
	}
	if strings.Count(name, ".") >= ndots {
		names = append([]string{name + "."}, names...)
	} else {
		names = append(names, name+".")
	}
	for _, name := range names {
		if addrs := try(name); len(addrs) > 0 {
			return strings.Join(addrs, " ")
		}
	}
	switch {
	case noData:
		return "no data"
	case failed:
		return "try again"
	}
	return "no name"
}

// musl is getaddrinfo of musl 1.2.5 (lookup_name.c): only a denial continues the search.
func musl(name string, search []string, ndots int, types []uint16, ask func(string, uint16) (int, []string)) string {
	try := func(name string) string {
		rcodes, addrs := both(name, types, ask)
		for _, rcode := range rcodes {
			switch rcode {
			case dns.RcodeServerFailure:
				return "try again"
			case dns.RcodeNameError:
				return ""
			}
		}
		if len(addrs) > 0 {
			return strings.Join(addrs, " ")
		}
		return "no data"
	}
	if strings.Count(name, ".") < ndots {
		for _, suffix := range search {
			if got := try(name + "." + suffix + "."); got != "" {
				return got
			}
		}
	}
	if got := try(name + "."); got != "" {
		return got
	}
	return "no name"
}

// TestSearchWorlds compares what clients find with the walk and without it.
func TestSearchWorlds(t *testing.T) {
	t.Parallel()
	worlds := proctest.OrdinaryOrSoak(3_000, 1_000_000)
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		var w world
		u := newUpstream(t)
		soa, a, aaaa := record(t, ". 600 IN SOA ns.test. host.test. 1 3600 600 86400 20"), record(t, "x. 300 IN A 192.0.2.1"), record(t, "x. 300 IN AAAA 2001:db8::1")
		u.mangle = func(m *dns.Msg) {
			q, found := m.Question[0], false
			if m.Rcode, found = w.truth(q.Name, q.Qtype); found {
				rr := dns.Copy(map[uint16]dns.RR{dns.TypeA: a, dns.TypeAAAA: aaaa}[q.Qtype])
				rr.Header().Name = q.Name
				m.Answer = []dns.RR{rr}
			} else if m.Rcode != dns.RcodeServerFailure {
				m.Ns = []dns.RR{soa}
			}
		}
		p := plan(t, u)
		p.SearchPath, p.Pods = true, pods.NewIndex(time.Minute, searchHost())
		walking, plain := newClient(newResolver(t, p), false), newClient(newResolver(t, plan(t, u)), false)
		found, saved, queries := 0, 0, 0
		for i := range worlds {
			w = world(i)
			pod := pods.Pod{Namespace: fmt.Sprint("n", i), Name: "web", Addrs: []netip.Addr{walking.from.Addr.Addr()}, DNS: pods.DNS{Ndots: random.IntN(7)}}
			search := []string{pod.Namespace + ".svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.test"}
			ndots := 5
			if random.IntN(4) == 0 {
				pod.DNS.Searches = []string{"lab.test"}
				search = append(search, "lab.test")
			}
			if random.IntN(4) == 0 {
				pod.DNS.Policy, pod.DNS.Searches = "None", []string{fmt.Sprint("n", i, ".test"), "corp.test"}
				search, ndots = pod.DNS.Searches, 1
			}
			if pod.DNS.Ndots > 0 {
				ndots = pod.DNS.Ndots
			}
			p.Pods.Retain(func(string, string) bool { return false })
			p.Pods.Put(&pod)
			p.Pods.Confirm(time.Now())
			name := fmt.Sprint("x", i, []string{"", ".web", ".b.c", ".d.e.f.g.h"}[random.IntN(4)])
			types := [][]uint16{{dns.TypeA, dns.TypeAAAA}, {dns.TypeAAAA, dns.TypeA}, {dns.TypeA}, {dns.TypeAAAA}}[random.IntN(4)]
			for lib, look := range map[string]stub{"glibc": glibc, "musl": musl} {
				asked := map[*client]int{}
				from := func(c *client) func(string, uint16) (int, []string) {
					return func(name string, qtype uint16) (int, []string) {
						asked[c]++
						m := unpack(t, c.exchange(t, pack(t, question(name, qtype))))
						var addrs []string
						for _, rr := range m.Answer {
							if rr.Header().Rrtype == qtype {
								addrs = append(addrs, fmt.Sprint(rr.Header().Name, rr.Header().Rrtype)) // where it was found
							}
						}
						return m.Rcode, addrs
					}
				}
				want, got := look(name, search, ndots, types, from(plain)), look(name, search, ndots, types, from(walking))
				if got != want {
					t.Fatalf("world %d, %s, %s in %v, ndots %d, types %v: %q, want %q", i, lib, name, search, ndots, types, got, want)
				}
				if asked[walking] > asked[plain] {
					t.Fatalf("world %d, %s, %s: %d queries, without walks %d", i, lib, name, asked[walking], asked[plain])
				}
				if asked[walking] < asked[plain] {
					found++
				}
				saved += asked[plain] - asked[walking]
				queries += asked[plain]
			}
			if i%100 == 0 {
				time.Sleep(time.Minute) // failures expire, and the table of decisions with them
				u.asked = nil
			}
		}
		proctest.Figure(t, "%d worlds: equal; %d searches with fewer queries, %d of %d queries saved", worlds, found, saved, queries)
		if found == 0 {
			t.Error("no walk found anything")
		}
	})
}
