// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"time"

	"k8s.io/utils/clock"
)

const (
	// defaultStaleAfter allows for one bookmark per minute.
	defaultStaleAfter = 90 * time.Second

	// minStaleAfter is the shortest limit that a healthy server can meet: the Watch asks after two quiet seconds, and the bookmark
	// comes within two more.
	minStaleAfter = 5 * time.Second

	// shortWatch is the length of a watch that is opened to get a bookmark. Besides once a minute, the server sends a bookmark two
	// seconds before the end of a watch. Its timer is coarse: the bookmark comes within the first two of three seconds.
	shortWatch = 3 * time.Second

	// watchEndGrace is how long a watch may outlast its requested end.
	watchEndGrace = 2 * time.Second

	// maxListPause is the longest pause within the first list.
	maxListPause = 10 * time.Second

	// confirmTime is enough to confirm a state: one request for the version, and one bookmark.
	confirmTime = 10 * time.Second
)

// confirmTimes returns the age after which a state without changes is confirmed actively, and the timeout of the request
// for the newest version.
//
// A state is confirmed as of a moment if every earlier change was received. The server confirms it with a bookmark, in
// order after the events, once a minute. But it sends no bookmark for a version that the watch already has, and without
// changes its cache learns of newer versions only through etcd's progress reports or a request for the newest state. So
// a state that was quiet for long is confirmed in two steps:
//
//  1. A list of one object at the newest version returns that version and makes the server's cache catch up. If this
//     process already has the version, the state is confirmed as of the request.
//  2. If not, either something else in the cluster changed, such as a lease, or the watch is silent. The next watch
//     resumes after the last event received, with a short timeout. The server sends every newer event and, two
//     seconds before the end, a bookmark. This includes events that the old watch lost.
//
// The server answers the list and the watch from memory. The list before the watch is what causes the bookmark.
func confirmTimes(staleAfter time.Duration) (after, timeout time.Duration) {
	limit := staleAfter - staleAfter/10
	after = max(limit/2, limit-confirmTime)
	return after, min(limit-after, openTimeout)
}

// A cancelableClock is the reflector's clock. It ends the reflector's pauses when the feed ends; the reflector itself does not.
type cancelableClock struct {
	clock.RealClock
	done <-chan struct{}
}

// After returns a channel that receives once d has passed or the feed has ended.
func (c cancelableClock) After(d time.Duration) <-chan time.Time {
	out := make(chan time.Time, 1)
	timer := time.NewTimer(d)
	go func() {
		defer timer.Stop()
		select {
		case now := <-timer.C:
			out <- now
		case <-c.done:
			out <- c.Now()
		}
	}()
	return out
}
