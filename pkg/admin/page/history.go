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

// timed is the number of sources whose durations are counted apart.
const timed = len(resolve.Stats{}.Durations)

// durations are replies by time, as in [resolve.Durations]. They wrap around, which does not matter for differences.
type durations [len(resolve.Durations{}.Replies)]uint32

// A sample is what the plots need of the counters since the start, or of those between two samples.
type sample struct {
	at            time.Time
	queries       uint64
	failed        uint64 // replies with SERVFAIL
	stale         uint64 // stale answers
	hits, answers uint64
	took          [timed]durations // by resolve.TimedSources
}

func sampleOf(st *resolve.Stats, at time.Time) sample {
	s := sample{at: at, queries: status.Total(st)}
	s.hits, s.answers = status.Hits(st)
	for source := range s.took {
		for bucket, n := range st.Durations[source].Replies {
			s.took[source][bucket] = uint32(n) //nolint:gosec // see durations
		}
	}
	for source := range st.Responses {
		s.failed += st.Responses[source][wire.RcodeServFail]
	}
	for _, n := range st.Responses[resolve.SourceStale] {
		s.stale += n
	}
	return s
}

// since returns what was counted after the sample before.
func (s sample) since(before *sample) sample {
	s.queries -= before.queries
	s.failed -= before.failed
	s.stale -= before.stale
	s.hits -= before.hits
	s.answers -= before.answers
	for source := range s.took {
		for bucket := range s.took[source] {
			s.took[source][bucket] -= before.took[source][bucket]
		}
	}
	return s
}

// A history is a ring of the samples of the window. They need 57 KB.
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

func (s *sample) staleRate() float64 { return float64(s.stale) / interval.Seconds() }

// hitP99 is the p99 of answers from the zone and the cache, in seconds.
func (s *sample) hitP99() float64 {
	return s.took[resolve.SourceZone].plus(&s.took[resolve.SourceCache]).quantile(0.99)
}

// missP99 is the p99 of answers of upstreams, in seconds.
func (s *sample) missP99() float64 { return s.took[resolve.SourceUpstream].quantile(0.99) }

func (d durations) plus(o *durations) durations {
	for i := range d {
		d[i] += o[i]
	}
	return d
}

func (d durations) total() (n uint64) {
	for _, replies := range d {
		n += uint64(replies)
	}
	return n
}

// quantile returns the seconds that a share of the replies does not exceed, NaN without replies. It interpolates
// within a bucket, as Prometheus does.
func (d durations) quantile(share float64) float64 {
	total := d.total()
	if total == 0 {
		return math.NaN()
	}
	rank, lower := share*float64(total), 0.0
	for i, bound := range resolve.Buckets() {
		n := float64(d[i])
		if rank <= n {
			return lower + (bound.Seconds()-lower)*rank/n
		}
		rank -= n
		lower = bound.Seconds()
	}
	return lower // the last bucket has no upper bound
}
