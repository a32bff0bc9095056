// SPDX-License-Identifier: Apache-2.0

package snapshot

import "time"

// Values of Loaded.Outcome: a closed set.
const (
	// OutcomeNone means that there was no snapshot, or that snapshots are off.
	OutcomeNone = "none"
	// OutcomeLoaded means that a valid snapshot was restored.
	OutcomeLoaded = "loaded"
	// OutcomeRefused means that there was a snapshot, and nothing of it was used.
	OutcomeRefused = "refused"
)

// Stats counts an agent's snapshots since its start.
type Stats struct {
	Saved     uint64        // snapshots written and synced
	Failed    uint64        // failed attempts; the previous snapshot stays
	LastSaved time.Time     // when the latest snapshot was written; zero: none since start
	LastError string        // why the last attempt failed; empty: it succeeded
	Bytes     int64         // size of the latest snapshot file
	Duration  time.Duration // time to make and write the latest snapshot
	Panics    uint64        // recovered panics while reading or making a snapshot
	Loaded    Loaded
}

// Loaded describes the snapshot restored at start.
type Loaded struct {
	Outcome string        // none, loaded or refused; empty means none
	Entries int           // answers restored to the cache
	Objects int           // objects restored to the zone
	Age     time.Duration // age of the snapshot when it was loaded
	Reason  string        // why the snapshot was refused; otherwise empty
}
