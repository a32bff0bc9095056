// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/nodecache/node-cache/pkg/config"
)

// memoryPeriod is how often the container's limit is read: it can change while the agent runs.
const memoryPeriod = 10 * time.Second

// memory keeps the process within the limit of its container.
type memory struct { // of the container
	limit      func() (uint64, error) // sets the Go runtime's limit
	setGoLimit func(int64) int64      // GOMEMLIMIT of the environment, which takes precedence; empty: not set
	env        string                 // GOMEMLIMIT of the environment, which wins; empty: there is none
	log        *slog.Logger
	// advise disables readahead for the program's pages.
	advise func() error

	mu    sync.Mutex // guards changes of share
	share atomic.Pointer[share]
}

func newMemory(log *slog.Logger) *memory {
	return &memory{limit: containerLimit, setGoLimit: debug.SetMemoryLimit, env: os.Getenv("GOMEMLIMIT"), log: log, advise: disableReadahead}
}

// update divides the container's current memory for cfg, and reports whether a share changed.
func (m *memory) update(ctx context.Context, cfg *config.Config) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.share.Load()
	limit, err := m.limit()
	switch {
	case errors.Is(err, memlimit.ErrNoLimit), errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
		limit, err = 0, nil
	case err != nil && old != nil:
		limit = uint64(old.limit) // an old limit is better than none
	}
	next := shareOut(int64(min(limit, math.MaxInt64)), runtime.GOMAXPROCS(0), cfg)
	if err != nil {
		next.limitError = err.Error()
	}
	if old != nil && *old == next {
		return false
	}
	m.apply(ctx, cfg, old, &next)
	m.share.Store(&next) // last: a reader of share finds it applied and logged
	return old != nil
}

// apply sets the Go runtime's limit, disables readahead, and logs the new shares.
func (m *memory) apply(ctx context.Context, cfg *config.Config, old, next *share) {
	if old == nil {
		old = &share{}
	}
	if m.env == "" && (next.goLimit > 0 || old.goLimit > 0) {
		limit := next.goLimit
		if limit == 0 {
			limit = math.MaxInt64
		}
		m.setGoLimit(limit)
	}
	if next.limitError != "" && old.limitError == "" {
		m.log.WarnContext(ctx, "reading the container's memory limit failed", "err", next.limitError)
	}
	if next.limit == 0 {
		return
	}
	if old.limit == 0 {
		if err := m.advise(); err != nil {
			m.log.DebugContext(ctx, "disabling readahead failed", "err", err)
		}
	}
	inflight, waiting := next.queryBounds()
	sessions, _ := next.sessions(&cfg.Limits)
	m.log.InfoContext(ctx, "memory divided", "limit", next.limit, "cache", next.cache, "snapshot", next.snapshot,
		"go", next.goLimit, "environment", m.env, "inflight", inflight, "waiting", waiting, "tcp_sessions", sessions)
	if p, bad := next.problem(); bad {
		m.log.WarnContext(ctx, "too little memory", "problem", p.What, "hint", p.Hint)
	}
}

// watchMemoryLimit reads the container's limit every memoryPeriod.
func (a *Agent) watchMemoryLimit(ctx context.Context) {
	ticker := time.NewTicker(memoryPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			cfg := a.Config()
			if a.memory.update(ctx, &cfg) {
				a.request(request{replan: true})
			}
		}
	}
}

// MemoryStatus is the memory that the agent may use, in bytes, as in /status and the metrics.
type MemoryStatus struct {
	Cgroup   int64 `json:"cgroup,omitempty"`   // the container's limit; 0: none
	GoLimit  int64 `json:"goLimit,omitempty"`  // the Go runtime's limit; 0: none
	GoUsed   int64 `json:"goUsed"`             // used by the Go runtime
	Cache    int64 `json:"cache"`              // cache.size
	Snapshot int64 `json:"snapshot,omitempty"` // used by snapshots if their folder is in memory
	// By names the origin of GoLimit: "cgroup", "GOMEMLIMIT" (the environment), or "no limit".
	By string `json:"by"`
	// Inflight and Waiting are the bounds in use: the configured ones if the memory allows.
	Inflight int `json:"inflight"`
	Waiting  int `json:"waiting"`
}

// noLimit is the value of By without a limit.
const noLimit = "no limit"

// memoryStatus returns the status for /status and the metrics. It is cheap.
func (a *Agent) memoryStatus() MemoryStatus {
	s := a.memory.share.Load()
	status := MemoryStatus{Cgroup: s.limit, Cache: s.cache, Snapshot: s.snapshot, GoUsed: goUsed(), By: noLimit}
	status.Inflight, status.Waiting = s.queryBounds()
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		status.GoLimit, status.By = limit, "cgroup"
	}
	if a.memory.env != "" {
		status.By = "GOMEMLIMIT"
	}
	return status
}

// goUsed returns the memory that the Go runtime holds, counted as for its limit.
func goUsed() int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}

// memoryProblems reports what is wrong with the memory.
func (a *Agent) memoryProblems() (list []Problem) {
	s := a.memory.share.Load()
	if p, bad := s.problem(); bad {
		list = append(list, p)
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if p, bad := s.heapProblem(int64(live[0].Value.Uint64())); bad && a.memory.env == "" {
		list = append(list, p)
	}
	return list
}

// MemoryProblem reports why this process's container has too little memory for cfg. It is nil if the memory
// suffices or has no limit.
func MemoryProblem(cfg *config.Config) *Problem {
	limit, err := containerLimit()
	if err != nil {
		return nil
	}
	s := shareOut(int64(min(limit, math.MaxInt64)), runtime.GOMAXPROCS(0), cfg)
	if p, bad := s.problem(); bad {
		return &p
	}
	return nil
}

// containerLimit returns the memory limit of this process's container in bytes. Without a limit the error is
// one of memlimit's.
func containerLimit() (uint64, error) { return lowerLimit("/proc/self", memlimit.FromCgroup) }

// lowerLimit returns the lower of hard, at which the kernel kills, and memory.high of cgroup v2. Above
// memory.high the kernel delays each page allocation, which an agent does not survive either. Kubelets with
// MemoryQoS set it.
func lowerLimit(self string, hard func() (uint64, error)) (uint64, error) {
	limit, err := hard()
	high := lowestHigh(self)
	if high < math.MaxUint64 && errors.Is(err, memlimit.ErrNoLimit) {
		limit, err = high, nil
	}
	return min(limit, high), err
}

// lowestHigh returns the lowest memory.high of the process's cgroup and its visible ancestors,
// [math.MaxUint64] without any. Unreadable files are no bound: cgroup v1 has none.
func lowestHigh(self string) uint64 {
	lowest := uint64(math.MaxUint64)
	own, _ := os.ReadFile(filepath.Join(self, "cgroup"))
	mounts, _ := os.ReadFile(filepath.Join(self, "mountinfo"))
	path := unifiedPath(string(own))
	for line := range strings.Lines(string(mounts)) {
		mount, below, ok := unifiedMount(line, path)
		for ok {
			text, _ := os.ReadFile(filepath.Join(mount, below, "memory.high"))
			if high, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil {
				lowest = min(lowest, high)
			}
			ok = below != "."
			below = filepath.Dir(below)
		}
	}
	return lowest
}

// unifiedPath returns the path of a process's v2 cgroup from its /proc cgroup file; "" if it has none.
func unifiedPath(own string) string {
	for line := range strings.Lines(own) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return path
		}
	}
	return ""
}

// unifiedMount parses a line of mountinfo. It returns where cgroup v2 is mounted, and the path of the cgroup
// at path below the mount. ok is false if the cgroup is not visible there: the mount may show another part of
// the tree, or one above this process's namespace.
func unifiedMount(line, path string) (mount, below string, ok bool) {
	// 31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw
	left, right, ok := strings.Cut(line, " - ")
	fields := strings.Fields(left)
	if !ok || !strings.HasPrefix(right, "cgroup2 ") || len(fields) < 5 {
		return "", "", false
	}
	root := fields[3]
	if !filepath.IsAbs(path) || strings.HasPrefix(path, "/..") || strings.HasPrefix(root, "/..") {
		return "", "", false
	}
	below, err := filepath.Rel(root, path)
	return fields[4], below, err == nil && filepath.IsLocal(below)
}
