// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/names/blocklist"
)

// blockLists returns the block list of a text.
func blockLists(tb testing.TB, text []byte) *blocklist.Lists {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "ads.txt")
	assert.NoError(tb, os.WriteFile(path, text, 0o600))
	l, err := blocklist.New(blocklist.Config{Files: []string{path}})
	assert.NoError(tb, err)
	return l
}

// TestBlockedInFlight blocks a name, or the target of an alias, while a query for it is in flight: the client gets the block, and the answer
// that arrives does not stay in the cache.
func TestBlockedInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, fails := range []bool{false, true} {
			u := newUpstream(t, "www.test. 300 IN A 192.0.2.1", "alias.test. 300 IN CNAME ads.test.")
			if fails {
				u.err = os.ErrDeadlineExceeded
			}
			u.gate = make(chan struct{})
			before := plan(t, u)
			r := newResolver(t, before)
			c := newClient(r, false)
			c.send(pack(t, question("www.test.", dns.TypeA)))
			synctest.Wait()
			after := plan(t, u)
			after.Cache, after.Block = before.Cache, blockLists(t, []byte("www.test\nads.test\n"))
			r.Swap(after)
			r.PurgeBlocked()
			close(u.gate)
			want := dns.RcodeNameError
			if fails {
				want = dns.RcodeServerFailure // it got no answer that could be replaced
			}
			assert.Equal(t, "rcode of the query in flight", want, unpack(t, <-c.got).Rcode)
			for range 2 {
				got := unpack(t, c.exchange(t, pack(t, question("www.test.", dns.TypeA))))
				assert.Equal(t, "rcode", dns.RcodeNameError, got.Rcode)
			}
			assert.Equal(t, "upstream queries", 1, u.count())
			assert.Equal(t, "cache entries", 0, after.Cache.Stats().Entries)
		}
	})
}

// TestBlockedStale blocks the target of an alias in stale answers.
func TestBlockedStale(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t)
		u.mangle = func(m *dns.Msg) {
			m.Answer = []dns.RR{record(t, "alias.test. 300 IN CNAME ads.test."), record(t, "ads.test. 300 IN A 192.0.2.1")}
		}
		p := plan(t, u)
		p.Cache.SetServeStale(cache.ServeStale{Window: 24 * time.Hour, TTL: 30 * time.Second})
		p.Block = blockLists(t, []byte("ads.test\n"))
		c := newClient(newResolver(t, p), false)
		c.exchange(t, pack(t, question("alias.test.", dns.TypeA)))
		u.err = os.ErrDeadlineExceeded
		time.Sleep(time.Hour)
		for _, state := range []string{"stale", "stale, in backoff"} {
			got := unpack(t, c.exchange(t, pack(t, question("alias.test.", dns.TypeA))))
			assert.Equal(t, state+": rcode", dns.RcodeNameError, got.Rcode)
			assert.Equal(t, state+": answers", 0, len(got.Answer))
		}
	})
}

// TestBlockedAliasMarks changes what the lists say of a cached answer with an alias: each change counts for the next query, which asks the
// upstream only after a change.
func TestBlockedAliasMarks(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.mangle = func(m *dns.Msg) {
		m.Zero = true // an upstream that sets the bit of the mark
		m.Answer = []dns.RR{record(t, "alias.test. 300 IN CNAME ads.test."), record(t, "ads.test. 300 IN A 192.0.2.1")}
	}
	p := plan(t, u)
	r := newResolver(t, p)
	c := newClient(r, false)
	for _, step := range []struct {
		name, list string
		notBlocked []byte
		rcode      int
		asked      int
	}{
		{"no lists", "", nil, dns.RcodeSuccess, 1},
		{"a list has the target", "ads.test\n", nil, dns.RcodeNameError, 1}, // the mark of the upstream is right by accident
		{"another list has it", "a.test\nads.test\n", nil, dns.RcodeNameError, 1},
		{"no list has it", "a.test\n", nil, dns.RcodeSuccess, 2},
		{"a list has it again", "ads.test\n", nil, dns.RcodeNameError, 3},
		{"a zone of the configuration has it", "ads.test\n", pack(t, question("test.", dns.TypeA))[12:18], dns.RcodeSuccess, 4},
		{"and no longer", "ads.test\n", nil, dns.RcodeNameError, 5},
		{"the lists have gone", "", nil, dns.RcodeSuccess, 5},
	} {
		after := plan(t, u)
		after.Cache, after.NotBlocked = p.Cache, nil
		if step.notBlocked != nil {
			after.NotBlocked = [][]byte{step.notBlocked}
		}
		if step.list != "" {
			after.Block = blockLists(t, []byte(step.list))
		}
		r.Swap(after)
		r.PurgeBlocked()
		for range 2 {
			got := unpack(t, c.exchange(t, pack(t, question("alias.test.", dns.TypeA))))
			assert.Equal(t, step.name+": rcode", step.rcode, got.Rcode)
			assert.Equal(t, step.name+": reserved bit", false, got.Zero)
		}
		assert.Equal(t, step.name+": upstream queries", step.asked, u.count())
	}
}

// TestLoopNamesAreNotBlocked: a list that has a loop name would hide a loop.
func TestLoopNamesAreNotBlocked(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	p := plan(t, u)
	p.Block = blockLists(t, []byte("*.test\n"))
	p.Loop = func([]byte) bool { return true }
	name := "0123456789abcdef0123456789abcdef.loop.node-cache.test."
	got := unpack(t, newClient(newResolver(t, p), false).exchange(t, pack(t, question(name, dns.TypeTXT))))
	assert.Equal(t, "rcode", dns.RcodeRefused, got.Rcode)
}

// BenchmarkAnswerFromMemoryBlock compares hits without and with a block list of a million names.
func BenchmarkAnswerFromMemoryBlock(b *testing.B) {
	var text bytes.Buffer
	for i := range 1_000_000 {
		fmt.Fprintf(&text, "*.ads%d.shop.example\n", i)
	}
	lists := blockLists(b, text.Bytes())
	for _, tt := range []struct {
		name, ask string
		block     *blocklist.Lists
	}{
		{"hit/none", "www.one.test.", nil},
		{"hit/million", "www.one.test.", lists},
		{"alias/none", "alias.test.", nil},
		{"alias/million", "alias.test.", lists},
		{"blocked/million", "www.ads7.shop.example.", lists},
	} {
		b.Run(tt.name, func(b *testing.B) {
			u := newUpstream(b, "www.one.test. 300 IN A 192.0.2.1")
			u.mangle = func(m *dns.Msg) {
				if m.Question[0].Name == "alias.test." {
					m.Answer = []dns.RR{record(b, "alias.test. 300 IN CNAME www.one.test."), record(b, "www.one.test. 300 IN A 192.0.2.1")}
				}
			}
			p := plan(b, u)
			p.Block = tt.block
			c := newClient(newResolver(b, p), false)
			pkt := pack(b, question(tt.ask, dns.TypeA))
			c.exchange(b, pkt)
			dst, now := make([]byte, 0, 4096), time.Now()
			b.ReportAllocs()
			for b.Loop() {
				c.worker.AnswerFromMemory(pkt, &c.from, now, dst)
			}
		})
	}
}

// TestBlockAllocates answers blocked names from memory, which must not allocate.
func TestBlockAllocates(t *testing.T) {
	u := newUpstream(t)
	u.mangle = func(m *dns.Msg) {
		m.Answer = []dns.RR{record(t, m.Question[0].Name+" 300 IN CNAME ads.test."), record(t, "ads.test. 300 IN A 192.0.2.1")}
	}
	p := plan(t, u)
	p.Block = blockLists(t, []byte("*.ads.test\nads.test\n"))
	p.NotBlocked = [][]byte{[]byte("\x07cluster\x05local\x00")}
	c := newClient(newResolver(t, p), false)
	for _, name := range []string{"x.ads.test.", "alias.test."} {
		m := question(name, dns.TypeA)
		m.SetEdns0(1232, false)
		c.exchange(t, pack(t, m))
		wantNoAllocations(t, c.worker, &c.from, pack(t, m), time.Now())
	}
}
