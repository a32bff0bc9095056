// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/resolve"
)

// A fakeSource has an address for every name, but one that the kernel cannot give if refuses is true.
type fakeSource struct {
	asked   int
	refuses bool
}

// SharedReply implements [Source].
func (s *fakeSource) SharedReply(pkt []byte, _ time.Time, dst []byte) ([]byte, resolve.Shared, bool) {
	s.asked++
	q := new(dns.Msg)
	if s.refuses || q.Unpack(pkt) != nil {
		return dst, resolve.Shared{}, false
	}
	m := new(dns.Msg).SetReply(q)
	m.Compress = true
	rr, err := dns.NewRR(q.Question[0].Name + " 60 A 10.0.0.1")
	m.Answer = []dns.RR{rr}
	reply, packErr := m.Pack()
	return append(dst, reply...), resolve.Shared{Source: resolve.SourceCache, Key: pkt[12:], Left: time.Minute}, err == nil && packErr == nil
}

// openTable returns a table of so many answers in the kernel.
func openTable(t *testing.T, answers int64) (*table, *fakeSource) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loading the programs needs root")
	}
	s := &fakeSource{}
	k, err := Open(Config{
		Source: s, Owner: func([]byte) []byte { return nil }, Size: answers * AnswerSize, Permit: time.Second, Lease: time.Second,
		Sockets: func() []syscall.RawConn { return nil }, Busy: func() time.Duration { return 0 }, Lapsed: func() bool { return false },
		Count: func(Hits) {}, Attribute: func(Client) {}, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	assert.NoError(t, err)
	t.Cleanup(k.Close)
	return &k.table, s
}

func (t *table) offer(tb testing.TB, name string) {
	tb.Helper()
	query, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	assert.NoError(tb, err)
	t.fill(query)
}

// holds reports whether the kernel has an answer for a name.
func (t *table) holds(tb testing.TB, name string) bool {
	tb.Helper()
	wire := make([]byte, 256)
	n, err := dns.PackDomainName(name, wire, 0, nil, false)
	assert.NoError(tb, err)
	return t.k.Has(wire[:n], dns.TypeA)
}

// TestFill offers a question several times. An answer is written once for each change, however often a client asks that the kernel does not
// answer.
func TestFill(t *testing.T) {
	t.Parallel()
	table, source := openTable(t, 64)
	const name = "web.example."
	wire := []byte("\x03web\x07example\x00")
	steps := []struct {
		name  string
		do    func()
		asked int // in all
	}{
		{"the first offer", func() {}, 0},
		{"the second offer", func() {}, 1},
		{"a current answer", func() {}, 1},
		{"a change of the name", func() { table.k.Changed(wire) }, 2},
		{"current again", func() {}, 2},
		{"another configuration", func() { table.k.Changed(nil) }, 3},
	}
	for _, step := range steps {
		step.do()
		table.offer(t, name)
		assert.Same(t, "answers asked for after "+step.name, step.asked, source.asked)
	}
}

// TestInVain offers a question at full speed. Work in vain is bounded until the next sweep, other work is not.
func TestInVain(t *testing.T) {
	t.Parallel()
	const offers = 100
	for _, tt := range []struct {
		name    string
		refuses bool
		used    bool // before each change
		asked   int
	}{
		{"an answer that the kernel cannot give", true, false, maxInVain},
		{"a change before each use", false, false, 1 + maxInVain},
		{"a change after each use", false, true, offers - 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			table, source := openTable(t, 64)
			source.refuses = tt.refuses
			for range 2 {
				source.asked = 0
				for i := range offers {
					for _, e := range table.entries {
						if tt.used {
							counts := make([]uint64, ebpf.MustPossibleCPU())
							counts[0] = uint64(i)
							assert.NoError(t, table.k.objects.Hits.Put(2*e.index, counts))
						}
					}
					table.k.Changed(nil)
					table.offer(t, "web.example.")
				}
				assert.Same(t, "answers asked for", tt.asked, source.asked)
				for key := range table.entries {
					table.remove(key)
				}
				table.sweep()
			}
		})
	}
}

// ask asks for a name so many times: the kernel answers what it has, and the agent offers the others.
func (t *table) ask(tb testing.TB, name string, times int) {
	tb.Helper()
	query, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	assert.NoError(tb, err)
	key, _, _ := keyOf(query)
	for range times {
		if e := t.entries[key]; e != nil {
			counts := make([]uint64, ebpf.MustPossibleCPU())
			counts[0] = t.read(e.index)[0] + 1
			assert.NoError(tb, t.k.objects.Hits.Put(2*e.index, counts))
			continue
		}
		t.fill(query)
	}
}

// TestFlood has a pod ask for more names than there is room for. The kernel keeps the names that others ask for more often, and
// takes another one of these.
func TestFlood(t *testing.T) {
	t.Parallel()
	const room, used, often = 64, 8, 30
	for _, tt := range []struct {
		name         string
		names, times int // of the pod: each so many times between two sweeps
		other        int // how often others ask for a new name
		taken        bool
	}{
		{"each name once", 10 * room, 1, 2, true},
		{"once, and more names than are counted", 2 * maxSeen, 1, 2, true},
		{"each name five times, another one as often", 10 * room, 5, 5, false},
		{"each name five times, another one more often", 10 * room, 5, 6, true},
		{"as many names as there is room for", room - used, 5, 6, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			table, source := openTable(t, room)
			name := func(kind string, i int) string { return fmt.Sprintf("%s-%d.example.", kind, i) }
			for _, times := range []int{max(2, tt.times), tt.times, tt.times} { // at first the table fills up
				source.asked = 0
				for i := range used {
					table.ask(t, name("used", i), often)
				}
				for i := range tt.names {
					table.ask(t, name("flood", i), times)
				}
				if len(table.seen) > maxSeen {
					t.Errorf("the offers of %d questions are counted", len(table.seen))
				}
				if source.asked > room {
					t.Errorf("%d answers written between two sweeps, want no more than %d", source.asked, room)
				}
				table.sweep()
			}
			for i := range tt.names {
				table.ask(t, name("flood", i), tt.times)
			}
			full := table.k.Stats().Full
			table.ask(t, "another.example.", tt.other)
			assert.Equal(t, "another name is taken", tt.taken, table.holds(t, "another.example."))
			assert.Equal(t, "it is counted as not taken", !tt.taken, table.k.Stats().Full > full && !tt.taken)
			for i := range used {
				if !table.holds(t, name("used", i)) {
					t.Errorf("%s was removed", name("used", i))
				}
			}
			assert.Same(t, "answers", room, table.k.Stats().Answers)
		})
	}
}

// TestEncode encodes replies with address records.
func TestEncode(t *testing.T) {
	t.Parallel()
	const boot, second, cached = uint64(time.Hour), uint64(time.Second), resolve.SourceCache
	deny := func(m *dns.Msg) {
		m.Rcode, m.Ns = dns.RcodeNameError, []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 60}, Ns: ".", Mbox: "."}}
	}
	for _, tt := range []struct {
		name    string
		records int
		ttl     uint32
		shared  resolve.Shared
		edit    func(*dns.Msg)
		want    hitsAnswer // without what is copied; Until 0: not taken
	}{
		{"ends with its TTL", 1, 60, resolve.Shared{Source: cached, Left: time.Minute + time.Second}, nil, hitsAnswer{Until: boot + 60*second, Base: boot, CountsDown: 1}},
		{
			"ends before, and is as old as half a second", 1, 60,
			resolve.Shared{Source: cached, Left: time.Second, Age: 1500 * time.Millisecond},
			nil,
			hitsAnswer{Until: boot + second, Base: boot - second/2, CountsDown: 1},
		},
		{
			"of a zone, near", 3, 60,
			resolve.Shared{Source: resolve.SourceZone, Left: time.Hour, Near: 2, Inside: true},
			nil,
			hitsAnswer{Until: boot + 60*second, Base: boot, Zone: 1, Searched: 1, RotateCount: 3, RotateSize: 4, RotateNear: 2},
		},
		{
			"denial of a zone", 0, 60,
			resolve.Shared{Source: resolve.SourceZone, Left: time.Hour},
			deny,
			hitsAnswer{Until: boot + 3600*second, Base: boot, Zone: 1},
		},
		{"denial of a zone that is old", 0, 60, resolve.Shared{Source: resolve.SourceZone}, deny, hitsAnswer{}},
		{
			"cached denial", 0, 60,
			resolve.Shared{Source: cached, Left: time.Hour},
			deny,
			hitsAnswer{Until: boot + 60*second, Base: boot, CountsDown: 1},
		},
		{
			"two addresses", 2, 60,
			resolve.Shared{Source: cached, Left: time.Hour},
			nil,
			hitsAnswer{Until: boot + 60*second, Base: boot, CountsDown: 1, RotateCount: 2, RotateSize: 4},
		},
		{
			"most records", 32, 60,
			resolve.Shared{Source: cached, Left: time.Hour},
			nil,
			hitsAnswer{Until: boot + 60*second, Base: boot, CountsDown: 1, RotateCount: 32, RotateSize: 4},
		},
		{"more records", 33, 60, resolve.Shared{Source: cached, Left: time.Hour}, nil, hitsAnswer{}},
		{"no TTL", 1, 0, resolve.Shared{Source: cached, Left: time.Hour}, nil, hitsAnswer{}},
		{"no time left", 1, 60, resolve.Shared{Source: cached}, nil, hitsAnswer{}},
		{"truncated", 1, 60, resolve.Shared{Source: cached, Left: time.Hour}, func(m *dns.Msg) { m.Truncated = true }, hitsAnswer{}},
		{"too long", 1, 60, resolve.Shared{Source: cached, Left: time.Hour}, func(m *dns.Msg) {
			m.Extra = []dns.RR{&dns.NULL{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeNULL, Ttl: 60}, Data: strings.Repeat("x", maxData-16-11+1)}}
		}, hitsAnswer{}},
	} {
		m := new(dns.Msg).SetQuestion("web.", dns.TypeA)
		m.Response, m.Compress = true, true
		for i := range tt.records {
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: "web.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: tt.ttl}, A: net.IPv4(10, 0, 0, byte(i))})
		}
		if tt.edit != nil {
			tt.edit(m)
		}
		reply, err := m.Pack()
		assert.NoError(t, err)
		var a hitsAnswer
		taken := new(table).encode(&a, reply, &tt.shared, boot, 12+5+4)
		assert.Equal(t, tt.name+": taken", tt.want.Until > 0, taken)
		if taken {
			tt.want.Ttls, tt.want.Len, tt.want.Flags, tt.want.Counts, tt.want.Ttl, tt.want.Data = uint8(len(m.Answer)+len(m.Ns)), a.Len, a.Flags, a.Counts, a.Ttl, a.Data
			assert.Equal(t, tt.name, tt.want, a)
		}
	}
}
