// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"

	"github.com/nodecache/node-cache/pkg/snapshot"
)

// Memory describes the memory of the process in bytes.
type Memory struct {
	Container int64 // limit of the container; 0: none
	GoLimit   int64 // limit of the Go runtime; 0: none
	GoUsed    int64 // used by the Go runtime
	Snapshot  int64 // used by snapshots if their folder is in memory

	Inflight, Waiting int // bounds in use: the configured ones, or less if the memory is too low
}

func snapshotFamilies() []family {
	results := []string{"success", "failure"}
	outcomes := []string{snapshot.OutcomeNone, snapshot.OutcomeLoaded, snapshot.OutcomeRefused}
	kinds := []string{"answers", "objects"}
	return []family{
		{
			"snapshot_saves_total", counter, "Snapshots saved or failed; /status shows the last error. Absent without snapshot.folder, like all snapshot metrics.",
			[]label{{"result", results}},
			readSnapshot(func(k *snapshot.Stats, out *sink) {
				out.count(k.Saved, results[0])
				out.count(k.Failed, results[1])
			}),
		},
		{
			"snapshot_last_save_timestamp_seconds", gauge, "Unix time of the last saved snapshot. Absent before the first.",
			nil, readSnapshot(func(k *snapshot.Stats, out *sink) {
				if !k.LastSaved.IsZero() {
					out.put(float64(k.LastSaved.UnixMicro()) / 1e6)
				}
			}),
		},
		{
			"snapshot_last_save_duration_seconds", gauge, "Duration of the last save.",
			nil, readSnapshot(func(k *snapshot.Stats, out *sink) { out.put(k.Duration.Seconds()) }),
		},
		{
			"snapshot_bytes", gauge, "Size of the last saved snapshot.",
			nil, readSnapshot(func(k *snapshot.Stats, out *sink) { out.put(float64(k.Bytes)) }),
		},
		{
			"snapshot_load", gauge, "1 for the outcome of the snapshot at the start, else 0: none found, loaded, or refused. /status shows the reason.",
			[]label{{"outcome", outcomes}},
			readSnapshot(func(k *snapshot.Stats, out *sink) {
				for _, outcome := range outcomes {
					out.put(boolValue(outcome == cmp.Or(k.Loaded.Outcome, snapshot.OutcomeNone)), outcome)
				}
			}),
		},
		{
			"snapshot_restored", gauge, "Restored at the start: answers into the cache, and objects into the cluster zone.",
			[]label{{"kind", kinds}},
			readSnapshot(func(k *snapshot.Stats, out *sink) {
				out.put(float64(k.Loaded.Entries), kinds[0])
				out.put(float64(k.Loaded.Objects), kinds[1])
			}),
		},
		{
			"snapshot_restored_age_seconds", gauge, "Age of the loaded snapshot at the start; 0 if none was loaded.",
			nil, readSnapshot(func(k *snapshot.Stats, out *sink) { out.put(k.Loaded.Age.Seconds()) }),
		},
	}
}

// readSnapshot reads a family of snapshot metrics. It has no series if snapshots are off.
func readSnapshot(read func(*snapshot.Stats, *sink)) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		if s.snapshot != nil {
			read(s.snapshot, out)
		}
	}
}

func memoryFamilies() []family {
	return []family{
		{
			"memory_container_limit_bytes", gauge, "Memory limit of the container. Absent without a limit.",
			nil, readLimit(func(m *Memory) int64 { return m.Container }),
		},
		{
			"memory_go_limit_bytes", gauge, "Memory limit of the Go runtime (GOMEMLIMIT): the container's limit minus the cache and a reserve. Absent without a limit.",
			nil, readLimit(func(m *Memory) int64 { return m.GoLimit }),
		},
		{
			"memory_go_bytes", gauge, "Memory used by the Go runtime. It does not include the cache.",
			nil, gaugeOf(func(s *sample) int64 { return s.memory.GoUsed }),
		},
		{
			"memory_snapshot_bytes", gauge, "Memory used by snapshots if their folder is in memory (tmpfs), else 0.",
			nil, gaugeOf(func(s *sample) int64 { return s.memory.Snapshot }),
		},
		{
			"inflight_limit", gauge, "Limit of in-flight upstream queries: limits.inflight, or less if the container's memory limit is too low for it.",
			nil, gaugeOf(func(s *sample) int { return s.memory.Inflight }),
		},
		{
			"waiting_limit", gauge, "Limit of waiting queries: limits.waiting, or less if the container's memory limit is too low for it.",
			nil, gaugeOf(func(s *sample) int { return s.memory.Waiting }),
		},
	}
}

// readLimit reads a limit. It has no series without one.
func readLimit(of func(*Memory) int64) func(*sample, *sink) {
	return func(s *sample, out *sink) {
		if limit := of(&s.memory); limit > 0 {
			out.put(float64(limit))
		}
	}
}
