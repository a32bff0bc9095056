// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// warm is a worker with answers of every kind in its cache, and the queries that
// it answers from memory. It may know and count 250 pods, one of which is the client.
func warm(tb testing.TB, identity bool) (*resolve.Worker, map[string][]byte) {
	tb.Helper()
	records := []string{"one.test. 300 IN A 192.0.2.1", "six.test. 300 IN AAAA fd00::6"}
	for i := range 8 {
		records = append(records, "many.test. 300 IN A 10.0.0."+string('0'+rune(i)))
	}
	soa, _ := dns.NewRR("test. 600 IN SOA ns.test. host.test. 1 3600 600 86400 30")
	u := newUpstream(tb, records...)
	u.mangle = func(m *dns.Msg) {
		switch {
		case m.Question[0].Name == "failing.test.":
			m.Rcode = dns.RcodeServerFailure
		case len(m.Answer) == 0:
			m.Rcode = dns.RcodeNameError
			m.Ns = []dns.RR{soa}
		}
	}
	p := plan(tb, u)
	p.FailureTTL = time.Minute
	p.Version, p.Self = "v", "a1b2c3"
	p.Local = func(netip.Addr) bool { return true }
	if identity {
		p.Pods, p.Cluster, p.SearchPath = pods.NewIndex(time.Minute, searchHost()), []byte("\x07cluster\x05local\x00"), true
		p.Pods.Confirm(time.Now())
		for i := range byte(250) {
			p.Pods.Put(&pods.Pod{Namespace: "shop", Name: fmt.Sprint(i), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 2, i})}})
		}
	}
	r := newResolver(tb, p)
	edns := func(m *dns.Msg, options ...dns.EDNS0) *dns.Msg {
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = options
		return m
	}
	mixed := question("MaNy.TeSt.", dns.TypeA)
	queries := map[string][]byte{
		"hit":                pack(tb, question("one.test.", dns.TypeA)),
		"hit, AAAA":          pack(tb, question("six.test.", dns.TypeAAAA)),
		"hit, rotated":       pack(tb, mixed),
		"hit, EDNS":          pack(tb, edns(question("one.test.", dns.TypeA))),
		"hit, cookie":        pack(tb, edns(question("one.test.", dns.TypeA), &dns.EDNS0_COOKIE{Code: 10, Cookie: "0011223344556677"})),
		"negative hit":       pack(tb, question("nowhere.test.", dns.TypeA)),
		"negative hit, EDNS": pack(tb, edns(question("nowhere.test.", dns.TypeA))),
		"remembered failure": pack(tb, edns(question("failing.test.", dns.TypeA))),
	}
	c := newClient(r, false)
	for _, q := range queries {
		c.exchange(tb, q)
	}
	queries["ANY"] = pack(tb, question("one.test.", dns.TypeANY))
	queries["self"] = classed(tb, resolve.SelfName, dns.TypeTXT, dns.ClassCHAOS)
	queries["REFUSED"] = classed(tb, "one.test.", dns.TypeA, 77)
	queries["FORMERR"] = counted(tb, 4, 2)
	queries["dropped"] = []byte("short")
	return c.worker, queries
}

// TestAllocations is the budget of the hit path: none, for no kind of hit.
func TestAllocations(t *testing.T) {
	for _, identity := range []bool{false, true} {
		worker, queries := warm(t, identity)
		from, now := newClient(newResolver(t, plan(t, newUpstream(t))), false).from, time.Now() // before the failure expires
		for name, q := range queries {
			t.Run(fmt.Sprintf("%s, identity %t", name, identity), func(t *testing.T) { wantNoAllocations(t, worker, &from, q, now) })
		}
	}
}

func BenchmarkAnswerFromMemory(b *testing.B) {
	for _, name := range []string{"hit", "hit, identity", "hit, rotated", "hit, EDNS", "hit, cookie", "negative hit", "negative hit, identity", "self"} {
		b.Run(name, func(b *testing.B) {
			kind, identity := strings.CutSuffix(name, ", identity")
			worker, queries := warm(b, identity)
			q, ok := queries[kind]
			if !ok {
				b.Fatal("no such query")
			}
			from := newClient(newResolver(b, plan(b, newUpstream(b))), false).from
			dst, now := make([]byte, 0, 4096), time.Now()
			b.ReportAllocs()
			for b.Loop() {
				worker.AnswerFromMemory(q, &from, now, dst)
			}
		})
	}
}

func TestCounts(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "www.test. 300 IN A 192.0.2.1")
	r := newResolver(t, plan(t, u))
	udp, tcp := newClient(r, false), newClient(r, true)
	udp.exchange(t, pack(t, question("www.test.", dns.TypeA)))
	tcp.exchange(t, pack(t, question("www.test.", dns.TypeA)))
	tcp.exchange(t, pack(t, question("www.test.", dns.TypeANY)))
	udp.exchange(t, classed(t, "www.test.", dns.TypeHTTPS, 9))
	udp.exchange(t, counted(t, 4, 7))
	udp.exchange(t, []byte{1})
	s := r.Stats()
	got := map[string]uint64{
		"UDP A": s.Queries[0][0][0], "TCP A": s.Queries[1][0][0], "TCP other": s.Queries[1][0][8], "UDP HTTPS": s.Queries[0][0][7],
		"upstream NOERROR": s.Responses[resolve.SourceUpstream][0], "cache NOERROR": s.Responses[resolve.SourceCache][0],
		"local NOERROR": s.Responses[resolve.SourceLocal][0], "refused REFUSED": s.Responses[resolve.SourceRefused][5],
		"refused FORMERR": s.Responses[resolve.SourceRefused][1], "malformed": s.Malformed, "dropped": s.Dropped,
	}
	for name, n := range got {
		assert.Equal(t, name+": times counted", 1, n)
	}
	durations := map[string]uint64{}
	for i := range s.Durations {
		for _, n := range s.Durations[i].Replies {
			durations[resolve.TimedSources()[i]] += n
		}
	}
	assert.Same(t, "durations", map[string]uint64{"zone": 0, "cache": 1, "stale": 0, "upstream": 1, "failure": 0, "other": 3}, durations)
}

// TestQueryLogTurnedOff has a reload turn the log off, or on, while a query waits that another joins then: both get the
// answer, and at most who came while there was a log is in it.
func TestQueryLogTurnedOff(t *testing.T) {
	t.Parallel()
	for _, on := range []bool{true, false} {
		var log bytes.Buffer
		u := &pending{}
		with, without := plan(t, u), plan(t, u)
		with.QueryLog = &resolve.QueryLog{TypeName: typeName, All: true, Log: slog.New(slog.NewTextHandler(&log, nil))}
		first, then := with, without
		if !on {
			first, then = without, with
		}
		r := newResolver(t, first)
		one, two := newClient(r, false), newClient(r, false)
		pkt := pack(t, question("www.test.", dns.TypeA))
		one.send(pkt)
		r.Swap(then)
		two.send(pkt)
		u.answer(t, 0, 30, "192.0.2.1")
		if got := one.first(t) + ", " + two.first(t); got != "192.0.2.1, 192.0.2.1" {
			t.Errorf("on at first %t: answers %s", on, got)
		}
		want := 0
		if on {
			want = 1
		}
		if got := strings.Count(log.String(), "\n"); got != want || r.Stats().Panics != 0 {
			t.Errorf("on at first %t: %d panics, logged, want %d lines:\n%s", on, r.Stats().Panics, want, log.String())
		}
	}
}

func TestQueryLog(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		log  *resolve.QueryLog
		want string // names logged, in order
	}{
		{"all", &resolve.QueryLog{TypeName: typeName, All: true}, "www.test. www.test. bad.test. we\\032ird.test. www.test."},
		{"errors", &resolve.QueryLog{TypeName: typeName, Errors: true}, "bad.test."},
		{"slow", &resolve.QueryLog{TypeName: typeName, Slow: time.Second}, "www.test. we\\032ird.test."},
		{"every second", &resolve.QueryLog{TypeName: typeName, Sample: 2}, "www.test. we\\032ird.test."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				u := newUpstream(t, "www.test. 300 IN A 192.0.2.1")
				u.mangle = func(m *dns.Msg) {
					if m.Question[0].Name == "bad.test." {
						m.Rcode = dns.RcodeServerFailure
					} else {
						time.Sleep(time.Second)
					}
				}
				var out bytes.Buffer
				p := plan(t, u)
				tt.log.Log = slog.New(slog.NewJSONHandler(&out, nil))
				p.QueryLog = tt.log
				c := newClient(newResolver(t, p), false)
				for _, name := range []string{"www.test.", "www.test.", "bad.test.", "we\\032ird.test.", "www.test."} {
					c.exchange(t, pack(t, question(name, dns.TypeA)))
				}
				var names []string
				for line := range strings.Lines(out.String()) {
					var entry struct{ Name, Client, Rcode, Source string }
					if err := json.Unmarshal([]byte(line), &entry); err != nil {
						t.Fatalf("%s: %v", line, err)
					}
					if entry.Client != "10.1.2.3" || entry.Rcode == "" || entry.Source == "" {
						t.Errorf("line %s", line)
					}
					names = append(names, entry.Name)
				}
				assert.Same(t, "got", tt.want, strings.Join(names, " "))
			})
		})
	}
}

// TestQueryLogPods names the pod of a query as it was when the query arrived.
func TestQueryLogPods(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		u := &pending{}
		p := plan(t, u)
		p.Pods = pods.NewIndex(time.Minute, nil)
		p.QueryLog = &resolve.QueryLog{All: true, TypeName: typeName, Log: slog.New(slog.NewTextHandler(&log, nil))}
		c := newClient(newResolver(t, p), false)
		pod := func(name, workload string) *pods.Pod {
			return &pods.Pod{Namespace: "shop", Name: name, Workload: workload, Addrs: []netip.Addr{c.from.Addr.Addr()}}
		}
		logged := func(what, want string) {
			t.Helper()
			_, got, _ := strings.Cut(strings.TrimSpace(log.String()), " type=A ")
			log.Reset()
			assert.Equal(t, what, want, got)
		}
		pkt := pack(t, question("www.test.", dns.TypeA))
		p.Pods.Confirm(time.Now())
		p.Pods.Put(pod("first", "Deployment/web"))
		c.send(pkt)
		p.Pods.Delete("shop", "first")
		p.Pods.Put(pod("second", ""))
		time.Sleep(time.Second)
		u.answer(t, 0, 300, "192.0.2.1")
		c.first(t)
		logged("from upstream", "tcp=false rcode=NOERROR source=upstream took=1s client=10.1.2.3 pod=shop/first workload=Deployment/web upstream=udp://192.0.2.53:53")
		c.exchange(t, pkt)
		logged("from the cache", `tcp=false rcode=NOERROR source=cache took=0s client=10.1.2.3 pod=shop/second workload=""`)
		time.Sleep(time.Minute)
		c.exchange(t, pkt)
		logged("not confirmed for a minute", `tcp=false rcode=NOERROR source=cache took=0s client=10.1.2.3 pod=shop/second workload="" pod_stale=true`)
		p.Pods.Delete("shop", "second")
		c.exchange(t, pkt)
		logged("unknown", "tcp=false rcode=NOERROR source=cache took=0s client=10.1.2.3")
	})
}

// FuzzWorker sends arbitrary packets to a worker. Replies must match and fit.
func FuzzWorker(f *testing.F) {
	seed := question("www.test.", dns.TypeA)
	for _, edns := range []bool{false, true} {
		if edns {
			seed.SetEdns0(600, true)
		}
		pkt, err := seed.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(pkt, false)
		f.Add(pkt, true)
	}
	u := newUpstream(f, "www.test. 300 IN A 192.0.2.1")
	p := plan(f, u)
	p.Version = "v"
	r := newResolver(f, p)
	f.Fuzz(func(t *testing.T, pkt []byte, stream bool) {
		reply := newClient(r, stream).exchange(t, bytes.Clone(pkt))
		if reply == nil {
			if len(pkt) >= 12 && pkt[2]&0x80 == 0 {
				t.Error("a query got no reply")
			}
			return
		}
		if !bytes.Equal(reply[:2], pkt[:2]) || reply[2]&0xf8 != 0x80|pkt[2]&0x78 {
			t.Errorf("reply header %x to %x", reply[:4], pkt[:4])
		}
		if !stream && len(reply) > wire.SafeUDP {
			t.Errorf("%d bytes over UDP", len(reply))
		}
		if m := new(dns.Msg); m.Unpack(reply) != nil {
			t.Errorf("reply cannot be read: %x", reply)
		}
	})
}

// TestKeepalive checks the TCP keepalive option (RFC 7828).
func TestKeepalive(t *testing.T) {
	t.Parallel()
	r := newResolver(t, plan(t, newUpstream(t, "www.test. 300 IN A 192.0.2.1")))
	for _, tt := range []struct {
		name        string
		stream, ask bool
		want        string
	}{
		{"TCP, asked", true, true, "[100]"}, // 10 s in units of 100 ms
		{"TCP, not asked", true, false, "[]"},
		{"UDP, asked", false, true, "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := question("www.test.", dns.TypeA)
			m.SetEdns0(1232, false)
			if tt.ask {
				m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE}}
			}
			for range 2 { // from upstream, then from the cache
				got := []uint16{}
				for _, o := range unpack(t, newClient(r, tt.stream).exchange(t, pack(t, m))).IsEdns0().Option {
					got = append(got, o.(*dns.EDNS0_TCP_KEEPALIVE).Timeout)
				}
				assert.Same(t, "got", tt.want, fmt.Sprint(got))
			}
		})
	}
}

// TestPadding checks whose replies are padded (RFC 7830): clients over TLS that pad their queries.
func TestPadding(t *testing.T) {
	t.Parallel()
	p := plan(t, newUpstream(t, "www.test. 300 IN A 192.0.2.1"))
	near := netip.MustParseAddr("10.9.9.9")
	p.Local = func(a netip.Addr) bool { return a == near }
	r := newResolver(t, p)
	for _, tt := range []struct {
		name                   string
		stream, secured, local bool
		options                []dns.EDNS0
		want                   bool
	}{
		{"TLS, padded", true, true, false, []dns.EDNS0{&dns.EDNS0_PADDING{Padding: make([]byte, 5)}}, true},
		{"TLS, padded with nothing", true, true, false, []dns.EDNS0{&dns.EDNS0_PADDING{}}, true},
		{"TLS, not padded", true, true, false, nil, false},
		{"TCP, padded", true, false, false, []dns.EDNS0{&dns.EDNS0_PADDING{}}, false},
		{"UDP, padded", false, false, false, []dns.EDNS0{&dns.EDNS0_PADDING{}}, false},
		{"TLS, with an explanation", true, true, true, []dns.EDNS0{&dns.EDNS0_PADDING{}, &dns.EDNS0_LOCAL{Code: wire.OptionExplain}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, name := range []string{"www.test.", "WWW.test.", "none.test."} { // from upstream, from the cache, a denial
				m := question(name, dns.TypeA)
				m.SetEdns0(1232, false)
				m.IsEdns0().Option = tt.options
				c := newClient(r, tt.stream)
				c.from.TLS = tt.secured
				if tt.local {
					c.from.Addr = netip.AddrPortFrom(near, 53)
				}
				reply := c.exchange(t, pack(t, m))
				padded := slices.ContainsFunc(unpack(t, reply).IsEdns0().Option, func(o dns.EDNS0) bool { return o.Option() == dns.EDNS0PADDING })
				assert.Equal(t, name+" is padded", tt.want, padded)
				assert.Equal(t, name+" has a multiple of 468 bytes", tt.want, len(reply)%468 == 0)
			}
		})
	}
}
