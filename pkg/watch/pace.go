// SPDX-License-Identifier: Apache-2.0

package watch

import "time"

const (
	// defaultStaleAfter leaves room for a bookmark each minute.
	defaultStaleAfter = 90 * time.Second

	// minStaleAfter is the shortest limit that a healthy server can keep: two seconds for a bookmark, after as many of quiet.
	minStaleAfter = 5 * time.Second

	// shortWatch is the length of a watch that is to bring a bookmark at once. Apart from the minute, the server sends one two
	// seconds before the end of a watch, and its timer is coarse: it comes within the first two seconds of three.
	shortWatch = 3 * time.Second

	// overtime is how long after its end a watch is still waited for.
	watchEndGrace = 2 * time.Second

	// stall is how long the first list may pause.
	maxListPause = 10 * time.Second

	// proofTime is enough to prove a view right: to ask for the version, and for a bookmark.
	confirmTime = 10 * time.Second
)

// A pace keeps a view from growing old where nothing changes.
//
// A view is right as of some moment when all that was changed before has been heard. The server says so with a bookmark, in
// order after the events, once a minute. But it sends none of a version that the watch has seen already, and where nothing
// changes its cache learns of newer versions only if etcd is set to report progress, or somebody asks for the newest state. So a
// view that was quiet for long is proven in two steps:
//
//  1. A list of one object, of the newest state, brings the version of that state, and makes the server's cache come
//     up to it. If the view has come to this version, it was right when the list was asked for.
//  2. If not, either something else has changed in the cluster, a lease say, or the watch has gone silent. The next watch goes on
//     from what was heard last, and is asked for with a short end. The server sends what is new, and two seconds before the
//     end a bookmark. What the old watch may have swallowed is in it.
//
// Both are answered from the server's memory. That the list comes before is what makes the bookmark come.
type confirmTiming struct {
	after   time.Duration // the age at which a view is to be proven
	timeout time.Duration // how long to wait for the version
}

// newPace makes the pace for a limit of freshness.
func newConfirmTiming(staleAfter time.Duration) confirmTiming {
	limit := staleAfter - staleAfter/10
	ask := max(limit/2, limit-confirmTime)
	return confirmTiming{after: ask, timeout: min(limit-ask, openTimeout)}
}
