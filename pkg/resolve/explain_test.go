// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// near and far are a client on this machine and another.
const near, stranger = "169.254.20.10:4567", "10.1.2.3:4567"

// wish is a question that asks to be told how its reply comes about.
func wish(name string, rrtype uint16) *dns.Msg {
	m := query(name, rrtype)
	m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: wire.OptionExplain}}
	return m
}

// local has a plan explain to the client near.
func local(p *resolve.Plan) {
	p.Local = func(a netip.Addr) bool { return a == netip.MustParseAddrPort(near).Addr() }
}

// explanations sends q as a client and gives what the reply explains.
func explanations(t *testing.T, r *resolve.Resolver, from string, q *dns.Msg) (list []string) {
	t.Helper()
	c := newClient(r, false)
	c.from.Addr = netip.MustParseAddrPort(from)
	m := unpack(t, c.exchange(t, pack(t, q)))
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if told, ok := o.(*dns.EDNS0_LOCAL); ok {
				if told.Code != wire.OptionExplain {
					t.Errorf("option %d", told.Code)
				}
				list = append(list, string(told.Data))
			}
		}
	}
	return list
}

// TestExplain checks the explanation in each state: none for remote clients, the expected text for
// local ones.
func TestExplain(t *testing.T) {
	t.Parallel()
	www := func() *dns.Msg { return wish("www.test.", dns.TypeA) }
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, y *stateTest) // nil: nothing is to be done
		q       *dns.Msg                         // nil: www
		want    string
	}{
		{name: "upstream", want: "source=upstream left=100s took=0.00ms route=."},
		{
			name: "upstream, slowly", prepare: func(_ *testing.T, y *stateTest) { y.u.be("slow") },
			want: "source=upstream left=100s took=300.00ms route=.",
		},
		{
			name: "an answer that may not be kept", prepare: func(_ *testing.T, y *stateTest) { y.u.be("zero") },
			want: "source=upstream kept=no took=0.00ms route=.",
		},
		{
			name: "upstream denies", prepare: func(_ *testing.T, y *stateTest) { y.u.be("NXDOMAIN") },
			want: "source=upstream left=20s took=0.00ms route=.",
		},
		{
			name: "fresh", prepare: func(t *testing.T, y *stateTest) { t.Helper(); y.prepare(t, "fresh") },
			want: "source=cache state=fresh age=10s left=90s route=.",
		},
		{
			name: "due", prepare: func(t *testing.T, y *stateTest) { t.Helper(); y.prepare(t, "due"); y.u.be("silent") },
			want: "source=cache state=due age=95s left=5s route=.",
		},
		{
			name: "late, and upstream is silent", prepare: func(t *testing.T, y *stateTest) { t.Helper(); y.prepare(t, "late"); y.u.be("silent") },
			want: "source=stale state=resting age=110s left=-10s took=200.00ms route=.",
		},
		{
			name: "late, and upstream fails", prepare: func(t *testing.T, y *stateTest) { t.Helper(); y.prepare(t, "late"); y.u.be("failing") },
			want: "source=stale state=resting age=110s left=-10s took=0.00ms route=.",
		},
		{
			name: "resting", prepare: func(t *testing.T, y *stateTest) { t.Helper(); y.prepare(t, "resting") },
			want: "source=stale state=resting age=110s left=-10s route=.",
		},
		{
			name: "a failure", prepare: func(_ *testing.T, y *stateTest) { y.u.be("failing") },
			want: "source=failure state=failed age=0s left=1s took=0.00ms route=.",
		},
		{
			name: "a remembered failure",
			prepare: func(t *testing.T, y *stateTest) {
				t.Helper()
				y.u.be("failing")
				y.ask(t, query("www.test.", dns.TypeA))
			},
			want: "source=failure state=failed age=0s left=1s route=.",
		},
		{
			name: "a name below one that does not exist",
			prepare: func(t *testing.T, y *stateTest) {
				t.Helper()
				y.u.be("NXDOMAIN")
				y.ask(t, query("www.test.", dns.TypeA))
				time.Sleep(5 * time.Second)
			},
			q:    wish("a.b.www.test.", dns.TypeTXT),
			want: "source=cache state=fresh age=5s left=15s below=www.test. route=.",
		},
		{
			name: "no route", prepare: func(_ *testing.T, y *stateTest) {
				y.p.Routes = []resolve.Route{{Suffix: []byte("\x07example\x00"), Upstream: y.u, TTL: bounds()}}
				y.r.Swap(y.p)
			},
			want: "source=failure took=0.00ms route=none",
		},
		{
			name: "a route of its own", prepare: func(_ *testing.T, y *stateTest) {
				y.p.Routes = append(y.p.Routes, resolve.Route{Suffix: []byte("\x04test\x00"), Upstream: y.u, TTL: bounds()})
				y.r.Swap(y.p)
			},
			want: "source=upstream left=100s took=0.00ms route=test.",
		},
		{
			name: "not held, and no recursion", q: func() *dns.Msg { m := www(); m.RecursionDesired = false; return m }(),
			want: "source=refused",
		},
		{name: "a type that is none", q: wish("www.test.", 200), want: "source=refused"},
		{name: "any type", q: wish("www.test.", dns.TypeANY), want: "source=local"},
		{
			name: "no room to wait", prepare: func(_ *testing.T, y *stateTest) { y.p.Waiting = 0; y.r.Swap(y.p) },
			want: "source=shed reason=waiting",
		},
		{
			name: "no room to ask", prepare: func(_ *testing.T, y *stateTest) { y.p.Inflight = 0; y.r.Swap(y.p) },
			want: "source=shed reason=inflight",
		},
		{
			name: "no room to ask, and a late answer", prepare: func(t *testing.T, y *stateTest) {
				t.Helper()
				y.prepare(t, "late")
				y.p.Inflight = 0
				y.r.Swap(y.p)
			},
			want: "source=stale state=resting age=110s left=-10s took=0.00ms route=.",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for from, want := range map[string][]string{near: {tt.want}, stranger: nil} {
				synctest.Test(t, func(t *testing.T) {
					y := newPlay(t)
					local(y.p)
					if tt.prepare != nil {
						tt.prepare(t, y)
					}
					q := tt.q
					if q == nil {
						q = www()
					}
					if diff := cmp.Diff(want, explanations(t, y.r, from, q)); diff != "" {
						t.Errorf("to %s (-want +got):\n%s", from, diff)
					}
					y.settle()
				})
			}
		})
	}
}

// TestExplainZone asks for names of the cluster.
func TestExplainZone(t *testing.T) {
	t.Parallel()
	s := shop(time.Now())
	p, _ := clusterPlan(t, s, false)
	local(p)
	r := newResolver(t, p)
	for _, tt := range []struct {
		name, ask string
		want      []string // with every time left out
	}{
		{"before the first view", "none.shop.svc.cluster.local.", []string{"source=zone state=unready"}},
		{"an address", "web.shop.svc.cluster.local.", []string{"source=zone state=fresh"}},
		{"a denial", "none.shop.svc.cluster.local.", []string{"source=zone state=fresh"}},
		{"a name beside", "a.stub.cluster.local.", []string{"source=upstream left= took= route=stub.cluster.local."}},
		{"the target of an alias, asked for", "mail.shop.svc.cluster.local.", []string{"source=upstream left= took= route=."}},
		{"the target of an alias, held", "mail.shop.svc.cluster.local.", []string{"source=cache state=fresh age= left= route=."}},
	} {
		if tt.name == "an address" {
			inSync(s)
		}
		got := explanations(t, r, near, wish(tt.ask, dns.TypeA))
		for i := range got {
			words := strings.Fields(got[i])
			for j, w := range words {
				if name, _, _ := strings.Cut(w, "="); name == "age" || name == "left" || name == "took" {
					words[j] = name + "="
				}
			}
			got[i] = strings.Join(words, " ")
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if told := explanations(t, r, stranger, wish(tt.ask, dns.TypeA)); told != nil {
			t.Errorf("%s: a stranger is told %q", tt.name, told)
		}
	}
}

// TestExplainRemoteClients checks that no client gets an explanation without Plan.Local.
func TestExplainRemoteClients(t *testing.T) {
	t.Parallel()
	r := newResolver(t, plan(t, newUpstream(t, "www.test. 60 IN A 192.0.2.1")))
	if told := explanations(t, r, "127.0.0.1:1", wish("www.test.", dns.TypeA)); told != nil {
		t.Errorf("told %q", told)
	}
}

// TestExplainFits explains answers that fill the client's room: records give way.
func TestExplainFits(t *testing.T) {
	t.Parallel()
	var records []string
	for i := range 60 {
		records = append(records, fmt.Sprintf("many.test. 60 IN A 192.0.2.%d", i))
	}
	p := plan(t, newUpstream(t, records...))
	long := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c", 60) + ".test."
	p.Routes = append(p.Routes, resolve.Route{Suffix: wireName(t, long), Upstream: newUpstream(t, long+" 60 IN A 192.0.2.1"), TTL: bounds()})
	local(p)
	r := newResolver(t, p)
	for range 2 { // from upstream, and from the cache
		for _, size := range []uint16{512, 600, 1232} {
			m := wish("many.test.", dns.TypeA)
			m.IsEdns0().SetUDPSize(size)
			c := newClient(r, false)
			c.from.Addr = netip.MustParseAddrPort(near)
			reply := c.exchange(t, pack(t, m))
			if len(reply) > int(size) || len(unpack(t, reply).Answer) == 0 {
				t.Errorf("%d bytes of %d, %d records", len(reply), size, len(unpack(t, reply).Answer))
			}
			if told := explanations(t, r, near, m); len(told) != 1 || !strings.HasPrefix(told[0], "source=") {
				t.Errorf("told %q", told)
			}
		}
		told := explanations(t, r, near, wish(long, dns.TypeA))
		if len(told) != 1 || strings.Contains(told[0], "route=") || len(told[0]) == 0 {
			t.Errorf("told %q, want all but the route, for which there is no room", told)
		}
	}
}

// TestExplainCosts shows that a stranger's wish costs nothing.
func TestExplainCosts(t *testing.T) {
	p := plan(t, newUpstream(t, "www.test. 300 IN A 192.0.2.1"))
	local(p)
	r := newResolver(t, p)
	c := newClient(r, false)
	q := pack(t, wish("www.test.", dns.TypeA))
	c.exchange(t, q)
	dst, now := make([]byte, 0, 4096), time.Now()
	if got := testing.AllocsPerRun(1000, func() {
		c.worker.AnswerFromMemory(q, &c.from, now, dst)
		c.worker.Flush(now)
	}); got != 0 {
		t.Errorf("%v allocations, want 0", got)
	}
}

// TestExplainMade asks how addresses came about that were made, or were not for want of any to make them of: what is
// left is what the reply's records have.
func TestExplainSynthesized(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t, "four.test. 300 IN A 192.0.2.1", "short.test. 20 IN A 192.0.2.2", "six.test. 100 IN AAAA 2001:db8::6", "long.test. 900 IN A 192.0.2.3")
		soa, _ := dns.NewRR("test. 200 IN SOA ns.test. host.test. 1 2 3 4 25")
		u.mangle = func(m *dns.Msg) {
			if q := m.Question[0]; len(m.Answer) == 0 && q.Name != "long.test." {
				m.Ns = []dns.RR{soa}
			} else if len(m.Answer) == 0 {
				m.Rcode = dns.RcodeServerFailure
			}
		}
		p := plan(t, u)
		making(t, p, func(c *resolve.DNS64Config) { c.All, c.IPv4 = true, true })
		local(p)
		r := newResolver(t, p)
		for _, tt := range []struct {
			ask   string
			sleep time.Duration // before
			want  string
		}{
			{ask: "four.test.", want: "source=upstream made=dns64 left=25s took=0.00ms route=."},
			{ask: "four.test.", want: "source=cache made=dns64 state=fresh age=0s left=25s route=."},
			{ask: "four.test.", sleep: 10 * time.Second, want: "source=cache made=dns64 state=fresh age=10s left=15s route=."},
			{ask: "four.test.", sleep: 20 * time.Second, want: "source=cache made=dns64 state=fresh age=30s left=25s route=."},
			{ask: "short.test.", want: "source=upstream made=dns64 left=20s took=0.00ms route=."},
			{ask: "short.test.", sleep: 5 * time.Second, want: "source=cache made=dns64 state=fresh age=5s left=15s route=."},
			{ask: "six.test.", want: "source=upstream made=dns64 left=100s took=0.00ms route=."},
			{ask: "six.test.", sleep: 7 * time.Second, want: "source=cache made=dns64 state=fresh age=7s left=93s route=."},
			{ask: "long.test.", want: "source=upstream made=dns64 left=600s took=0.00ms route=."},
		} {
			time.Sleep(tt.sleep)
			c := newClient(r, false)
			c.from.Addr = netip.MustParseAddrPort(near)
			m := unpack(t, c.exchange(t, pack(t, wish(tt.ask, dns.TypeAAAA))))
			told := string(m.IsEdns0().Option[0].(*dns.EDNS0_LOCAL).Data)
			if diff := cmp.Diff(tt.want, told); diff != "" {
				t.Errorf("%s after %s (-want +got):\n%s", tt.ask, tt.sleep, diff)
			}
			if left := fmt.Sprintf("left=%ds", m.Answer[0].Header().Ttl); len(m.Answer) != 1 || !strings.Contains(told, left) {
				t.Errorf("%s after %s: %s, but %s", tt.ask, tt.sleep, told, say(m))
			}
		}
	})
}
