// SPDX-License-Identifier: Apache-2.0

package memory

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
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/config"
)

// period is how often the container's limit is read: it can change while the agent runs.
const period = 10 * time.Second

// A Keeper keeps the process within the memory limit of its container.
type Keeper struct {
	limit      func() (uint64, error) // reads the memory limit of the container, in bytes
	setGoLimit func(int64) int64      // sets the Go runtime's limit
	env        string                 // GOMEMLIMIT of the environment, which takes precedence; empty: not set
	log        *slog.Logger
	advise     func() error // disables readahead for the program's pages

	mu    sync.Mutex // serializes Update, which reads the limit, applies a new share, and stores it
	share atomic.Pointer[Share]
}

// New returns a Keeper. It divides nothing before the first [Keeper.Update].
func New(log *slog.Logger) *Keeper {
	return &Keeper{limit: containerLimit, setGoLimit: debug.SetMemoryLimit, env: os.Getenv("GOMEMLIMIT"), log: log, advise: disableReadahead}
}

// Update divides the container's memory for cfg by its current limit. It reports whether a share changed, false at the first call.
func (k *Keeper) Update(ctx context.Context, cfg *config.Config) (changed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.share.Load()
	limit, err := k.limit()
	switch {
	case errors.Is(err, memlimit.ErrNoLimit), errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
		limit, err = 0, nil
	case err != nil && old != nil:
		limit = uint64(old.limit) // the limit that was read last
	}
	next := shareOut(int64(min(limit, math.MaxInt64)), runtime.GOMAXPROCS(0), cfg)
	if err != nil {
		next.limitError = err.Error()
	}
	if old != nil && *old == next {
		return false
	}
	k.apply(ctx, cfg, old, &next)
	k.share.Store(&next) // last: a reader of share finds it applied and logged
	return old != nil
}

// apply sets the Go runtime's limit, disables readahead once there is a limit, and logs the new shares.
func (k *Keeper) apply(ctx context.Context, cfg *config.Config, old, next *Share) {
	if old == nil {
		old = &Share{}
	}
	if k.env == "" && (next.goLimit > 0 || old.goLimit > 0) {
		limit := next.goLimit
		if limit == 0 {
			limit = math.MaxInt64
		}
		k.setGoLimit(limit)
	}
	if next.limitError != "" && old.limitError == "" {
		k.log.WarnContext(ctx, "reading the container's memory limit failed", "err", next.limitError)
	}
	if next.limit == 0 {
		return
	}
	if old.limit == 0 {
		if err := k.advise(); err != nil {
			k.log.DebugContext(ctx, "disabling readahead failed", "err", err)
		}
	}
	sessions, _ := next.Sessions(&cfg.Limits)
	k.log.InfoContext(ctx, "memory divided", "limit", next.limit, "cache", next.cache, "snapshot", next.snapshot,
		"go", next.goLimit, "environment", k.env, "inflight", next.Inflight, "waiting", next.Waiting, "tcp_sessions", sessions)
	if p := next.problem(); p != nil {
		k.log.WarnContext(ctx, "too little memory", "problem", p.What, "hint", p.Hint)
	}
}

// Share returns the share that applies now. Before the first [Keeper.Update] it is zero, and nothing is divided.
func (k *Keeper) Share() *Share {
	if s := k.share.Load(); s != nil {
		return s
	}
	return new(Share)
}

// Watch reads the container's limit every period. It calls changed after a share has changed.
func (k *Keeper) Watch(ctx context.Context, cfg func() config.Config, changed func(context.Context)) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			current := cfg()
			if k.Update(ctx, &current) {
				changed(ctx)
			}
		}
	}
}

// Status returns the limits and shares for /status and the metrics. Before it, Update must have been called.
func (k *Keeper) Status() status.Memory {
	s := k.share.Load()
	status := status.Memory{
		Cgroup: s.limit, Cache: s.cache, Snapshot: s.snapshot, GoUsed: goUsed(), By: status.NoLimit, Inflight: s.Inflight, Waiting: s.Waiting,
	}
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		status.GoLimit, status.By = limit, "cgroup"
	}
	if k.env != "" {
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

// Problems reports a container limit that is too low, and a live heap that is too large for the Go runtime's limit.
func (k *Keeper) Problems() (list []status.Problem) {
	s := k.share.Load()
	if p := s.problem(); p != nil {
		list = append(list, *p)
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if p := s.heapProblem(int64(live[0].Value.Uint64())); p != nil && k.env == "" {
		list = append(list, *p)
	}
	return list
}

// Problem reports why this process's container has too little memory for cfg. It is nil if the memory
// suffices or has no limit.
func Problem(cfg *config.Config) *status.Problem {
	limit, err := containerLimit()
	if err != nil {
		return nil
	}
	s := shareOut(int64(min(limit, math.MaxInt64)), runtime.GOMAXPROCS(0), cfg)
	return s.problem()
}
