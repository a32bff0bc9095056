// SPDX-License-Identifier: Apache-2.0

package watch

import "time"

const (
	// defaultStaleAfter is longer than the minute between two bookmarks.
	defaultStaleAfter = 90 * time.Second

	// minStaleAfter is the shortest limit that a healthy server's bookmarks can keep: see shortestWatch.
	minStaleAfter = 5 * time.Second

	// bookmarkPeriod is the longest time between two bookmarks of one watch: a minute, which the server keeps to within a
	// second or two, and some for the way.
	bookmarkPeriod = 65 * time.Second

	// shortestWatch is the shortest watch with a bookmark in it. Apart from the minute, the server sends one two seconds
	// before the end of a watch, and its timer is coarse: it comes within the first two seconds of three.
	shortestWatch = 3 * time.Second

	// overtime is how long after its end a watch is still waited for.
	overtime = 2 * time.Second

	// stall is how long the first list may pause.
	stall = 10 * time.Second
)

// A pace keeps a view from growing old where nothing changes.
//
// What proves that a view is right? Only word from the server that comes in order after every earlier change: an event, or
// a bookmark. A second request, a LIST with limit 1 say, tells the server's revision, which every lease in the cluster
// moves, and nothing about what the watch may have swallowed. So the proof has to come through the watch itself. The
// server sends a bookmark each minute, which keeps the default limit of 90 s. For a shorter limit, and when a watch
// has been cut and the view is already old, the watch is asked for with a short end: the server sends a
// bookmark two seconds before that, and the next watch goes on where this one stopped. It costs one request, answered
// from the server's memory with nothing but what is new.
type pace struct {
	limit time.Duration // the age at which a watch is given up; some time before the zone stops denying
}

// newPace makes the pace for a limit of freshness.
func newPace(staleAfter time.Duration) pace {
	return pace{limit: staleAfter - staleAfter/10}
}

// length gives the length to ask for of a watch that goes on, for a view of this age, and 0 for any: bookmarks
// each minute are enough.
func (p pace) length(age time.Duration) time.Duration {
	left := p.limit - age
	if left >= bookmarkPeriod {
		return 0
	}
	return max(left*2/3, shortestWatch).Truncate(time.Second)
}

// A patience says how long a watch is waited for.
type patience struct {
	first time.Duration // for the first proof; of a first list: for each event before its end
	next  time.Duration // for each proof after that
}

// forFirst gives the patience with a first list. The watch that follows it in the same stream has no end of ours, so it is left
// early if bookmarks each minute are not enough.
func (p pace) forFirst() patience {
	next := p.limit
	if next < bookmarkPeriod {
		next /= 3
	}
	return patience{first: max(p.limit, stall), next: next}
}

// forNext gives the patience with a watch that goes on, of the length asked for.
func (p pace) forNext(age, length time.Duration) patience {
	if length == 0 {
		return patience{first: p.limit - age, next: p.limit}
	}
	return patience{first: length + overtime, next: max(p.limit, length+overtime)}
}
