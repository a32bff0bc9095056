// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/wire"
)

// An offer is a query that the agent answered from memory: the kernel could answer the next query with the same question.
type offer struct {
	len   uint8
	query [maxQuery]byte
}

// recentOffers is the size of a worker's table of recent offers, which limits how often a question is offered again.
const recentOffers = 256

// offerInterval is the time between two offers of one question by one worker.
const offerInterval = 20 * time.Millisecond

// A worker offers the queries over UDP that the agent's worker answers from memory.
type worker struct {
	server.Worker

	k      *Responder
	recent [recentOffers]struct {
		hash uint64
		at   time.Time
	}
}

// Worker returns a worker that answers as w does and offers queries to k.
func (k *Responder) Worker(w server.Worker) server.Worker { return &worker{Worker: w, k: k} }

// AnswerFromMemory implements [server.Worker].
func (w *worker) AnswerFromMemory(pkt []byte, from *wire.Peer, now time.Time, dst []byte) ([]byte, wire.Verdict) {
	start := len(dst)
	dst, verdict := w.Worker.AnswerFromMemory(pkt, from, now, dst)
	if verdict == wire.Answered && !from.Stream && isPlain(pkt) && atomic.LoadUint32(&w.k.control.Enabled) != 0 {
		w.offer(pkt, dst[start:], now)
	}
	return dst, verdict
}

func (w *worker) offer(pkt, reply []byte, now time.Time) {
	if rcode := reply[3] & 0x0f; rcode != wire.RcodeSuccess && rcode != wire.RcodeNXDomain {
		return
	}
	hash := maphash.Bytes(w.k.seed, pkt[2:])
	seen := &w.recent[hash%recentOffers]
	if seen.hash == hash && now.Sub(seen.at) < offerInterval {
		return
	}
	seen.hash, seen.at = hash, now
	o := offer{len: uint8(len(pkt))}
	copy(o.query[:], pkt)
	select {
	case w.k.offers <- o:
	default: // the table has not read the earlier offers yet: a later query offers this question again
	}
}

// isPlain reports whether the BPF program answers queries of this shape, as bpf/hits.c decides: RD, perhaps AD, one question, perhaps an
// OPT record without options.
func isPlain(pkt []byte) bool {
	if len(pkt) <= 12+4 || len(pkt) > maxQuery || pkt[2] != 1 || pkt[3]&^0x20 != 0 || pkt[4] != 0 || pkt[5] != 1 ||
		pkt[6]|pkt[7]|pkt[8]|pkt[9]|pkt[10] != 0 || pkt[11] > 1 {
		return false
	}
	if pkt[11] == 0 {
		return len(pkt) <= maxQuery-optLen
	}
	opt := pkt[max(12, len(pkt)-optLen):]
	return len(opt) == optLen && len(pkt) > 12+4+optLen && opt[0]|opt[1]|opt[5]|opt[6]|opt[7]&0x7f|opt[8]|opt[9]|opt[10] == 0 && opt[2] == byte(wire.TypeOPT)
}
