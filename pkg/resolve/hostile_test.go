// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

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
		making(t, p, true)
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
