// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/zone"
)

const bucketCount = 15 // Buckets and the rest

// Buckets are the upper bounds of the histograms; what is longer is counted after the last.
func Buckets() [bucketCount - 1]time.Duration {
	return [bucketCount - 1]time.Duration{
		50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, time.Millisecond,
		5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
		100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
		time.Second, 2500 * time.Millisecond, 10 * time.Second,
	}
}

// Stats is what a source counted since it was made, and what it knows now.
type Stats struct {
	Kinds        []KindStats // of the kinds that are filled, in the order of zone.Kind
	ServiceWatch ServiceWatchStats
	Requests     uint64 // sent to the API server; 0 for manifests
	Panics       uint64 // recovered, each also logged with its stack
}

// KindStats is what is known of one kind of objects.
type KindStats struct {
	Kind      zone.Kind
	Synced    bool          // the first list is complete
	Age       time.Duration // since the view was last proven right; 0 before the first list
	Events    uint64        // objects put or deleted, those of lists included
	Restarts  uint64        // watches begun after the first
	Failures  uint64        // requests and watches that failed or were given up
	LastError string        // begins with its reason ("forbidden: …"); empty once the view is proven right again
	Arrival   Histogram     // from reading an event to having applied it; lists are not counted
	Change    Histogram     // from the object's own change time to having applied it; EndpointSlices carry one
}

// FollowStats is what is known of the endpoints followed.
type ServiceWatchStats struct {
	Synced    bool
	LastError string // as in KindStats
}

// A Histogram counts durations by Buckets.
type Histogram struct {
	Counts [bucketCount]uint64 // not cumulative
	Sum    time.Duration
}

// A histogram is a Histogram that is being filled.
type histogram struct {
	counts [bucketCount]atomic.Uint64
	sum    atomic.Int64 // nanoseconds
}

// observe counts d. A clock that differs from the server's may make it negative; it counts as 0.
func (h *histogram) observe(d time.Duration) {
	d = max(d, 0)
	i := 0
	for bounds := Buckets(); i < len(bounds) && d > bounds[i]; i++ {
		continue
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

// read gives what was counted.
func (h *histogram) read() Histogram {
	var out Histogram
	for i := range out.Counts {
		out.Counts[i] = h.counts[i].Load()
	}
	out.Sum = time.Duration(h.sum.Load())
	return out
}
