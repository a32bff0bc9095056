// SPDX-License-Identifier: Apache-2.0

package snapshot

import "time"

// Outcomes of looking for a snapshot at start: the closed set of Loaded's Outcome.
const (
	// OutcomeNone says that there was none, or that snapshots are off.
	OutcomeNone = "none"
	// OutcomeLoaded says that one was found whole and taken in.
	OutcomeLoaded = "loaded"
	// OutcomeRefused says that there was one and that nothing of it was believed.
	OutcomeRefused = "refused"
)

// Stats is what has become of an agent's snapshots since its start. Its zero
// value is that of an agent that has neither looked for one nor saved one.
type Stats struct {
	Saved     uint64        // snapshots that got onto the folder's file system whole
	Failed    uint64        // attempts that did not; the snapshot before stays
	LastSaved time.Time     // when the newest was done; zero: never since start
	LastError string        // why the last attempt failed; empty when it did not
	Bytes     int64         // size of the newest snapshot's file
	Took      time.Duration // what making and writing it took
	Panics    uint64        // defects that cut short reading one or making one
	Loaded    Loaded
}

// Loaded is what was found at start.
type Loaded struct {
	Outcome string        // one of none, loaded, refused; empty is none
	Entries int           // answers put back into the cache
	Objects int           // objects put back into the zone
	Age     time.Duration // age of the snapshot when it was loaded
	Why     string        // why it was refused; empty otherwise
}
