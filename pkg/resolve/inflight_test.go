// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestIdenticalQueriesJoin is the promise that a cold name costs one query upstream,
// however many ask for it.
func TestIdenticalQueriesJoin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t, "www.test. 300 IN A 192.0.2.1")
		u.gate = make(chan struct{})
		r := newResolver(t, plan(t, u))
		const n = 10_000
		clients := make([]*client, n)
		for i := range clients {
			clients[i] = newClient(r, i%2 == 0)
			m := question([]string{"www.test.", "WWW.test.", "www.TEST."}[i%3], dns.TypeA)
			m.Id = uint16(i)
			clients[i].send(pack(t, m))
		}
		synctest.Wait()
		if s := r.Stats(); s.Inflight != 1 || s.Waiting != n || s.Joined != n-1 {
			t.Errorf("in flight %d, waiting %d, joined %d; want 1, %d, %d", s.Inflight, s.Waiting, s.Joined, n, n-1)
		}
		close(u.gate)
		for i, c := range clients {
			m := unpack(t, <-c.got)
			want := []string{"www.test.", "WWW.test.", "www.TEST."}[i%3]
			if m.Id != uint16(i) || m.Question[0].Name != want || len(m.Answer) != 1 {
				t.Fatalf("client %d got\n%s", i, m)
			}
		}
		assert.Equal(t, "queries upstream", 1, u.count())
		if s := r.Stats(); s.Inflight != 0 || s.Waiting != 0 {
			t.Errorf("afterwards in flight %d, waiting %d", s.Inflight, s.Waiting)
		}
	})
}

// coded is an error that knows its Extended DNS Error.
type coded int

func (c coded) Error() string { return "coded" }
func (c coded) EDE() int      { return int(c) }

func (c coded) Details() (server, cause string) { return "udp://192.0.2.53:53", "timeout" }

// A breaker is a client whose reply cannot be sent.
type panickingReplier struct{}

func (panickingReplier) Reply([]byte, *wire.SendBatch) { panic("asked to") }

// TestPanicWhileReplying panics in the reply to the first of two waiters. The other one gets its
// reply.
func TestPanicWhileReplying(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t, "www.test. 300 IN A 192.0.2.1")
		u.gate = make(chan struct{})
		r := newResolver(t, plan(t, u))
		pkt := pack(t, question("www.test.", dns.TypeA))
		first, second := newClient(r, false), newClient(r, false)
		now := time.Now()
		if _, verdict := first.worker.AnswerFromMemory(pkt, &first.from, now, nil); verdict != wire.Missed {
			t.Fatalf("verdict %v, want a miss", verdict)
		}
		first.worker.Resolve(&first.from, now, panickingReplier{})
		second.send(pkt)
		close(u.gate)
		if got := unpack(t, <-second.got); got.Rcode != dns.RcodeSuccess || len(got.Answer) != 1 {
			t.Errorf("the second client got, want one address:\n%s", got)
		}
		synctest.Wait()
		if s := r.Stats(); s.Panics != 1 || s.Inflight != 0 || s.Waiting != 0 {
			t.Errorf("panics %d, in flight %d, waiting %d, want 1, 0, 0", s.Panics, s.Inflight, s.Waiting)
		}
	})
}
