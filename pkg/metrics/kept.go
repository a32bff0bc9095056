// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"

	"github.com/nodecache/node-cache/pkg/snapshot"
)

// Memory is what the process may take, in bytes.
type Memory struct {
	Container int64 // all of it; 0: no limit
	GoLimit   int64 // the Go runtime's part; 0: no limit
	GoUsed    int64 // of that, in use
	Snapshot  int64 // what snapshots take where their folder is in memory

	Inflight, Waiting int // bounds in use: those configured, or fewer where there is no room for them
}

func snapshotFamilies() []family {
	results := []string{"success", "failure"}
	outcomes := []string{snapshot.OutcomeNone, snapshot.OutcomeLoaded, snapshot.OutcomeRefused}
	kinds := []string{"answers", "objects"}
	return []family{
		{
			"snapshot_saves_total", counter, "Snapshots written, and attempts that failed; /status has the last reason. Absent without snapshot.folder, like all of these.",
			[]label{{"result", results}},
			readSnapshot(func(k *snapshot.Stats, out *sink) {
				out.count(k.Saved, results[0])
				out.count(k.Failed, results[1])
			}),
		},
		{
			"snapshot_last_save_timestamp_seconds", gauge, "When the last one was written, in Unix time. Absent before the first.",
			nil, readSnapshot(func(k *snapshot.Stats, out *sink) {
				if !k.LastSaved.IsZero() {
					out.put(float64(k.LastSaved.UnixMicro()) / 1e6)
				}
			}),
		},
		{
			"snapshot_last_save_duration_seconds", gauge, "How long that took.",
			nil, readSnapshot(func(k *snapshot.Stats, out *sink) { out.put(k.Took.Seconds()) }),
		},
		{
			"snapshot_bytes", gauge, "Its size.",
			nil, readSnapshot(func(k *snapshot.Stats, out *sink) { out.put(float64(k.Bytes)) }),
		},
		{
			"snapshot_load", gauge, "1 for what became of the snapshot at the start, else 0: there was none, it came back, or it was refused. /status has the reason.",
			[]label{{"outcome", outcomes}},
			readSnapshot(func(k *snapshot.Stats, out *sink) {
				for _, outcome := range outcomes {
					out.put(truth(outcome == cmp.Or(k.Loaded.Outcome, snapshot.OutcomeNone)), outcome)
				}
			}),
		},
		{
			"snapshot_restored", gauge, "What came back then: answers into the cache, and objects into the cluster zone.",
			[]label{{"kind", kinds}},
			readSnapshot(func(k *snapshot.Stats, out *sink) {
				out.put(float64(k.Loaded.Entries), kinds[0])
				out.put(float64(k.Loaded.Objects), kinds[1])
			}),
		},
		{
			"snapshot_restored_age_seconds", gauge, "How old the snapshot was that came back; 0 if none did.",
			nil, readSnapshot(func(k *snapshot.Stats, out *sink) { out.put(k.Loaded.Age.Seconds()) }),
		},
	}
}

// readSnapshot reads a family about the snapshots, which has no series without them.
func readSnapshot(read func(*snapshot.Stats, *sink)) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		if s.kept != nil {
			read(s.kept, out)
		}
	}
}

func memoryFamilies() []family {
	return []family{
		{
			"memory_container_limit_bytes", gauge, "What the container may use in all. Absent without a limit.",
			nil, readLimit(func(m *Memory) int64 { return m.Container }),
		},
		{
			"memory_go_limit_bytes", gauge, "What the Go runtime keeps its own part to (GOMEMLIMIT): what is left of the container's limit beside the cache. Absent without a limit.",
			nil, readLimit(func(m *Memory) int64 { return m.GoLimit }),
		},
		{
			"memory_go_bytes", gauge, "What the Go runtime has of its part. The cache is not in it.",
			nil, level(func(s *sample) int64 { return s.memory.GoUsed }),
		},
		{
			"memory_snapshot_bytes", gauge, "What snapshots take where their folder is in memory (tmpfs), else 0.",
			nil, level(func(s *sample) int64 { return s.memory.Snapshot }),
		},
		{
			"inflight_limit", gauge, "The bound on questions under way: limits.inflight, or fewer where the container's limit leaves no room for them.",
			nil, level(func(s *sample) int { return s.memory.Inflight }),
		},
		{
			"waiting_limit", gauge, "The bound on queries that wait, limits.waiting, likewise.",
			nil, level(func(s *sample) int { return s.memory.Waiting }),
		},
	}
}

// readLimit reads the only series of a family about a limit, where there is one.
func readLimit(of func(*Memory) int64) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		if limit := of(&s.memory); limit > 0 {
			out.put(float64(limit))
		}
	}
}
