// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"time"

	"github.com/nodecache/node-cache/pkg/snapshot"
)

// SnapshotStatus is what became of the snapshots since the start.
type SnapshotStatus struct {
	Loaded    string `json:"loaded"`            // a snapshot.Outcome… in its word
	Refused   string `json:"refused,omitempty"` // why it was
	Age       string `json:"age,omitempty"`     // of the one that was loaded, at the start
	Answers   int    `json:"answers"`           // that it brought
	Objects   int    `json:"objects"`           // of the cluster zone, likewise
	Saved     string `json:"saved"`             // how long ago the last one was written; "never"
	Bytes     int64  `json:"bytes"`             // of it
	Failed    uint64 `json:"failed"`            // attempts since the start
	LastError string `json:"lastError,omitempty"`
}

// snapshotStatus is nil if there are no snapshots.
func snapshotStatus(st *snapshot.Stats, now time.Time) *SnapshotStatus {
	if st == nil {
		return nil
	}
	s := &SnapshotStatus{
		Loaded: cmp.Or(st.Loaded.Outcome, snapshot.OutcomeNone), Refused: st.Loaded.Why,
		Answers: st.Loaded.Entries, Objects: st.Loaded.Objects,
		Saved: "never", Bytes: st.Bytes, Failed: st.Failed, LastError: st.LastError,
	}
	if s.Loaded == snapshot.OutcomeLoaded {
		s.Age = st.Loaded.Age.Round(time.Second).String()
	}
	if !st.LastSaved.IsZero() {
		s.Saved = now.Sub(st.LastSaved).Round(time.Second).String()
	}
	return s
}

// snapshotProblems says what is wrong with the snapshots: the next start has nothing newer than the last good one.
func snapshotProblems(s *SnapshotStatus) []Problem {
	if s == nil || s.LastError == "" {
		return nil
	}
	return []Problem{{
		Where: "snapshot", What: s.LastError,
		Hint: "see that snapshot.folder can be written to and has room; it is tried again by itself",
	}}
}
