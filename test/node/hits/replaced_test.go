// SPDX-License-Identifier: Apache-2.0

package hits

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/kernel"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Numbered names have an answer that names them in every byte.
const (
	numberedNames = 4096
	askedNames    = 64 // of those, by clients
	numberedBytes = 600
)

func numberedQuery(i int) []byte {
	return withOPT(query(fmt.Sprintf("n%04d.numbered.test.", i), dns.TypeTXT), 1232, false)
}

// numberedReply appends the reply to a query for a numbered name.
func numberedReply(pkt, dst []byte) []byte {
	i := uint16(0)
	for _, c := range pkt[14:18] {
		i = 10*i + uint16(c-'0')
	}
	end := len(pkt) - 11
	start := len(dst)
	dst = append(dst, pkt[:end]...)
	dst[start+2], dst[start+3], dst[start+7] = 0x81, 0x80, 1
	dst = append(dst, 0xc0, 12, 0, 16, 0, 1, 0, 0, 0x0e, 0x10)
	size := numberedBytes - 16*int(i%8)
	dst = binary.BigEndian.AppendUint16(dst, uint16(size))
	for ; size > 0; size -= 2 {
		dst = binary.BigEndian.AppendUint16(dst, i)
	}
	return append(dst, 0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0)
}

// numbers answers for numbered names. At times it has no answer, so that the one in the kernel is removed.
type numbers struct{}

// SharedReply implements [kernel.Source].
func (numbers) SharedReply(pkt []byte, _ time.Time, dst []byte) ([]byte, resolve.Shared, bool) {
	return numberedReply(pkt, dst), resolve.Shared{Source: resolve.SourceCache, Left: time.Hour}, rand.IntN(8) > 0
}

// numbersHandler implements [server.Handler] and [server.Worker] by numbers.
type numbersHandler struct{ kernel *kernel.Kernel }

func (h numbersHandler) NewWorker() server.Worker { return h.kernel.Worker(h) }

func (numbersHandler) AnswerFromMemory(pkt []byte, _ *wire.Peer, _ time.Time, dst []byte) ([]byte, wire.Verdict) {
	return numberedReply(pkt, dst), wire.Answered
}

func (numbersHandler) Resolve(*wire.Peer, time.Time, wire.Replier) {}

func (numbersHandler) Flush(time.Time) {}

// TestReplaced replaces, removes and adds answers at full speed, while two clients ask for some of them. The kernel may use the
// memory of one for another at once: no reply has a byte of another name's.
func TestReplaced(t *testing.T) {
	n := startNode(t, numbers{}, func(k *kernel.Kernel) server.Handler { return numbersHandler{k} })
	if n == nil {
		return
	}
	length := 5 * time.Second
	if soak() {
		length = 2 * time.Minute
	}
	end := time.Now().Add(length)
	var replies, failures atomic.Int64
	var running sync.WaitGroup
	before := n.received()
	for i := range 2 {
		b := n.pods[i].newBatch(t, i)
		running.Go(func() {
			pkts := make([][]byte, batchSize)
			var want []byte
			for round := 0; time.Now().Before(end) && failures.Load() < 10; round++ {
				for j := range pkts {
					pkts[j] = numberedQuery(rand.IntN(askedNames))
				}
				if err := b.exchange(pkts, func(j int, reply []byte) {
					replies.Add(1)
					want = numberedReply(pkts[j], want[:0])
					if ttl := want[len(pkts[j])-11+6:][:4]; len(reply) == len(want) {
						copy(ttl, reply[len(pkts[j])-11+6:]) // some seconds less
					}
					if !bytes.Equal(want, reply) {
						failures.Add(1)
						t.Errorf("query %x, reply %x", pkts[j], reply)
					}
				}); err != nil {
					failures.Add(1)
					t.Error(err)
				}
			}
		})
	}
	running.Go(func() { // as if many clients asked for many names: an answer lives until the next change
		w, from, dst := n.kernel.Worker(numbersHandler{}), new(wire.Peer), []byte(nil)
		for i := 0; time.Now().Before(end); i++ {
			pkt := numberedQuery(rand.IntN(numberedNames))
			if i%2 == 0 {
				pkt = numberedQuery(rand.IntN(askedNames))
			}
			// Another time for each: the worker offers no question twice within 20 ms.
			dst, _ = w.AnswerFromMemory(pkt, from, time.Now().Add(time.Duration(i)*time.Second), dst[:0])
		}
	})
	running.Wait()
	answered, filled := replies.Load()-int64(n.received()-before), n.kernel.Stats().Filled
	proctest.Figure(t, "answers replaced: %d written, %d of %d replies by the kernel", filled, answered, replies.Load())
	if failures.Load() == 0 && (filled < 10_000 || answered < replies.Load()/4) {
		t.Errorf("%d answers written, %d of %d replies by the kernel", filled, answered, replies.Load())
	}
}
