// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	gocmp "cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// making gives a plan a DNS64 for clients over IPv6.
func making(tb testing.TB, p *resolve.Plan, all bool) {
	tb.Helper()
	var err error
	if p.DNS64, err = resolve.NewDNS64(netip.MustParsePrefix("64:ff9b::/96"), all, false); err != nil {
		tb.Fatal(err)
	}
}

// newClient6 is a client that asks over IPv6.
func newClient6(r *resolve.Resolver) *client {
	c := newClient(r, false)
	c.from.Addr = netip.MustParseAddrPort("[fd00::7]:4567")
	return c
}

// TestDNS64Prefixes embeds an address into the prefixes of RFC 6052 section 2.4, and leads back from it.
func TestDNS64Prefixes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ prefix, want string }{
		{"2001:db8::/32", "2001:db8:c000:221::"},
		{"2001:db8:100::/40", "2001:db8:1c0:2:21::"},
		{"2001:db8:122::/48", "2001:db8:122:c000:2:2100::"},
		{"2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"},
		{"2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100:0"},
		{"2001:db8:122:344::/96", "2001:db8:122:344::c000:221"},
		{"64:ff9b::/96", "64:ff9b::c000:221"},
	} {
		t.Run(tt.prefix, func(t *testing.T) {
			t.Parallel()
			p := plan(t, newUpstream(t, "four.test. 60 IN A 192.0.2.33", "33.2.0.192.in-addr.arpa. 60 IN PTR four.test."))
			p.DNS64, _ = resolve.NewDNS64(netip.MustParsePrefix(tt.prefix), false, false)
			r := newResolver(t, p)
			for range 2 {
				got := unpack(t, newClient6(r).exchange(t, pack(t, question("four.test.", dns.TypeAAAA))))
				if got := gist(got); got != "NOERROR four.test.; four.test. AAAA "+tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
				name, err := dns.ReverseAddr(tt.want)
				assert.NoError(t, err)
				got = unpack(t, newClient6(r).exchange(t, pack(t, question(name, dns.TypePTR))))
				want := fmt.Sprintf("NOERROR %s; %s CNAME 33.2.0.192.in-addr.arpa.; 33.2.0.192.in-addr.arpa. PTR four.test.", name, name)
				assert.Same(t, "got", want, gist(got))
			}
		})
	}
	for _, prefix := range []string{"192.0.2.0/24", "fd00::/33", "2001:db8:0:0:ff00::/96"} {
		if _, err := resolve.NewDNS64(netip.MustParsePrefix(prefix), false, false); err == nil {
			t.Errorf("%s is taken", prefix)
		}
	}
}

// sixWorld is a plan with a DNS64, and names with all there can be to make addresses of.
func sixWorld(t *testing.T, all bool) (*resolve.Plan, *upstream) {
	t.Helper()
	s := shop(time.Now())
	putDB(s, "10.1.0.1", "10.1.0.2")
	inSync(s)
	p := clusterPlan(t, s, true)
	u := newUpstream(t,
		"four.test. 300 IN A 192.0.2.1", "both.test. 300 IN A 192.0.2.2", "both.test. 300 IN AAAA 2001:db8::2",
		"mapped.test. 300 IN A 192.0.2.3", "mapped.test. 300 IN AAAA ::ffff:192.0.2.3",
		"nosix.test. 300 IN A 192.0.2.4", "nosixblocked.test. 300 IN A 0.0.0.0", "long.test. 900 IN A 192.0.2.5", "mail.example.com. 300 IN A 192.0.2.25",
		"mixed.test. 300 IN A 192.0.2.8", "mixed.test. 300 IN AAAA ::ffff:192.0.2.8", "mixed.test. 300 IN AAAA 2001:db8::8",
		"mixedsix.test. 300 IN AAAA 2001:db8::9", "mixedsix.test. 300 IN AAAA ::ffff:192.0.2.9",
		"mappedblocked.test. 300 IN A 0.0.0.0", "mappedblocked.test. 300 IN AAAA ::ffff:0.0.0.0",
		"halfblocked.test. 300 IN A 127.0.0.1", "halfblocked.test. 300 IN A 192.0.2.10", "halfblocked.test. 300 IN A 0.0.0.0",
		"short.test. 20 IN A 192.0.2.6", "many.test. 900 IN A 192.0.2.11", "six.test. 300 IN AAAA 2001:db8::6", "nofour.test. 300 IN AAAA ::ffff:192.0.2.3",
	)
	soa, _ := dns.NewRR("test. 200 IN SOA ns.test. host.test. 1 2 3 4 100")
	mapped, _ := dns.NewRR("onlymapped.test. 300 IN AAAA ::ffff:192.0.2.3")
	u.mangle = func(m *dns.Msg) {
		q := m.Question[0]
		m.AuthenticatedData = true
		switch {
		case strings.HasPrefix(q.Name, "nosix") && q.Qtype == dns.TypeAAAA, q.Name == "nofour.test." && q.Qtype == dns.TypeA, q.Name == "dead.test.":
			m.Rcode = dns.RcodeServerFailure
		case q.Name == "onlymapped.test." && q.Qtype == dns.TypeAAAA:
			m.Answer = []dns.RR{mapped}
		case q.Name == "many.test." && q.Qtype == dns.TypeAAAA: // more than a reply over UDP holds
			for i := range 300 {
				rr, _ := dns.NewRR(fmt.Sprintf("many.test. 300 IN AAAA ::ffff:192.0.2.%d", i%256))
				m.Answer = append(m.Answer, rr)
			}
			m.Ns = []dns.RR{soa}
		case q.Name == "none.test.":
			m.Rcode, m.Ns = dns.RcodeNameError, []dns.RR{soa}
		case q.Name == "alias.test.":
			cname, _ := dns.NewRR("alias.test. 250 IN CNAME four.test.")
			m.Answer = []dns.RR{cname}
			if q.Qtype == dns.TypeA {
				a, _ := dns.NewRR("four.test. 300 IN A 192.0.2.1")
				m.Answer = append(m.Answer, a)
			} else {
				m.Ns = []dns.RR{soa}
			}
		case q.Name == "long.test." && q.Qtype == dns.TypeAAAA: // without SOA: no TTL for the denial
		case len(m.Answer) == 0:
			m.Ns = []dns.RR{soa}
		}
	}
	p.Routes[0].Upstream = u
	making(t, p, all)
	rewriting(t, p, "exact other.example four.test", "exact db.example db.shop.svc.cluster.local", "exact only.example ipv4only.arpa")
	p.LocalData = fixed(t, map[string]string{"four.hosts": "192.0.2.77", "blocked.hosts": "0.0.0.0", "own.hosts": "127.0.0.1", "six.hosts": "192.0.2.78 fd00::78"},
		"made. A: {{ .Name }} 60 IN A 192.0.2.9", "alias. A: {{ .Name }} 60 IN CNAME four.test.", "alias-longer. AAAA: ", "alias-longer.: {{ .Name }} 60 IN CNAME four.test.",
		"web. A: {{ .Name }} 60 IN CNAME web.shop.svc.cluster.local.", "gone. A: {{ .Name }} 60 IN CNAME two.test.", "bad. A: {{ .Name }} nonsense")
	return p, u
}

// TestDNS64 asks for addresses, from every place an answer comes from.
func TestDNS64(t *testing.T) {
	t.Parallel()
	const own = "shop.svc.cluster.local."
	reverse := func(addr string) string {
		name, _ := dns.ReverseAddr(addr)
		return name
	}
	host, cluster, known := reverse("64:ff9b::c000:24d"), reverse("64:ff9b::a60:7"), reverse("64:ff9b::c000:aa")
	for _, tt := range []struct {
		name   string
		ask    string
		rrtype uint16 // AAAA if it is zero
		all    bool
		query  func(*dns.Msg)
		from4  bool
		want   string // with TTLs
	}{
		{name: "made", ask: "four.test.", want: "NOERROR | four.test. 30 64:ff9b::c000:201"},
		{name: "no TTL for the denial", ask: "long.test.", want: "NOERROR | long.test. 600 64:ff9b::c000:205"},
		{name: "there is one, made all the same", ask: "both.test.", all: true, want: "NOERROR | both.test. 300 64:ff9b::c000:202"},
		{name: "there is one, none to be made of", ask: "six.test.", all: true, want: "NOERROR | six.test. 300 2001:db8::6"},
		{name: "one in the form of IPv4", ask: "mapped.test.", want: "NOERROR | mapped.test. 300 64:ff9b::c000:203"},
		{name: "one in the form of IPv4, none to be made of", ask: "onlymapped.test.", want: "NOERROR / test."},
		{name: "more in the form of IPv4 than a reply holds, before who says for how long", ask: "many.test.", want: "NOERROR | many.test. 600 64:ff9b::c000:20b"},
		{name: "one in the form of IPv4, blocked", ask: "mappedblocked.test.", want: "NOERROR"},
		{name: "one in the form of IPv4 among others", ask: "mixed.test.", want: "NOERROR | mixed.test. 300 2001:db8::8"},
		{name: "one in the form of IPv4 among others, made all the same", ask: "mixed.test.", all: true, want: "NOERROR | mixed.test. 300 64:ff9b::c000:208"},
		{name: "one in the form of IPv4 among others, none to be made of", ask: "mixedsix.test.", all: true, want: "NOERROR | mixedsix.test. 300 2001:db8::9"},
		{name: "one in the form of IPv4, a client over IPv4", ask: "mapped.test.", from4: true, want: "NOERROR | mapped.test. 300 ::ffff:192.0.2.3"},
		{name: "some addresses blocked", ask: "halfblocked.test.", want: "NOERROR | halfblocked.test. 30 64:ff9b::c000:20a"},
		{name: "an alias", ask: "alias.test.", want: "NOERROR | alias.test. 250 four.test. | four.test. 30 64:ff9b::c000:201"},
		{name: "no address at all", ask: "empty.test.", want: "NOERROR / test."},
		{name: "no answer for IPv6", ask: "nosix.test.", want: "NOERROR | nosix.test. 300 64:ff9b::c000:204"},
		{name: "no answer for IPv4", ask: "nofour.test.", want: "SERVFAIL"},
		{name: "no answer at all", ask: "dead.test.", want: "SERVFAIL"},
		{name: "a client that knows of DNSSEC", ask: "four.test.", query: func(m *dns.Msg) { m.SetEdns0(1232, true) }, want: "NOERROR | four.test. 30 64:ff9b::c000:201"},
		{name: "rewritten", ask: "Other.example.", want: "NOERROR | Other.example. 30 64:ff9b::c000:201"},
		{name: "of the cluster", ask: "web." + own, want: "NOERROR aa | web." + own + " 5 64:ff9b::a60:7"},
		{name: "of the cluster, denied", ask: "none." + own, want: "NXDOMAIN aa / cluster.local."},
		{name: "of the cluster, rewritten", ask: "db.example.", want: "NOERROR aa | db.example. 5 64:ff9b::a01:1 | db.example. 5 64:ff9b::a01:2"},
		{name: "an alias of the cluster's", ask: "mail." + own, want: "NOERROR aa | mail." + own + " 5 mail.example.com. | mail.example.com. 300 64:ff9b::c000:219"},
		{name: "of the configuration", ask: "four.hosts.", want: "NOERROR aa | four.hosts. 30 64:ff9b::c000:24d"},
		{name: "of the configuration, blocked", ask: "blocked.hosts.", want: "NOERROR aa"},
		{name: "of the configuration, the client itself", ask: "own.hosts.", want: "NOERROR aa"},
		{name: "no answer for IPv6, blocked", ask: "nosixblocked.test.", want: "SERVFAIL"},
		{name: "of the configuration, with one", ask: "six.hosts.", want: "NOERROR aa | six.hosts. 30 fd00::78"},
		{name: "the name that tells the prefix, made all the same", ask: "ipv4only.arpa.", all: true, want: "NOERROR aa | ipv4only.arpa. 600 64:ff9b::c000:aa | ipv4only.arpa. 600 64:ff9b::c000:ab"},
		{name: "the name that tells the prefix, over IPv4", ask: "ipv4only.arpa.", from4: true, want: "NOERROR aa"},
		{name: "the name that tells the prefix, rewritten", ask: "only.example.", want: "NOERROR aa | only.example. 3600 64:ff9b::c000:aa | only.example. 3600 64:ff9b::c000:ab"},
		{name: "its IPv4 addresses", ask: "ipv4only.arpa.", rrtype: dns.TypeA, want: "NOERROR aa | ipv4only.arpa. 3600 192.0.0.170 | ipv4only.arpa. 3600 192.0.0.171"},
		{name: "its other types", ask: "ipv4only.arpa.", rrtype: dns.TypeNS, want: "NOERROR aa"},
		{name: "a name below it", ask: "www.IPv4only.arpa.", want: "NXDOMAIN aa"},
		{name: "a name that only ends in its letters", ask: `\008ipv4only.arpa.`, rrtype: dns.TypeA, want: "NOERROR"},
		{name: "its reverse name", ask: "171.0.0.192.in-addr.arpa.", rrtype: dns.TypePTR, want: "NOERROR aa | 171.0.0.192.in-addr.arpa. 3600 ipv4only.arpa."},
		{name: "its other reverse name", ask: "170.0.0.192.in-addr.arpa.", rrtype: dns.TypePTR, want: "NOERROR aa | 170.0.0.192.in-addr.arpa. 3600 ipv4only.arpa."},
		{name: "another type of its reverse name", ask: "170.0.0.192.in-addr.arpa.", rrtype: dns.TypeTXT, want: "NOERROR aa"},
		{name: "a name below its reverse name", ask: "x.170.0.0.192.in-addr.arpa.", rrtype: dns.TypePTR, want: "NXDOMAIN aa"},
		{name: "its reverse name in the prefix", ask: known, rrtype: dns.TypePTR, want: "NOERROR aa | " + known + " 600 170.0.0.192.in-addr.arpa. | 170.0.0.192.in-addr.arpa. 3600 ipv4only.arpa."},
		{name: "a host's reverse name", ask: host, rrtype: dns.TypePTR, want: "NOERROR aa | " + host + " 600 77.2.0.192.in-addr.arpa. | 77.2.0.192.in-addr.arpa. 30 four.hosts."},
		{name: "a cluster address's reverse name", ask: cluster, rrtype: dns.TypePTR, want: "NOERROR aa | " + cluster + " 600 7.0.96.10.in-addr.arpa. | 7.0.96.10.in-addr.arpa. 5 web.shop.svc.cluster.local."},
		{name: "another type of a reverse name", ask: host, rrtype: dns.TypeTXT, want: "NOERROR"},
		{name: "a reverse name outside the prefix", ask: reverse("64:ff9b:1::1"), rrtype: dns.TypePTR, want: "NOERROR"},
		{name: "a reverse name with another letter", ask: strings.Replace(host, "d", "g", 1), rrtype: dns.TypePTR, want: "NOERROR"},
		{name: "a template", ask: "x.made.", want: "NOERROR aa | x.made. 60 64:ff9b::c000:209"},
		{name: "an alias of a template", ask: "x.alias.", want: "NOERROR aa | x.alias. 60 four.test. | four.test. 300 64:ff9b::c000:201"},
		{name: "an alias of a template without IPv6", ask: "x.alias-longer.", want: "NOERROR aa | x.alias-longer. 60 four.test. | four.test. 300 64:ff9b::c000:201"},
		{name: "an alias of a template, of the cluster", ask: "x.web.", want: "NOERROR aa | x.web. 60 web.shop.svc.cluster.local. | web.shop.svc.cluster.local. 5 64:ff9b::a60:7"},
		{name: "an alias of a template, denied", ask: "x.gone.", want: "NOERROR aa | x.gone. 60 two.test. / test."},
		{name: "a template that fails", ask: "x.bad.", want: "SERVFAIL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, u := sixWorld(t, tt.all)
				r := newResolver(t, p)
				for range 3 { // asked for, and held
					m := question(tt.ask, gocmp.Or(tt.rrtype, dns.TypeAAAA))
					m.AuthenticatedData = true
					if tt.query != nil {
						tt.query(m)
					}
					c := newClient6(r)
					if tt.from4 {
						c = newClient(r, false)
					}
					got := unpack(t, c.exchange(t, pack(t, m)))
					assert.Same(t, "got", sortedSay(tt.want), sortedSay(say(got)))
					if got.Question[0] != m.Question[0] || strings.Contains(tt.want, "64:") && got.AuthenticatedData {
						t.Errorf("question %v, AD %t", got.Question[0], got.AuthenticatedData)
					}
				}
				for _, asked := range u.asked {
					if name := asked.Question[0].Name; strings.HasPrefix(name, "ipv4only") || strings.HasSuffix(name, ".192.in-addr.arpa.") {
						t.Errorf("asked for %s", name)
					}
				}
			})
		})
	}
}

// sortedSay is what say gives with its records in order.
func sortedSay(text string) []string {
	return sortedGist(strings.ReplaceAll(text, " | ", "; "))
}

// TestDNS64SharesQueries has clients wait for both queries. Each is sent once for all clients.
func TestDNS64SharesQueries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t, "four.test. 300 IN A 192.0.2.1")
		six, four := make(chan struct{}), make(chan struct{})
		u.gate = six
		p := plan(t, u)
		p.PerClient = 3
		making(t, p, false)
		r := newResolver(t, p)
		clients := make([]*client, 3)
		for i, rrtype := range []uint16{dns.TypeAAAA, dns.TypeAAAA, dns.TypeA} {
			clients[i] = newClient6(r)
			if rrtype == dns.TypeA {
				u.mu.Lock()
				u.gate = four
				u.mu.Unlock()
			}
			clients[i].send(pack(t, question("four.test.", rrtype)))
		}
		synctest.Wait()
		close(six)
		synctest.Wait()
		if s := r.Stats(); s.Waiting != 3 || s.Inflight != 1 || s.Clients != 1 {
			t.Errorf("with the second question: %d waiting, %d in-flight queries, %d clients; want 3, 1, 1", s.Waiting, s.Inflight, s.Clients)
		}
		late := newClient6(r)
		late.send(pack(t, question("four.test.", dns.TypeAAAA)))
		if got := unpack(t, <-late.got); got.Rcode != dns.RcodeServerFailure || got.Question[0].Qtype != dns.TypeAAAA {
			t.Errorf("a fourth of one client: %s", gist(got))
		}
		close(four)
		for i, want := range []string{"AAAA 64:ff9b::c000:201", "AAAA 64:ff9b::c000:201", "A 192.0.2.1"} {
			if got := gist(unpack(t, <-clients[i].got)); got != "NOERROR four.test.; four.test. "+want {
				t.Errorf("client %d: %s", i, got)
			}
		}
		s := r.Stats()
		if u.count() != 2 || s.Waiting != 0 || s.Inflight != 0 || s.Clients != 0 || s.Panics != 0 || s.Synthesized != 2 {
			t.Errorf("%d asked, %+v", u.count(), s)
		}
		assert.Equal(t, "counted as from upstream", 3, s.Responses[resolve.SourceUpstream][0])
	})
}

// TestDNS64Deadline has the second question take what the first has left of the client's time.
func TestDNS64Deadline(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		six, four time.Duration // what upstream takes
		fails     bool          // it has no answer to the first
		want      string
		after     time.Duration
	}{
		{name: "in time", six: time.Second, four: 2 * time.Second, want: "NOERROR | four.test. 30 64:ff9b::c000:201", after: 3 * time.Second},
		{name: "the second too late", six: time.Second, four: 4 * time.Second, want: "SERVFAIL", after: 4 * time.Second},
		{name: "no answer to the first", six: time.Hour, four: time.Second, want: "NOERROR | four.test. 300 64:ff9b::c000:201", after: 3 * time.Second},
		{name: "no answer to either", six: time.Hour, four: time.Hour, want: "SERVFAIL", after: 4 * time.Second},
		{name: "the first fails in time", six: time.Second, four: time.Second, fails: true, want: "NOERROR | four.test. 300 64:ff9b::c000:201", after: 2 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var untils []time.Time
				p := plan(t, asker(func(q []byte, until time.Time, to wire.AnswerReceiver, _ *wire.SendBatch) {
					untils = append(untils, until)
					m, took, fails := new(dns.Msg).SetReply(unpack(t, q)), tt.six, tt.fails
					if m.Question[0].Qtype == dns.TypeA {
						took, fails = tt.four, false
						m.Answer = []dns.RR{record(t, "four.test. 300 IN A 192.0.2.1")}
					} else {
						m.Ns = []dns.RR{record(t, "test. 600 IN SOA ns.test. host.test. 1 2 3 4 600")}
					}
					var err error
					if left := time.Until(until); fails || took > left {
						took, err = min(took, left), errors.New("silence")
					}
					time.AfterFunc(took, func() {
						var batch wire.SendBatch
						respond(to, pack(t, m), err, &batch)
						batch.Flush()
					})
				}))
				making(t, p, false)
				r := newResolver(t, p)
				begun := time.Now()
				c := newClient6(r)
				c.send(pack(t, question("four.test.", dns.TypeAAAA)))
				got := say(unpack(t, <-c.got))
				if took := time.Since(begun); got != tt.want || took != tt.after {
					t.Errorf("%s after %s, want %s after %s", got, took, tt.want, tt.after)
				}
				for i, until := range untils {
					if want := begun.Add(time.Duration(i+1) * p.Deadline / 2); !until.Equal(want) {
						t.Errorf("a question until %s, want %s", until, want)
					}
				}
				synctest.Wait()
				if s := r.Stats(); s.Waiting != 0 || s.Inflight != 0 || s.Panics != 0 || s.Durations[resolve.SourceUpstream].Total+s.Durations[resolve.SourceFailure].Total != tt.after {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// TestDNS64Signed leaves an address out of a set that was signed and found to be right: what is left is neither. A set
// that is whole is both.
func TestDNS64Signed(t *testing.T) {
	t.Parallel()
	p, u := sixWorld(t, false)
	mangle := u.mangle
	u.mangle = func(m *dns.Msg) {
		mangle(m)
		if name := m.Question[0].Name; len(m.Answer) > 0 {
			signature, _ := dns.NewRR(name + " 300 IN RRSIG AAAA 8 2 300 20300101000000 20200101000000 1 test. AAAA")
			m.Answer = append(slices.Clip(m.Answer), signature)
		}
	}
	r := newResolver(t, p)
	for name, whole := range map[string]bool{"both.test.": true, "mixed.test.": false} {
		for _, when := range []string{"asked for", "held"} {
			m := question(name, dns.TypeAAAA)
			m.SetEdns0(1232, true)
			got := unpack(t, newClient6(r).exchange(t, pack(t, m)))
			if signed := strings.Contains(got.String(), "RRSIG"); signed != whole || got.AuthenticatedData != whole || strings.Contains(say(got), "::ffff:") {
				t.Errorf("%s, %s: signed %t, want %t: %v", name, when, signed, whole, got)
			}
		}
	}
}

// TestDNS64WellKnownTarget follows an alias to the well-known name. No upstream is queried for it.
func TestDNS64WellKnownTarget(t *testing.T) {
	t.Parallel()
	for _, all := range []bool{false, true} {
		u := newUpstream(t)
		p := plan(t, u)
		p.LocalData = fixed(t, nil, "well.: {{ .Name }} 60 IN CNAME ipv4only.arpa.")
		making(t, p, all)
		r := newResolver(t, p)
		for rrtype, want := range map[uint16]string{
			dns.TypeAAAA: "NOERROR x.well.; x.well. CNAME ipv4only.arpa.; ipv4only.arpa. AAAA 64:ff9b::c000:aa; ipv4only.arpa. AAAA 64:ff9b::c000:ab",
			dns.TypeA:    "NOERROR x.well.; x.well. CNAME ipv4only.arpa.; ipv4only.arpa. A 192.0.0.170; ipv4only.arpa. A 192.0.0.171",
		} {
			got := gist(unpack(t, newClient6(r).exchange(t, pack(t, question("x.well.", rrtype)))))
			if diff := cmp.Diff(want, got); diff != "" || u.count() != 0 {
				t.Errorf("all %t, %d asked (-want +got):\n%s", all, u.count(), diff)
			}
		}
	}
}
