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

// Config is what a resolver is made from.
type Config struct {
	Plan *Plan
	Now  func() time.Time // the clock of flights
	Rand io.Reader        // the secret of cookies comes from it
	Log  *slog.Logger     // nil: silent
}

// A Resolver answers queries by its plan. It is safe for use by many goroutines.
type Resolver struct {
	plan       atomic.Pointer[Plan]
	now        func() time.Time
	epoch      time.Time // when it was made
	log        *slog.Logger
	cookies    cookieSecret
	queries    queryTable
	cuts       cutFilter
	transfers  atomic.Int32 // under way
	pending    sync.WaitGroup
	workerPool sync.Pool // of *Worker, see comeBack
	counts     counters
}

// New makes a resolver.
func New(cfg Config) (*Resolver, error) {
	if cfg.Plan == nil || cfg.Now == nil || cfg.Rand == nil {
		return nil, errors.New("a resolver needs a plan, a clock and randomness")
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

// age is a moment as the time since the resolver was made: a third of the room.
func (r *Resolver) sinceStart(now time.Time) time.Duration { return now.Sub(r.epoch) }

// Swap makes plan the one that queries see from now on. Flights under way end
// by the plan they began with. The resolver owns plan from here.
func (r *Resolver) Swap(plan *Plan) {
	plan.compile()
	r.plan.Store(plan)
}

// Run waits for ctx to end and then for what is under way: flights, each of which
// ends with its deadline at the latest, and transfers, which end with their
// client's session.
func (r *Resolver) Run(ctx context.Context) error {
	<-ctx.Done()
	r.pending.Wait()
	return nil
}
