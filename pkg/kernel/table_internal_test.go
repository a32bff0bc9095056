// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"log/slog"
	"os"
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

// TestFlood offers more names than there is room for. Answers with hits stay, and a full table costs no reply.
func TestFlood(t *testing.T) {
	t.Parallel()
	const room, used = 64, 8
	table, source := openTable(t, room)
	name := func(kind string, i int) string { return fmt.Sprintf("%s-%d.example.", kind, i) }
	flood := func(kind string) (asked int) {
		before := source.asked
		for i := range 10 * room {
			table.offer(t, name(kind, i))
			table.offer(t, name(kind, i))
		}
		return source.asked - before
	}
	for i := range used {
		table.offer(t, name("used", i))
		table.offer(t, name("used", i))
	}
	for round := range 3 {
		want := room - used
		if got := flood(fmt.Sprint("flood", round)); got != want {
			t.Errorf("round %d: %d answers asked for, want %d", round, got, want)
		}
		for _, e := range table.entries {
			if e.hits.Key[1] == 'u' { // used-0
				counts := make([]uint64, ebpf.MustPossibleCPU())
				counts[0] = uint64(round + 1)
				assert.NoError(t, table.k.objects.Hits.Put(2*e.index, counts))
			}
		}
		table.sweep()
		for i := range used {
			if !table.holds(t, name("used", i)) {
				t.Errorf("round %d: %s was removed", round, name("used", i))
			}
		}
		assert.Same(t, "answers left", used, table.k.Stats().Answers)
	}
}
