// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// A limitation of an upstream is learned once and then respected.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	good := one("192.0.2.10")
	size := func(q upstreamtest.Query) uint16 {
		var m dns.Msg
		if m.Unpack(q.Raw) != nil || m.IsEdns0() == nil {
			return 0
		}
		return m.IsEdns0().UDPSize()
	}
	tests := []struct {
		name   string
		script upstreamtest.Script
		random bool   // with 0x20
		first  int    // queries until it is learned
		asked  string // the queries of one exchange after that
		limits string // learned limitations
	}{
		{
			name: "no EDNS",
			script: func(q upstreamtest.Query) upstreamtest.Action {
				if q.EDNS {
					return upstreamtest.Action{Rcode: dns.RcodeFormatError, NoEDNS: true}
				}
				return good
			},
			first: 1, asked: "udp 0", limits: "no-edns",
		},
		{
			name: "no EDNS, and replies FORMERR with a header alone",
			script: func(q upstreamtest.Query) upstreamtest.Action {
				if q.EDNS {
					return upstreamtest.Action{Raw: []upstreamtest.Raw{headerAlone}}
				}
				return good
			},
			first: 3, asked: "udp 0", limits: "no-edns",
		},
		{
			name: "case changed",
			script: upstreamtest.By(func(upstreamtest.Query) upstreamtest.Action {
				return upstreamtest.Action{Raw: []upstreamtest.Raw{otherCase}}
			}, upstreamtest.Always(good)),
			random: true, first: 3, asked: "tcp 1232", limits: "no-case",
		},
		{
			name: "silent to all but the smallest",
			script: func(q upstreamtest.Query) upstreamtest.Action {
				if size(q) > 512 {
					return upstreamtest.Action{Drop: true}
				}
				return good
			},
			first: 4, asked: "udp 512", limits: "small-udp",
		},
		{
			name: "truncates answers, takes no connections",
			script: upstreamtest.By(func(q upstreamtest.Query) upstreamtest.Action {
				if size(q) < 1400 {
					return upstreamtest.Action{Truncate: true}
				}
				return good
			}, upstreamtest.Always(upstreamtest.Action{Close: true})),
			first: 1, asked: "udp 1400", limits: "no-tcp",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := upstreamtest.New(tt.script)
				p := newPool(t, upstream.Config{
					Targets: []upstream.Target{target("udp", addrA)}, Dial: upstreamtest.Network{addrA: s}.Dial, RandomCase: tt.random,
				})
				run(t, p)
				for range tt.first {
					ask(t, p)
				}
				assert.Equal(t, "limitations", tt.limits, strings.Join(p.Stats().Servers[0].Limitations, " "))
				exchange := func() string {
					before := len(s.Queries())
					if got := ask(t, p); !strings.HasPrefix(got, "192.0.2.") {
						t.Errorf("answer %q, want an address", got)
					}
					var asked []string
					for _, q := range s.Queries()[before:] {
						asked = append(asked, fmt.Sprintf("%s %d", q.Network, size(q)))
					}
					return strings.Join(asked, ", ")
				}
				assert.Equal(t, "asked", tt.asked, exchange())
				time.Sleep(11 * time.Minute)
				if known := p.Stats().Servers[0].Limitations; len(known) > 0 {
					t.Errorf("after a while %q is known, want nothing", known)
				}
				if got := exchange(); got == tt.asked {
					t.Errorf("asked %q after a while, want it found out anew", got)
				}
			})
		})
	}
}

// Queries without an OPT record are no evidence about large EDNS sizes.
func TestCapabilitiesSmallWithoutEDNS(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var plain atomic.Int64
		s := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
			switch {
			case q.EDNS:
				return upstreamtest.Action{Rcode: dns.RcodeFormatError, NoEDNS: true}
			case q.Probe:
				return upstreamtest.Action{Drop: true}
			}
			if plain.Add(1)%2 == 0 { // lost by chance
				return upstreamtest.Action{Drop: true}
			}
			return one("192.0.2.10")
		})
		p := memory(t, "udp", upstreamtest.Network{addrA: s}, addrA)
		for range 6 {
			ask(t, p)
		}
		if diff := cmp.Diff([]string{"no-edns"}, p.Stats().Servers[0].Limitations); diff != "" || plain.Load() < 10 {
			t.Errorf("after %d queries without OPT limitations (-want +got):\n%s", plain.Load(), diff)
		}
	})
}

// headerAlone builds a FORMERR without a question.
func headerAlone(q []byte) []byte {
	return []byte{q[0], q[1], 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0}
}

// An upstream that answers OPT with a bare header is asked without OPT at once, over UDP and TCP. Forged headers
// between its answers never turn EDNS off for later queries.
func TestNoEDNSFromBareHeader(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var forge bool
				s := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
					if q.EDNS && forge {
						return upstreamtest.Action{Raw: []upstreamtest.Raw{headerAlone, upstreamtest.Forged}}
					}
					return after(time.Millisecond, one("192.0.2.10"))
				})
				p := memory(t, network, upstreamtest.Network{addrA: s}, addrA)
				for i := range 30 {
					forge = i%3 > 0
					start := time.Now()
					if got, took := ask(t, p), time.Since(start); got != "192.0.2.10" || took > 2*time.Millisecond {
						t.Errorf("query %d: answer %q after %v, want 192.0.2.10 at once", i, got, took)
					}
				}
				if stats := p.Stats().Servers[0]; len(stats.Limitations) > 0 || stats.Failures[upstream.CauseFormErr] != 20 {
					t.Errorf("%q is known after %d headers, want nothing after 20", stats.Limitations, stats.Failures[upstream.CauseFormErr])
				}
			})
		})
	}
}

// otherCase builds an answer with the first letter of the name in the other case.
func otherCase(q []byte) []byte {
	var m dns.Msg
	if err := m.Unpack(q); err != nil {
		panic(err)
	}
	name := []byte(m.Question[0].Name)
	name[0] ^= 'a' - 'A'
	m.Question[0].Name = string(name)
	rr, err := dns.NewRR("www.example. 60 IN A 192.0.2.66")
	if err != nil {
		panic(err)
	}
	r := new(dns.Msg).SetReply(&m)
	r.Answer = []dns.RR{rr}
	out, err := r.Pack()
	if err != nil {
		panic(err)
	}
	return out
}

// After TCP recovers, the first truncated query gets a whole answer. Meanwhile only a few clients wait for TCP.
func TestCapabilitiesTCPRecovers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cut, good := upstreamtest.Always(upstreamtest.Action{Truncate: true}), upstreamtest.Always(one("192.0.2.10"))
		s := upstreamtest.New(upstreamtest.By(cut, upstreamtest.Always(upstreamtest.Action{Drop: true})))
		p := memory(t, "udp", upstreamtest.Network{addrA: s}, addrA)
		var clients sync.WaitGroup
		during := func(d time.Duration, every time.Duration) {
			for range d / every {
				clients.Go(func() { ask(t, p) })
				time.Sleep(every)
			}
		}
		during(20*time.Second, 100*time.Millisecond)
		clients.Wait()
		if got := strings.Join(p.Stats().Servers[0].Limitations, " "); got != "no-tcp" {
			t.Fatalf("known %q, want no-tcp", got)
		}
		opened := p.Stats().Servers[0].Opened
		during(time.Second, time.Millisecond)
		if s := p.Stats().Servers[0]; s.Outstanding > 16 || s.Opened-opened > 20 {
			t.Errorf("%d of 1000 wait on %d new connections, want 16 on 20 at most", s.Outstanding, s.Opened-opened)
		}
		clients.Wait()
		s.SetScript(upstreamtest.By(cut, good))
		assert.Equal(t, "answer", "192.0.2.10", ask(t, p))
		if known := p.Stats().Servers[0].Limitations; len(known) > 0 {
			t.Errorf("%q is known, want nothing", known)
		}
	})
}
