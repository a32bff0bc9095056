// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/nodecache/node-cache/pkg/config"
)

// memoryPeriod is how often the container's limit is read again: it may be changed
// while the agent runs.
const memoryPeriod = 10 * time.Second

// memory keeps the process within the limit of its container.
type memory struct {
	limit func() (uint64, error) // of the container
	set   func(int64) int64      // the Go runtime's limit
	env   string                 // GOMEMLIMIT of the environment, which wins; empty: there is none
	log   *slog.Logger
	// advise tells the kernel how to treat the program's pages where memory is scarce.
	advise func() error

	mu    sync.Mutex // guards using a new share
	known atomic.Pointer[share]
}

func newMemory(log *slog.Logger) *memory {
	return &memory{limit: containerLimit, set: debug.SetMemoryLimit, env: os.Getenv("GOMEMLIMIT"), log: log, advise: readSingly}
}

// use shares out what the container has now for a process with configuration cfg, and
// tells whether that changed what fits.
func (m *memory) use(ctx context.Context, cfg *config.Config) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.known.Load()
	limit, err := m.limit()
	switch {
	case errors.Is(err, memlimit.ErrNoLimit), errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
		limit, err = 0, nil
	case err != nil && old != nil:
		limit = uint64(old.limit) // better an old one than none
	}
	next := shareOut(int64(min(limit, math.MaxInt64)), runtime.GOMAXPROCS(0), cfg)
	if err != nil {
		next.unknown = err.Error()
	}
	if old != nil && *old == next {
		return false
	}
	m.apply(ctx, cfg, old, &next)
	m.known.Store(&next) // last: who sees it finds it applied, and told
	return old != nil
}

// apply tells the Go runtime its limit, the kernel to mind how little there is, and the
// log what is new.
func (m *memory) apply(ctx context.Context, cfg *config.Config, old, next *share) {
	if old == nil {
		old = &share{}
	}
	if m.env == "" && (next.golang > 0 || old.golang > 0) {
		limit := next.golang
		if limit == 0 {
			limit = math.MaxInt64
		}
		m.set(limit)
	}
	if next.unknown != "" && old.unknown == "" {
		m.log.WarnContext(ctx, "the memory limit of this container is not known", "err", next.unknown)
	}
	if next.limit == 0 {
		return
	}
	if old.limit == 0 {
		if err := m.advise(); err != nil {
			m.log.DebugContext(ctx, "the kernel reads the program's pages as it likes", "err", err)
		}
	}
	inflight, waiting := next.fit()
	sessions, _ := next.sessions(&cfg.Limits)
	m.log.InfoContext(ctx, "memory shared out", "limit", next.limit, "cache", next.cache, "snapshot", next.snapshot,
		"go", next.golang, "environment", m.env, "inflight", inflight, "waiting", waiting, "tcp_sessions", sessions)
	if p, bad := next.problem(); bad {
		m.log.WarnContext(ctx, "too little memory", "problem", p.What, "hint", p.Hint)
	}
}

// followMemory reads the container's limit again and again.
func (a *Agent) followMemory(ctx context.Context) {
	ticker := time.NewTicker(memoryPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			cfg := a.Config()
			if a.memory.use(ctx, &cfg) {
				a.request(request{replan: true})
			}
		}
	}
}

// MemoryStatus is the memory that the agent may use, in bytes, as /status and
// the metrics tell it.
type MemoryStatus struct {
	Cgroup   int64 `json:"cgroup,omitempty"`   // what the container may use in all; 0: it has no limit
	GoLimit  int64 `json:"goLimit,omitempty"`  // what the Go runtime keeps its own part to; 0: no limit
	GoUsed   int64 `json:"goUsed"`             // of that, in use
	Cache    int64 `json:"cache"`              // cache.size
	Snapshot int64 `json:"snapshot,omitempty"` // what a snapshot takes where its folder is in memory
	// By says who has chosen GoLimit: "cgroup", or "GOMEMLIMIT" for the environment;
	// "no limit" without one.
	By string `json:"by"`
	// Inflight and Waiting are the bounds in use, which are the configured ones where
	// there is room for them.
	Inflight int `json:"inflight"`
	Waiting  int `json:"waiting"`
}

// noLimit stands for who has chosen the limit where there is none.
const noLimit = "no limit"

// memoryStatus is what /status and the metrics are to tell. It is cheap.
func (a *Agent) memoryStatus() MemoryStatus {
	s := a.memory.known.Load()
	status := MemoryStatus{Cgroup: s.limit, Cache: s.cache, Snapshot: s.snapshot, GoUsed: goUsed(), By: noLimit}
	status.Inflight, status.Waiting = s.fit()
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		status.GoLimit, status.By = limit, "cgroup"
	}
	if a.memory.env != "" {
		status.By = "GOMEMLIMIT"
	}
	return status
}

// goUsed is what the Go runtime holds of the machine's memory, as it counts it towards
// its limit.
func goUsed() int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}

// memoryProblems says what is wrong with the memory.
func (a *Agent) memoryProblems() (list []Problem) {
	s := a.memory.known.Load()
	if p, bad := s.problem(); bad {
		list = append(list, p)
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if p, bad := s.crowded(int64(live[0].Value.Uint64())); bad && a.memory.env == "" {
		list = append(list, p)
	}
	return list
}

// MemoryProblem says why the container that this process runs in has too little memory
// for a configuration. It is nil if there is enough, or no limit.
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
