// SPDX-License-Identifier: Apache-2.0

package status

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/snapshot"
)

func TestSnapshotStatus(t *testing.T) {
	t.Parallel()
	now := time.Unix(1700000000, 0)
	for _, tt := range []struct {
		name     string
		stats    *snapshot.Stats
		want     *Snapshot
		problems []string
	}{
		{name: "no folder"},
		{name: "the first start", stats: &snapshot.Stats{}, want: &Snapshot{Loaded: "none"}},
		{
			name: "loaded and saved",
			stats: &snapshot.Stats{
				Saved: 3, LastSaved: now.Add(-41 * time.Second), Bytes: 4096, Duration: time.Millisecond,
				Loaded: snapshot.Loaded{Outcome: snapshot.OutcomeLoaded, Entries: 7, Objects: 5, Age: 3900 * time.Millisecond},
			},
			want: &Snapshot{Loaded: "loaded", Age: new(3.9), Answers: 7, Objects: 5, Saved: new(41.0), Bytes: 4096},
		},
		{
			name: "refused, and the folder is full",
			stats: &snapshot.Stats{
				Failed: 2, LastError: "no space left on device",
				Loaded: snapshot.Loaded{Outcome: snapshot.OutcomeRefused, Reason: "its checksum is wrong"},
			},
			want:     &Snapshot{Loaded: "refused", Refused: "its checksum is wrong", Failed: 2, LastError: "no space left on device"},
			problems: []string{"no space left on device"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := SnapshotOf(tt.stats, now)
			assert.Same(t, "status", tt.want, got)
			var problems []string
			for _, p := range Problems(&Status{Config: Config{LastOK: true}, Snapshot: got}, nil, nil, nil, nil) {
				if p.Where != "snapshot" || p.Hint == "" {
					t.Errorf("problem %+v", p)
				}
				problems = append(problems, p.What)
			}
			assert.Same(t, "problems", tt.problems, problems)
		})
	}
}

// TestShedByReason names the reasons that there were, and no others.
func TestShedByReason(t *testing.T) {
	t.Parallel()
	var st resolve.Stats
	if got := QueriesOf(st); got.Shed != 0 || got.ShedBy != nil {
		t.Errorf("%d shed by %v, want none", got.Shed, got.ShedBy)
	}
	st.Shed[resolve.ShedClient], st.Shed[resolve.ShedFlood], st.Shed[resolve.ShedInflight] = 5, 2, 1
	got := QueriesOf(st)
	if diff := cmp.Diff(map[string]uint64{"client": 5, "flood": 2, "inflight": 1}, got.ShedBy); diff != "" || got.Shed != 8 {
		t.Errorf("%d shed by reason (-want +got):\n%s", got.Shed, diff)
	}
}
