// SPDX-License-Identifier: Apache-2.0

package page

import (
	"math"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	window   = 10 * time.Minute
	interval = 5 * time.Second // between samples
)

// A sample is what the plots need of the counters since the start, or of those between two samples.
type sample struct {
	at            time.Time
	queries       uint64
	failed        uint64 // replies with SERVFAIL
	hits, answers uint64
	durations     [len(resolve.Durations{}.Replies)]uint64
}

func sampleOf(st *resolve.Stats, at time.Time) sample {
	s := sample{at: at, queries: status.Total(st)}
	s.hits, s.answers = status.Hits(st)
	for i := range st.Durations {
		for bucket, n := range st.Durations[i].Replies {
			s.durations[bucket] += n
		}
	}
	for i := range st.Responses {
		s.failed += st.Responses[i][wire.RcodeServFail]
	}
	return s
}

// since returns what was counted after the sample before.
func (s sample) since(before *sample) sample {
	s.queries -= before.queries
	s.failed -= before.failed
	s.hits -= before.hits
	s.answers -= before.answers
	for i := range s.durations {
		s.durations[i] -= before.durations[i]
	}
	return s
}

// A history is a ring of the samples of the window. They need 24 KB.
type history struct {
	mu    sync.Mutex // guards the fields below
	ring  [window/interval + 1]sample
	taken int
}

func (h *history) add(s sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ring[h.taken%len(h.ring)] = s
	h.taken++
}

// points returns what was counted in each interval, the oldest first.
func (h *history) points() []sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []sample
	for i := max(1, h.taken-len(h.ring)+1); i < h.taken; i++ {
		list = append(list, h.ring[i%len(h.ring)].since(&h.ring[(i-1)%len(h.ring)]))
	}
	return list
}

// hitRatio is from 0 to 1, NaN without answers.
func (s *sample) hitRatio() float64 { return float64(s.hits) / float64(s.answers) }

func (s *sample) queryRate() float64 { return float64(s.queries) / interval.Seconds() }

func (s *sample) failureRate() float64 { return float64(s.failed) / interval.Seconds() }

// quantile returns the seconds that a share of the replies does not exceed, NaN without replies. It interpolates
// within a bucket, as Prometheus does.
func (s *sample) quantile(share float64) float64 {
	var total uint64
	for _, n := range s.durations {
		total += n
	}
	if total == 0 {
		return math.NaN()
	}
	rank, lower := share*float64(total), 0.0
	for i, bound := range resolve.Buckets() {
		n := float64(s.durations[i])
		if rank <= n {
			return lower + (bound.Seconds()-lower)*rank/n
		}
		rank -= n
		lower = bound.Seconds()
	}
	return lower // the last bucket has no upper bound
}

func (s *sample) p50() float64 { return s.quantile(0.5) }

func (s *sample) p99() float64 { return s.quantile(0.99) }
