// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/status"
)

// TestSnapshotAndMemory has no snapshot, then none that was loaded or written, and a process without a limit.
func TestSnapshotAndMemory(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		kept   *snapshot.Stats
		memory status.Memory
		want   []string // series whose names begin with snapshot_ or memory_
	}{
		{name: "no folder, no limit", want: []string{"memory_go_bytes 0", "memory_snapshot_bytes 0"}},
		{
			name: "the first start, two limits", kept: &snapshot.Stats{}, memory: status.Memory{Cgroup: 2, GoLimit: 1},
			want: []string{
				"memory_container_limit_bytes 2", "memory_go_bytes 0", "memory_go_limit_bytes 1", "memory_snapshot_bytes 0",
				"snapshot_bytes 0", "snapshot_last_save_duration_seconds 0",
				`snapshot_load{outcome="loaded"} 0`, `snapshot_load{outcome="none"} 1`, `snapshot_load{outcome="refused"} 0`,
				"snapshot_restored_age_seconds 0", `snapshot_restored{kind="answers"} 0`, `snapshot_restored{kind="objects"} 0`,
				`snapshot_saves_total{result="failure"} 0`, `snapshot_saves_total{result="success"} 0`,
			},
		},
	} {
		sample := distinct()
		sample.Snapshot, sample.Memory = tt.kept, tt.memory
		var got []string
		for name, value := range series(gather(t, sample)) {
			if strings.HasPrefix(name, "snapshot_") || strings.HasPrefix(name, "memory_") {
				got = append(got, fmt.Sprint(name, " ", value))
			}
		}
		slices.Sort(got)
		same(t, tt.name+": series", tt.want, got)
	}
}
