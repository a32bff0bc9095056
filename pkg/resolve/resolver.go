// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"context"
	"errors"
	"hash/maphash"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/panics"
)

// Config configures a Resolver.
type Config struct {
	Plan *Plan
	Now  func() time.Time // the clock for all but the arrival of queries
	Rand io.Reader        // source of the cookie secret
	Log  *slog.Logger     // nil: silent
}

// A Resolver answers queries according to its plan. It is safe for concurrent use.
type Resolver struct {
	plan       atomic.Pointer[Plan]
	now        func() time.Time
	epoch      time.Time // when the resolver was made; times are kept as durations since then, in 8 bytes instead of 24
	log        *slog.Logger
	cookies    cookieSecret
	queries    queryTable
	cuts       cutFilter
	transfers  atomic.Int32   // running transfers
	pending    sync.WaitGroup // in-flight queries and transfers
	workerPool sync.Pool      // *Worker elements for DNS64 retries and walks
	counts     counters
	failures   failures
	recent     recent
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
	r.cuts.seed = maphash.MakeSeed()
	r.recent.init()
	r.Swap(cfg.Plan)
	return r, nil
}

// Zones returns the zones of the plan.
func (r *Resolver) Zones() zone.Zones { return r.plan.Load().Zones }

// Swap replaces the plan for new queries. In-flight queries finish with their own plan. The resolver
// owns plan from here on.
func (r *Resolver) Swap(plan *Plan) {
	plan.compile()
	plan.outside = plan.compileOutside()
	r.plan.Store(plan)
}

// compile sets the unexported fields from the exported ones.
func (p *Plan) compile() {
	if p.self = nil; p.Self != "" {
		text := p.Self[:min(len(p.Self), 255)]
		p.self = append([]byte{byte(len(text))}, text...)
	}
	p.hasExtras = p.Rewrites != nil || p.LocalData != nil || p.DNS64 != nil || p.SkyDNS != nil
	p.routes = make(map[string]*Route, len(p.Routes))
	for i := range p.Routes {
		r := &p.Routes[i]
		p.routes[string(r.Suffix)] = r
		p.anySubnet = p.anySubnet || r.Subnet
		p.longest = max(p.longest, len(r.Suffix))
	}
}

// compileOutside returns the plan of the outside view. It takes over what is listed here, so that a new feature of p is none of that view.
func (p *Plan) compileOutside() *Plan {
	o := &Plan{
		Cache:  p.Cache,
		Routes: p.Outside,

		UDPSize:   p.UDPSize,
		Deadline:  p.Deadline,
		Inflight:  p.Inflight,
		Waiting:   p.Waiting,
		PerClient: p.PerClient,

		FailureTTL: p.FailureTTL,
		StaleAfter: p.StaleAfter,
		Cut:        p.Cut,
		Keepalive:  p.Keepalive,

		Self:  p.Self, // for the agent's self-queries, which decide whether it gets these queries at all
		Local: p.Local,
		Loop:  p.Loop,

		QueryLog: p.QueryLog,
		Watchers: p.Watchers,
		Tap:      p.Tap,
		Pods:     p.Pods,
	}
	o.compile()
	o.outside = o
	return o
}

// Run waits for ctx to end and then for pending work: in-flight queries, which end by their deadline,
// and transfers, which end with their client's session.
func (r *Resolver) Run(ctx context.Context) error {
	<-ctx.Done()
	r.pending.Wait()
	return nil
}

// Stats returns the counters. It is safe for concurrent use.
func (r *Resolver) Stats() Stats {
	s, t := r.counts.stats(), &r.queries
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Inflight, s.Waiting, s.Clients = t.count, t.waiting, len(t.clients)
	return s
}

// panicked counts and logs a recovered panic.
func (r *Resolver) panicked(where string, defect any) {
	r.counts.add(countPanics)
	panics.Log(context.Background(), r.log, where, defect)
}
