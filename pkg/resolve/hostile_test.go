// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"bytes"
	"fmt"
	"log/slog"
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

// TestRedirectOdd sends every odd packet to a plan with all kinds of redirects: the replies are the same as without them.
func TestRedirectOdd(t *testing.T) {
	t.Parallel()
	p := plan(t, newUpstream(t, "www.test. 300 IN A 192.0.2.1", `www.test. 300 IN TYPE65280 \# 2 abcd`))
	p.Version, p.Hostname, p.Self = "v9", "node-7", "a1b2c3"
	p.Loop = func([]byte) bool { return true }
	detouring(t, p)
	rewriting(t, p, "exact version.bind www.test", "prefix id www")
	r := newResolver(t, p)
	for _, tt := range oddPackets(t) {
		for i, pkt := range tt.packets {
			for _, stream := range []bool{false, true} {
				c := newClient6(r)
				c.from.Stream = stream
				if diff := cmp.Diff(tt.want, describe(t, pkt, c.exchange(t, pkt))); diff != "" {
					t.Errorf("%s, packet %d, %x, stream %t (-want +got):\n%s", tt.row, i, pkt, stream, diff)
				}
			}
		}
	}
	if st := r.Stats(); st.Panics != 0 {
		t.Errorf("%d panics", st.Panics)
	}
}

// TestRedirectFlags queries each source of answers with all bits, classes and sizes that a query may have: each gets a
// reply to its own question that fits, and only those that are for addresses have some made.
func TestRedirectFlags(t *testing.T) {
	t.Parallel()
	s := shop(time.Now())
	inSync(s)
	p, root := clusterPlan(t, s, true)
	for _, text := range []string{"one.test. 300 IN A 192.0.2.1", "two.test. 300 IN A 192.0.2.2", "two.test. 300 IN AAAA ::ffff:192.0.2.2"} {
		rr, _ := dns.NewRR(text)
		q := dns.Question{Name: rr.Header().Name, Qtype: rr.Header().Rrtype, Qclass: 1}
		root.records[q] = append(root.records[q], rr)
	}
	detouring(t, p)
	r := newResolver(t, p)
	reverse, _ := dns.ReverseAddr("64:ff9b::a60:7")
	for _, name := range []string{"one.example.", "x.Old.example.", "one.test.", "two.test.", "one.hosts.", "x.alias.", "x.inner.", "web.shop.svc.cluster.local.", "IPv4only.arpa.", reverse, "."} {
		for bits := range 64 {
			do, cd, rd := bits&1 != 0, bits&2 != 0, bits&4 == 0
			rrtype := []uint16{dns.TypeAAAA, dns.TypePTR, dns.TypeANY, dns.TypeCNAME, dns.TypeAAAA, dns.TypeHTTPS, dns.TypeRRSIG, dns.TypeAXFR}[bits>>3]
			m := question(name, rrtype)
			m.CheckingDisabled, m.RecursionDesired = cd, rd
			if do || bits>>3 == 4 {
				m.SetEdns0(512, do)
			}
			if bits>>3 == 7 {
				m.Question[0].Qtype, m.Question[0].Qclass = dns.TypeAAAA, dns.ClassCHAOS
			}
			reply := newClient6(r).exchange(t, pack(t, m))
			got := unpack(t, reply)
			made := strings.Contains(say(got), "64:ff9b::")
			if len(reply) > 512 || got.Id != m.Id || got.Question[0] != m.Question[0] || got.CheckingDisabled != cd || got.RecursionDesired != rd {
				t.Errorf("%v: %d bytes, %v", m, len(reply), got)
			}
			if made && (rrtype != dns.TypeAAAA || do && cd || !rd || bits>>3 == 7 || got.AuthenticatedData) {
				t.Errorf("addresses were made for %v: %v", m, got)
			}
			if strings.Contains(say(got), "::ffff:") && (!do || !cd) && rd {
				t.Errorf("an IPv4 address in the form of IPv6 for %v: %v", m, got)
			}
		}
	}
	if st := r.Stats(); st.Panics != 0 || st.Synthesized == 0 {
		t.Errorf("%d panics, %d made", st.Panics, st.Synthesized)
	}
}

// TestRedirectLongest redirects names of 255 bytes, and names that become 255 or 256 bytes long.
func TestRedirectLongest(t *testing.T) {
	t.Parallel()
	label := strings.Repeat("a", 62)
	fill := strings.Repeat(label+".", 3) // 189 bytes
	longest := func(end string) string { return fill + strings.Repeat("b", 64-len(end)) + "." + end }
	u := newUpstream(t)
	u.mangle = func(m *dns.Msg) {
		if q := m.Question[0]; q.Qtype == dns.TypeA {
			rr, _ := dns.NewRR(q.Name + " 300 IN A 192.0.2.1")
			m.Answer = []dns.RR{rr}
		}
	}
	p := plan(t, u)
	detouring(t, p)
	rewriting(t, p, "suffix .up.test .upper.test", "suffix .same.test .else.test", "prefix c cc", "suffix .down.test .d")
	r := newResolver(t, p)
	for _, tt := range []struct{ ask, want string }{
		{longest("same.test."), longest("else.test.")},
		{longest("up.test."), longest("up.test.")}, // there is no such name as the rule makes
		{longest("up.test.")[3:], longest("upper.test.")[3:]},
		{"c" + longest("d.")[1:], "c" + longest("d.")[1:]},
		{longest("down.test."), strings.TrimSuffix(longest("down.test."), "down.test.") + "d."},
	} {
		if i := strings.Index(tt.want, ".upper."); i > 0 { // the label before is that of the question
			tt.want = strings.TrimSuffix(tt.ask, ".up.test.") + ".upper.test."
		}
		for _, when := range []string{"asked for", "held"} {
			got := unpack(t, newClient6(r).exchange(t, pack(t, query(tt.ask, dns.TypeAAAA))))
			if want := "NOERROR | " + tt.ask + " 300 64:ff9b::c000:201"; say(got) != want {
				t.Errorf("%s, %s: %s", tt.ask, when, say(got))
			}
		}
		u.mu.Lock()
		if asked := u.asked[len(u.asked)-1].Question[0].Name; asked != tt.want {
			t.Errorf("%s: asked for %s, want %s", tt.ask, asked, tt.want)
		}
		u.mu.Unlock()
	}
}

// TestRedirectHuge redirects each way to a set that fills a message: records that no longer fit behind the chain, because
// of longer names or longer addresses, are left out, and the reply is marked as truncated.
func TestRedirectHuge(t *testing.T) {
	t.Parallel()
	s := shop(time.Now())
	addrs := make([]string, 5000)
	for i := range addrs {
		addrs[i] = fmt.Sprintf("10.1.%d.%d", i>>8, i&0xff)
	}
	putDB(s, addrs...)
	inSync(s)
	p, _ := clusterPlan(t, s, true)
	label := strings.Repeat("a", 63) + "."
	long := label + label + label + "example."
	rewriting(t, p, "exact "+strings.TrimSuffix(long, ".")+" db.shop.svc.cluster.local")
	p.Static = fixed(t, nil, "there.: {{ .Name }} 60 IN CNAME db.shop.svc.cluster.local.")
	making(t, p, nil)
	r := newResolver(t, p)
	for _, tt := range []struct {
		ask    string
		rrtype uint16
		stream int // records over TCP, at least
		packet int // over UDP
	}{
		{"db.shop.svc.cluster.local.", dns.TypeA, 4000, 60},
		{"db.shop.svc.cluster.local.", dns.TypeAAAA, 2300, 40},
		{long, dns.TypeA, 4000, 50},
		{long, dns.TypeAAAA, 2300, 30},
		{"x.there.", dns.TypeA, 4000, 60},
		{"x.there.", dns.TypeAAAA, 2300, 40},
		{label + label + label + "there.", dns.TypeA, 4000, 40},
	} {
		for _, stream := range []bool{false, true} {
			c := newClient6(r)
			c.from.Stream = stream
			got := unpack(t, c.exchange(t, pack(t, query(tt.ask, tt.rrtype))))
			most, least := wire.MaxMessage, tt.stream
			if !stream {
				most, least = wire.SafeUDP, tt.packet
			}
			if got.Rcode != dns.RcodeSuccess || !got.Truncated || len(got.Answer) < least || got.Question[0].Name != tt.ask {
				t.Errorf("%s %s, stream %t: %s, TC %t, %d records, want %d", tt.ask, dns.TypeToString[tt.rrtype], stream,
					dns.RcodeToString[got.Rcode], got.Truncated, len(got.Answer), least)
			}
			got.Compress = true
			if size := got.Len(); size > most {
				t.Errorf("%s, stream %t: %d bytes", tt.ask, stream, size)
			}
		}
	}
}

// TestRedirectFirstAnswer checks the answer kept for each client while the A query is in flight.
func TestRedirectFirstAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t)
		var six []dns.RR
		for i := range 2000 {
			six = append(six, &dns.AAAA{
				Hdr:  dns.RR_Header{Name: "six.test.", Rrtype: dns.TypeAAAA, Class: 1, Ttl: 300},
				AAAA: netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i)).AsSlice(),
			})
		}
		soa, _ := dns.NewRR("test. 200 IN SOA ns.test. host.test. 1 2 3 4 100")
		gate := make(chan struct{})
		u.mangle = func(m *dns.Msg) {
			if m.Question[0].Qtype == dns.TypeAAAA {
				m.Answer = six
				u.mu.Lock()
				u.gate = nil
				u.mu.Unlock()
				return
			}
			m.Ns = []dns.RR{soa}
			u.mu.Lock()
			u.gate = gate
			u.mu.Unlock()
		}
		p := plan(t, u)
		making(t, p, func(c *resolve.DNS64Config) { c.All = true })
		r := newResolver(t, p)
		clients := make([]*client, 3)
		for i := range clients {
			clients[i] = newClient6(r)
			clients[i].from.Stream = true
			clients[i].send(pack(t, query("six.test.", dns.TypeAAAA)))
		}
		synctest.Wait()
		close(gate)
		for i, c := range clients {
			got := unpack(t, <-c.got)
			got.Compress = true
			if size := got.Len(); !got.Truncated || size > 4200 || len(got.Answer) < 140 {
				t.Errorf("client %d: TC %t, %d bytes, %d records", i, got.Truncated, size, len(got.Answer))
			}
		}
		c := newClient6(r) // both are held now
		c.from.Stream = true
		if got := unpack(t, c.exchange(t, pack(t, query("six.test.", dns.TypeAAAA)))); got.Truncated || len(got.Answer) != len(six) {
			t.Errorf("from memory: TC %t, %d records", got.Truncated, len(got.Answer))
		}
	})
}

// TestRedirectLogType checks the logged type if the A query fails.
func TestRedirectLogType(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	p := plan(t, newUpstream(t))
	p.Static = fixed(t, nil, "bad. A: {{ .Name }} nonsense")
	making(t, p, nil)
	p.QueryLog = &resolve.QueryLog{All: true, Log: slog.New(slog.NewTextHandler(&log, nil))}
	r := newResolver(t, p)
	for range 2 {
		log.Reset()
		newClient6(r).exchange(t, pack(t, question("x.bad.", dns.TypeAAAA)))
		if !strings.Contains(log.String(), "name=x.bad. type=28 ") {
			t.Errorf("logged %s", log.String())
		}
	}
}
