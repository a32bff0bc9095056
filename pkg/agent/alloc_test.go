// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/server/servertest"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// TestHitsAllocateNothing asks a whole agent through its sockets and counts what
// the process allocates: sockets, worker, cache and reply together. The client
// allocates nothing either. What little the runtime does by itself in that time
// is what the bound leaves room for.
func TestHitsAllocateNothing(t *testing.T) {
	up := upstreamtest.New(upstreamtest.Zone("www.test. 3600 IN A 192.0.2.1"))
	cfg := local(t, up.Listen(t))
	a, _ := start(t, agent.Options{Config: &cfg, Log: io.Discard})
	for _, network := range []string{"udp", "tcp"} {
		for _, name := range []string{"www.test", "nowhere.test"} {
			t.Run(network+" "+name, func(t *testing.T) {
				if name == "nowhere.test" { // the fake gives no SOA, so it would not be kept
					up.SetScript(denial)
				}
				c, err := net.Dial(network, a.Addrs()[0].String())
				assert.NoError(t, err)
				defer func() { _ = c.Close() }()
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				query, reply := servertest.Query(7, name), make([]byte, 512)
				if network == "tcp" {
					query = servertest.Frame(query)
				}
				ask := func() {
					if _, err := c.Write(query); err != nil {
						t.Fatal(err)
					}
					if _, err := c.Read(reply); err != nil {
						t.Fatal(err)
					}
				}
				for range 100 {
					ask()
				}
				const n = 5000
				got := 1.0
				for try := 0; try < 5 && got > 0.05; try++ { // on a busy host the runtime has more time for its own
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					for range n {
						ask()
					}
					runtime.ReadMemStats(&after)
					got = float64(after.Mallocs-before.Mallocs) / n
				}
				if got > 0.05 {
					t.Errorf("%.3f allocations a hit, want none", got)
				}
			})
		}
	}
}

// denial answers NXDOMAIN with an SOA.
func denial(upstreamtest.Query) upstreamtest.Action {
	return upstreamtest.Action{Raw: []upstreamtest.Raw{func(q []byte) []byte {
		m, r := new(dns.Msg), new(dns.Msg)
		if m.Unpack(q) != nil {
			return nil
		}
		r.SetRcode(m, dns.RcodeNameError)
		r.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: "test.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 600}, Ns: "ns.test.", Mbox: "h.test.", Minttl: 600}}
		out, err := r.Pack()
		if err != nil {
			panic(err)
		}
		return out
	}}}
}
