// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A transferClient is a wire.Stream that keeps the messages it gets.
type transferClient struct {
	more func(msg []byte) bool // nil: takes everything

	mu   sync.Mutex // guards msgs
	msgs [][]byte
	done chan struct{} // closed by Reply
}

func newFar() *transferClient { return &transferClient{done: make(chan struct{})} }

func (f *transferClient) keep(msg []byte) {
	if msg == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.msgs = append(f.msgs, bytes.Clone(msg))
}

// More implements wire.Stream.
func (f *transferClient) SendMessage(msg []byte) bool {
	if f.more != nil && !f.more(msg) {
		return false
	}
	f.keep(msg)
	return true
}

// Reply implements wire.Replier.
func (f *transferClient) Reply(msg []byte, _ *wire.SendBatch) {
	f.keep(msg)
	close(f.done)
}

// wait waits for the end and reads what came.
func (f *transferClient) wait(tb testing.TB) []*dns.Msg {
	tb.Helper()
	<-f.done
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]*dns.Msg, 0, len(f.msgs))
	for _, msg := range f.msgs {
		list = append(list, unpack(tb, msg))
	}
	return list
}

// ask sends a query from an address, and returns the reply or, if it became a
// transfer, nil.
func (f *transferClient) ask(tb testing.TB, r *resolve.Resolver, q *dns.Msg, from string, stream bool) *dns.Msg {
	tb.Helper()
	peer := wire.Peer{Addr: netip.AddrPortFrom(netip.MustParseAddr(from), 4567), Stream: stream}
	worker, now := r.NewWorker(), time.Now()
	defer func() { worker.Flush(time.Now()) }()
	reply, verdict := worker.AnswerFromMemory(pack(tb, q), &peer, now, []byte("before"))
	if verdict == wire.Missed {
		if string(reply) != "before" {
			tb.Errorf("a miss left %q", reply)
		}
		worker.Resolve(&peer, now, f)
		return nil
	}
	return unpack(tb, bytes.TrimPrefix(reply, []byte("before")))
}

// axfr is a query for the zone.
func axfr() *dns.Msg { return new(dns.Msg).SetAxfr("Cluster.LOCAL.") }

// ixfr is one for what is newer than the serial.
func ixfr(serial uint32) *dns.Msg {
	return new(dns.Msg).SetIxfr("cluster.local.", serial, "ns.dns.cluster.local.", "hostmaster.cluster.local.")
}

// transferPlan is a plan whose zone localhost and 192.0.2.0/28 may have.
func transferPlan(tb testing.TB, s *zone.Store) *resolve.Plan {
	tb.Helper()
	p := plan(tb, newUpstream(tb))
	p.Zones = zone.Zones{view(tb, s, false)}
	p.TransferTo = []netip.Prefix{
		netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("192.0.2.0/28"), netip.MustParsePrefix("fe80::/64"),
	}
	return p
}

func TestTransferClients(t *testing.T) {
	t.Parallel()
	const whole = "the zone"
	now := time.Now()
	s := shop(now)
	inSync(s)
	serial := s.Serial()
	r := newResolver(t, transferPlan(t, s))
	young := shop(now)
	unready := newResolver(t, transferPlan(t, young))
	none := transferPlan(t, s)
	none.Zones = nil
	without := newResolver(t, none)
	edns := func(m *dns.Msg) *dns.Msg { return m.SetEdns0(4096, true) }
	named := func(m *dns.Msg, name string) *dns.Msg {
		m.Question[0].Name = name
		return m
	}
	udp := func(m *dns.Msg) *dns.Msg {
		m.Response = true // means over UDP here; it is taken off
		return m
	}
	const friend = "192.0.2.15"
	for _, tt := range []struct {
		name string
		r    *resolve.Resolver
		from string
		q    *dns.Msg
		want string
	}{
		{"AXFR", r, friend, axfr(), whole},
		{"AXFR with EDNS", r, friend, edns(axfr()), whole},
		{"AXFR from a link-local address", r, "fe80::1%eth0", axfr(), whole},
		{"AXFR from the next address", r, "192.0.2.16", axfr(), "REFUSED"},
		{"AXFR from IPv6", r, "2001:db8::1", axfr(), "REFUSED"},
		{"AXFR for a name below from a stranger", r, "192.0.2.16", named(axfr(), "svc.cluster.local."), "REFUSED"},
		{"AXFR over UDP", r, friend, udp(axfr()), "REFUSED"},
		{"AXFR over UDP from a stranger", r, "192.0.2.16", udp(axfr()), "REFUSED"},
		{"AXFR for a name below", r, friend, named(axfr(), "web.shop.svc.cluster.local."), "NOTAUTH"},
		{"AXFR for an alias", r, friend, named(axfr(), "mail.shop.svc.cluster.local."), "NOTAUTH"},
		{"AXFR for a name that is not there", r, friend, named(axfr(), "no.cluster.local."), "NOTAUTH"},
		{"AXFR for a name above", r, friend, named(axfr(), "local."), "NOTAUTH"},
		{"AXFR for the root", r, friend, named(axfr(), "."), "NOTAUTH"},
		{"AXFR for another name", r, friend, named(axfr(), "example.com."), "NOTAUTH"},
		{"AXFR without a zone", without, friend, axfr(), "NOTAUTH"},
		{"AXFR before the first list", unready, friend, edns(axfr()), "SERVFAIL EDE 14"},
		{"AXFR before the first list from a stranger", unready, "192.0.2.16", edns(axfr()), "REFUSED"},
		{"IXFR", r, friend, ixfr(serial - 1), whole},
		{"IXFR from half the circle behind", r, friend, ixfr(serial - 1<<31 + 1), whole},
		{"IXFR without a version", r, friend, new(dns.Msg).SetQuestion("cluster.local.", dns.TypeIXFR), whole},
		{"IXFR, nothing newer", r, friend, ixfr(serial), fmt.Sprint("SOA ", serial)},
		{"IXFR, nothing newer, with EDNS", r, friend, edns(ixfr(serial)), fmt.Sprint("SOA ", serial)},
		{"IXFR from the future", r, friend, ixfr(serial + 9), fmt.Sprint("SOA ", serial)},
		{"IXFR over UDP", r, friend, udp(ixfr(serial - 1)), fmt.Sprint("SOA ", serial)},
		{"IXFR over UDP, nothing newer", r, friend, udp(ixfr(serial)), fmt.Sprint("SOA ", serial)},
		{"IXFR from a stranger", r, "192.0.2.16", ixfr(serial), "REFUSED"},
		{"IXFR over UDP from a stranger", r, "192.0.2.16", udp(ixfr(serial)), "REFUSED"},
		{"IXFR for a name below", r, friend, named(ixfr(1), "svc.cluster.local."), "NOTAUTH"},
		{"IXFR before the first list", unready, friend, edns(ixfr(1)), "SERVFAIL EDE 14"},
		{"IXFR over UDP before the first list", unready, friend, udp(edns(ixfr(1))), "SERVFAIL EDE 14"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			stream := !tt.q.Response
			tt.q.Response = false
			f := newFar()
			reply := f.ask(t, tt.r, tt.q, tt.from, stream)
			got := whole
			if reply != nil {
				got = short(reply)
				checkReply(t, tt.q, reply)
			} else {
				checkTransfer(t, tt.q, f.wait(t))
			}
			assert.Equal(t, "got", tt.want, got)
		})
	}
}

// short is a reply in a few words.
func short(m *dns.Msg) string {
	words := []string{dns.RcodeToString[m.Rcode]}
	for _, rr := range m.Answer {
		words = append(words, dns.TypeToString[rr.Header().Rrtype])
		if soa, ok := rr.(*dns.SOA); ok {
			words = append(words[1:], fmt.Sprint(soa.Serial))
		}
	}
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if ede, ok := o.(*dns.EDNS0_EDE); ok {
				words = append(words, fmt.Sprint("EDE ", ede.InfoCode))
			}
		}
	}
	return strings.Join(words, " ")
}

// checkReply checks what every message of a reply must have.
func checkReply(t *testing.T, q, m *dns.Msg) {
	t.Helper()
	if m.Id != q.Id || !m.Response || m.Truncated || len(m.Question) != 1 || m.Question[0] != q.Question[0] {
		t.Errorf("header and question of\n%s\ndo not fit\n%s", m, q)
	}
	if m.Authoritative != (m.Rcode == dns.RcodeSuccess) {
		t.Errorf("AA is %v with %s", m.Authoritative, dns.RcodeToString[m.Rcode])
	}
	if (m.IsEdns0() != nil) != (q.IsEdns0() != nil) || len(m.Ns) != 0 || len(m.Extra) > 1 {
		t.Errorf("other records than an OPT record where the query had one:\n%s", m)
	}
}

// checkTransfer checks a whole transfer, and returns its records without the SOA
// records at its ends.
func checkTransfer(t *testing.T, q *dns.Msg, msgs []*dns.Msg) []dns.RR {
	t.Helper()
	var all []dns.RR
	for _, m := range msgs {
		checkReply(t, q, m)
		if m.Rcode != dns.RcodeSuccess || len(m.Answer) == 0 {
			t.Fatalf("a message with %d records and %s", len(m.Answer), dns.RcodeToString[m.Rcode])
		}
		all = append(all, m.Answer...)
	}
	last := len(all) - 1
	if last < 3 || all[0].Header().Rrtype != dns.TypeSOA || !dns.IsDuplicate(all[0], all[last]) || all[0].String() != all[last].String() {
		t.Fatalf("%d records, from %s to %s", last+1, all[0], all[last])
	}
	for _, rr := range all[1:last] {
		if rr.Header().Rrtype == dns.TypeSOA {
			t.Errorf("within: %s", rr)
		}
	}
	return all[1:last]
}

// bigCluster has services ClusterIP services of two ports, and headless ones of
// ten endpoints each.
func bigCluster(services, headless int, now time.Time) *zone.Store {
	s := zone.NewStore()
	s.Expect(zone.Services, zone.Slices, zone.Namespaces)
	ports := []zone.Port{{Name: "http", Number: 80}, {Name: "dns", Protocol: zone.UDP, Number: 53}}
	for i := range services {
		s.PutService(zone.Service{
			Namespace: fmt.Sprintf("team-%d", i%50), Name: fmt.Sprintf("service-%d", i), TTL: -1, Ports: ports,
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), netip.AddrFrom16([16]byte{0xfd, 13: 1, 14: byte(i >> 8), 15: byte(i)})},
		}, now)
	}
	for i := range headless {
		namespace, name := fmt.Sprintf("team-%d", i%50), fmt.Sprintf("headless-%d", i)
		s.PutService(zone.Service{Namespace: namespace, Name: name, Type: zone.Headless, TTL: -1, Ports: ports}, now)
		sl := zone.Slice{Namespace: namespace, Name: name + "-x", Service: name, Ports: ports}
		for e := range 10 {
			hostname := ""
			if e%2 == 0 {
				hostname = fmt.Sprintf("%s-%d", name, e)
			}
			sl.Endpoints = append(sl.Endpoints, zone.Endpoint{Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(e)})}, Hostname: hostname, Ready: true})
		}
		s.PutSlice(sl, now)
	}
	inSync(s)
	return s
}

// TestTransferBigZone transfers a cluster of 11,000 services, looks at the messages, and asks for each of the records by itself.
func TestTransferBigZone(t *testing.T) {
	t.Parallel()
	const services, headless = 11_000, 100
	r := newResolver(t, transferPlan(t, bigCluster(services, headless, time.Now())))
	f, q := newFar(), axfr().SetEdns0(4096, false)
	q.IsEdns0().Option = append(q.IsEdns0().Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0011223344556677"}, &dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE})
	f.ask(t, r, q, "127.0.0.1", true)
	msgs := f.wait(t)
	all := checkTransfer(t, q, msgs)
	for i, msg := range f.msgs {
		if len(msg) > 16<<10 || i < len(msgs)-1 && len(msg) < 15<<10 {
			t.Errorf("message %d of %d has %d bytes", i, len(msgs), len(msg))
		}
		if got := len(msgs[i].IsEdns0().Option); got != 2 {
			t.Errorf("message %d has %d options, want the server's cookie and time-out", i, got)
		}
	}
	counts := map[uint16]int{}
	for _, rr := range all {
		counts[rr.Header().Rrtype]++
	}
	want := map[uint16]int{
		dns.TypeNS: 1, dns.TypeTXT: 1,
		dns.TypeA:    services + headless*(10+10),
		dns.TypeAAAA: services,
		dns.TypeSRV:  services*(2+2) + headless*(2*10+2*10+2*10),
	}
	assert.Same(t, "records by type", want, counts)
	wantAnswers(t, r, all)
	ended(t, r)
	assert.Equal(t, "transfers were counted", 1, r.Stats().Responses[resolve.SourceTransfer][0])
}

// wantAnswers asks for every name and type among the records, and wants those that
// were transferred and no others.
func wantAnswers(t *testing.T, r *resolve.Resolver, records []dns.RR) {
	t.Helper()
	sets := map[dns.Question][]string{}
	for _, rr := range records {
		h := rr.Header()
		h.Name = dns.CanonicalName(h.Name) // the domain comes as the client spelled it
		q := dns.Question{Name: h.Name, Qtype: h.Rrtype, Qclass: h.Class}
		sets[q] = append(sets[q], rr.String())
	}
	c := newClient(r, true)
	for q, want := range sets {
		m := unpack(t, c.exchange(t, pack(t, &dns.Msg{Question: []dns.Question{q}})))
		var got []string
		for _, rr := range m.Answer {
			got = append(got, rr.String())
		}
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s %s (-transferred +answered):\n%s", q.Name, dns.TypeToString[q.Qtype], diff)
		}
	}
}

// TestTransferKeepsOneSerial changes the zone while it is transferred.
func TestTransferKeepsOneSerial(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := bigCluster(2000, 0, now)
	r := newResolver(t, transferPlan(t, s))
	f, before, changes := newFar(), s.Serial(), 0
	f.more = func([]byte) bool {
		changes++
		s.PutService(zone.Service{Namespace: "team-0", Name: fmt.Sprintf("late-%d", changes), TTL: -1, Addrs: []netip.Addr{netip.MustParseAddr("10.97.0.1")}}, now)
		s.Delete(zone.Services, "team-0", fmt.Sprintf("service-%d", 50*changes), now)
		return true
	}
	f.ask(t, r, axfr(), "127.0.0.1", true)
	msgs := f.wait(t)
	if records := checkTransfer(t, axfr0(msgs[0].Id), msgs); len(records) < 2000*4 || changes < 5 {
		t.Errorf("%d records with %d changes", len(records), changes)
	}
	if soa := msgs[0].Answer[0].(*dns.SOA); soa.Serial != before || s.Serial() == before {
		t.Errorf("serial %d, before the transfer %d, after it %d", soa.Serial, before, s.Serial())
	}
}

// axfr0 is the query with the ID.
func axfr0(id uint16) *dns.Msg {
	q := axfr()
	q.Id = id
	return q
}

// ended waits until no transfer is under way.
func ended(t *testing.T, r *resolve.Resolver) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestConcurrentTransfers(t *testing.T) {
	t.Parallel()
	r := newResolver(t, transferPlan(t, bigCluster(1000, 0, time.Now())))
	gate := make(chan struct{})
	var begun []*transferClient
	for range 4 {
		f, entered := newFar(), make(chan struct{})
		f.more = func([]byte) bool {
			if entered != nil {
				close(entered)
				entered = nil
			}
			<-gate
			return true
		}
		signal := entered
		f.ask(t, r, axfr(), "127.0.0.1", true)
		<-signal
		begun = append(begun, f)
	}
	fifth := newFar()
	q := axfr().SetEdns0(1232, false)
	fifth.ask(t, r, q, "127.0.0.1", true)
	if got := fifth.wait(t); len(got) != 1 || short(got[0]) != "SERVFAIL EDE 0" {
		t.Errorf("the fifth got %v", got)
	}
	close(gate)
	for _, f := range begun {
		msgs := f.wait(t)
		checkTransfer(t, axfr0(msgs[0].Id), msgs)
	}
	ended(t, r)
	again := newFar()
	again.ask(t, r, axfr(), "127.0.0.1", true)
	msgs := again.wait(t)
	checkTransfer(t, axfr0(msgs[0].Id), msgs)
	stats := r.Stats()
	assert.Equal(t, "shed", 1, stats.Shed[resolve.ShedTransfers])
	assert.Equal(t, "transfers were counted", 5, stats.Responses[resolve.SourceTransfer][0])
}

// TestTransferAborted checks transfers that cannot be completed.
func TestTransferAborted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		more   func() func([]byte) bool
		want   []string // what came
		panics uint64
		took   time.Duration
	}{
		{"the client leaves", func() func([]byte) bool { return func([]byte) bool { return false } }, nil, 0, 0},
		{"the client leaves in the middle", func() func([]byte) bool {
			left := 2
			return func([]byte) bool {
				left--
				return left >= 0
			}
		}, []string{"NOERROR", "NOERROR"}, 0, 0},
		{"a defect", func() func([]byte) bool { return func([]byte) bool { panic("more") } }, []string{"SERVFAIL EDE 0"}, 1, 0},
		{"a client that is slow", func() func([]byte) bool {
			return func([]byte) bool {
				time.Sleep(2 * time.Minute)
				return true
			}
		}, []string{"NOERROR", "NOERROR", "NOERROR", "SERVFAIL EDE 0"}, 0, 6 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newResolver(t, transferPlan(t, bigCluster(2000, 0, time.Now())))
				f, start := newFar(), time.Now()
				f.more = tt.more()
				f.ask(t, r, axfr().SetEdns0(1232, false), "127.0.0.1", true)
				var got []string
				for _, m := range f.wait(t) {
					m.Answer = nil
					got = append(got, short(m))
				}
				assert.Same(t, "messages", tt.want, got)
				if took := time.Since(start); took != tt.took {
					t.Errorf("it ended after %v, want %v", took, tt.took)
				}
				ended(t, r)
				assert.Equal(t, "panics", tt.panics, r.Stats().Panics)
				var again *transferClient
				for range 4 { // its place is free
					again = newFar()
					again.ask(t, r, axfr(), "127.0.0.1", true)
				}
				msgs := again.wait(t)
				checkTransfer(t, axfr0(msgs[0].Id), msgs)
				ended(t, r)
			})
		})
	}
}

// A replier that is no stream, though the query says it came over one, costs the
// client its transfer and nothing else.
func TestTransferWithoutStream(t *testing.T) {
	t.Parallel()
	s := shop(time.Now())
	inSync(s)
	p := transferPlan(t, s)
	p.TransferTo = append(p.TransferTo, netip.MustParsePrefix("10.0.0.0/8"))
	m := unpack(t, newClient(newResolver(t, p), true).exchange(t, pack(t, axfr())))
	if m.Rcode != dns.RcodeRefused {
		t.Errorf("got %s, want REFUSED", dns.RcodeToString[m.Rcode])
	}
}

// BenchmarkTransfer transfers 11,000 services and 100,000 headless endpoints.
func BenchmarkTransfer(b *testing.B) {
	r := newResolver(b, transferPlan(b, bigCluster(11_000, 10_000, time.Now())))
	b.ReportAllocs()
	var size int
	for b.Loop() {
		f := newFar()
		size = 0
		f.more = func(msg []byte) bool {
			size += len(msg)
			f.msgs = nil
			return true
		}
		f.ask(b, r, axfr(), "127.0.0.1", true)
		<-f.done
		if binary.BigEndian.Uint16(f.msgs[len(f.msgs)-1][6:]) == 0 {
			b.Fatal("no transfer")
		}
	}
	b.ReportMetric(float64(size), "bytes/op")
}
