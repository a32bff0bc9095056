// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/miekg/dns"
)

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
