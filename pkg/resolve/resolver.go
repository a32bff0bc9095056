// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Config configures a Resolver.
type Config struct {
	Plan *Plan
	Now  func() time.Time // the clock of in-flight queries
	Rand io.Reader        // source of the cookie secret
	Log  *slog.Logger     // nil: silent
}

// A Resolver answers queries according to its plan. It is safe for concurrent use.
type Resolver struct {
	plan       atomic.Pointer[Plan]
	now        func() time.Time
	epoch      time.Time // when it was made
	log        *slog.Logger
	cookies    cookieSecret
	queries    queryTable
	cuts       cutFilter
	transfers  atomic.Int32 // running transfers
	pending    sync.WaitGroup
	workerPool sync.Pool // of *Worker, for DNS64 retries
	counts     counters
}

// New returns a resolver.
func New(cfg Config) (*Resolver, error) {
	if cfg.Plan == nil || cfg.Now == nil || cfg.Rand == nil {
		return nil, errors.New("resolver: Plan, Now and Rand are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	r := &Resolver{now: cfg.Now, epoch: cfg.Now(), log: cfg.Log}
	if err := r.cookies.init(cfg.Rand); err != nil {
		return nil, err
	}
	r.queries.init()
	r.cuts.init()
	r.Swap(cfg.Plan)
	return r, nil
}

// sinceStart converts a time to the duration since the resolver was made, which takes a third of the
// space.
func (r *Resolver) sinceStart(now time.Time) time.Duration { return now.Sub(r.epoch) }

// Swap replaces the plan for new queries. In-flight queries finish with their own plan. The resolver
// owns plan from here on.
func (r *Resolver) Swap(plan *Plan) {
	plan.compile()
	r.plan.Store(plan)
}

// Run waits for ctx to end and then for pending work: in-flight queries, which end by their deadline,
// and transfers, which end with their client's session.
func (r *Resolver) Run(ctx context.Context) error {
	<-ctx.Done()
	r.pending.Wait()
	return nil
}
