// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/rules"
)

const (
	defaultLease  = 3 * time.Second
	defaultRenew  = 500 * time.Millisecond
	leaseShortest = time.Second // less would lapse whenever the node is busy
)

// Config says what a Keeper keeps, and by what means.
type Config struct {
	Backend Backend     // not closed by the Keeper
	Rules   rules.Rules // Fallback is what is known at the start; SetFallback replaces it

	Lease time.Duration // how long the kernel gives the agent after a proof; 0: 3 s, at least 1 s
	// Renew is the time between the beginnings of two probes of an address, and less than
	// that after one that only a reader at work for too long made useless. 0: 0.5 s, at
	// most a third of Lease.
	Renew time.Duration

	// Probe asks the agent through its own listening sockets at addr, and returns nil
	// only for the right answer. It is called from one goroutine for each lease.
	Probe func(ctx context.Context, addr netip.Addr) error

	// Await is for an agent that is asked already, and has taken over from another one: how
	// long the first rules wait for the leases, so that both are there with the same packet,
	// where there were no rules or those of another backend. It is to be well below what is
	// left of the other one's lease. 0: they do not wait.
	Await time.Duration

	// Former are owners whose rules are this one's from now on, besides those found at the
	// start: one of them may have been writing when it was told to leave that to this agent.
	Former []string

	// Busy is the longest time that a reader of the agent's has been at one batch of
	// queries by now. Above half of Renew the lease is not renewed, whatever a probe
	// said: other readers may have answered it. Nil: not asked.
	Busy func() time.Duration

	Now func() time.Time // monotonic: an age is told by it
	Log *slog.Logger     // nil: nothing is logged
}

func (cfg *Config) fill() {
	if cfg.Lease == 0 {
		cfg.Lease = defaultLease
	}
	if cfg.Renew == 0 {
		cfg.Renew = defaultRenew
	}
	if cfg.Busy == nil {
		cfg.Busy = func() time.Duration { return 0 }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
}

func (cfg *Config) check() error {
	var errs []error
	if cfg.Backend == nil || cfg.Probe == nil || cfg.Now == nil {
		errs = append(errs, errors.New("a keeper needs a backend, a probe and a clock"))
	}
	if cfg.Lease < leaseShortest {
		errs = append(errs, fmt.Errorf("lease %s is shorter than %s", cfg.Lease, leaseShortest))
	}
	if cfg.Renew <= 0 || cfg.Renew > cfg.Lease/3 {
		errs = append(errs, fmt.Errorf("renewing each %s is not within 0 and a third of the lease %s", cfg.Renew, cfg.Lease))
	}
	if err := cfg.Rules.Check(); err != nil {
		errs = append(errs, fmt.Errorf("checking rules: %w", err))
	}
	return errors.Join(errs...)
}

// A Keeper keeps the rules in the kernel and the leases on them. Its methods may be
// called from several goroutines.
type Keeper struct {
	cfg      Config
	log      *slog.Logger
	leases   []*lease
	rules    *gate         // passes of the rules loop
	look     chan struct{} // of one place: the rules are to be looked at
	started  chan struct{} // closed by Start
	made     time.Time
	ahead    atomic.Bool // leases are held, or about to be, that no rules look at yet
	start    sync.Once
	running  atomic.Bool
	count    counters
	former   []string // Config.Former, and owners found before the first Apply went well; the rules loop's own
	owned    bool     // an Apply went well; the rules loop's own
	fallback fallback
	note     note

	written     int       // times that rules were, since writtenFrom; the rules loop's own
	writtenFrom time.Time // and so is this
}

// New checks cfg. It starts nothing and touches no kernel.
func New(cfg Config) (*Keeper, error) {
	cfg.fill()
	seed := maphash.MakeSeed()
	known, omitted := clean(cfg.Rules.Fallback, cfg.Rules.Addresses, seed) // may come from the cluster: no reason to fail
	cfg.Rules.Fallback = known
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.Rules.Addresses = slices.Clone(cfg.Rules.Addresses)
	cfg.Rules.Services = slices.Clone(cfg.Rules.Services)
	k := &Keeper{
		cfg: cfg, log: cfg.Log,
		rules:   newGate(),
		look:    make(chan struct{}, 1),
		started: make(chan struct{}),
		former:  slices.Clone(cfg.Former),
		made:    cfg.Now(),
	}
	k.fallback.seed = seed
	if cfg.Rules.Mode == rules.LinkLocal {
		k.fallback.list, k.fallback.omitted = known, omitted
	}
	for _, l := range cfg.Rules.Leases() {
		k.leases = append(k.leases, newLease(l, k.made))
	}
	return k, nil
}

// String names the task.
func (k *Keeper) String() string { return "interception" }

// Run keeps the rules and the leases until ctx ends, and then leaves both as they
// are. It joins what it started. It can run once; a second call returns an error.
func (k *Keeper) Run(ctx context.Context) error {
	if !k.running.CompareAndSwap(false, true) {
		return errors.New("a keeper runs once")
	}
	var group sync.WaitGroup
	rulesCtx := k.rules.bound(ctx, &group)
	group.Go(func() { k.watch(rulesCtx) })
	group.Go(func() { k.reconcile(rulesCtx) })
	for _, l := range k.leases {
		leaseCtx := l.gate.bound(ctx, &group)
		group.Go(func() { k.keep(leaseCtx, l) })
	}
	group.Wait()
	<-ctx.Done() // a keeper that stood down is still a task of the agent's
	return nil
}

// Start says that the agent serves: from now on its leases may be taken.
func (k *Keeper) Start() { k.start.Do(func() { close(k.started) }) }

// Release ends the leases at once and for good: when it has returned nil, this Keeper
// renews none any more, whatever was under way. Packets of TCP sessions reach the
// agent for the time drain. Rules are kept as they are and still followed. It neither
// needs Run nor waits for an Apply. A Keeper that stood down has nothing to release.
func (k *Keeper) Release(ctx context.Context, drain time.Duration) error {
	keys := make([]netip.Addr, len(k.leases))
	again := false // a renewal is in the kernel while its lease ends, and may come last
	for i, l := range k.leases {
		l.end(k.cfg.Now())
		again = again || l.gate.occupied()
		keys[i] = l.Key
	}
	if k.note.stoodDown() {
		return nil
	}
	first := k.release(ctx, keys, drain)
	for _, l := range k.leases {
		if err := l.gate.empty(ctx); err != nil {
			return fmt.Errorf("waiting for a renewal of %s that is under way: %w", l.Key, err)
		}
	}
	if again {
		return k.release(ctx, keys, drain)
	}
	return first
}

func (k *Keeper) release(ctx context.Context, keys []netip.Addr, drain time.Duration) error {
	err := k.guard(ctx, "releasing the leases", func() error { return k.cfg.Backend.Release(ctx, keys, drain) })
	if err != nil {
		return fmt.Errorf("releasing the leases: %w", err)
	}
	return nil
}

// Remove takes the rules and leases away, for good, once an Apply that is under way
// has ended. If they belong to another agent by now it leaves them and returns an
// error that is [rules.ErrOwned].
func (k *Keeper) Remove(ctx context.Context) error {
	k.rules.close()
	for _, l := range k.leases {
		l.end(k.cfg.Now())
	}
	if err := k.rules.empty(ctx); err != nil {
		return fmt.Errorf("waiting for the rules that are being written: %w", err)
	}
	for _, l := range k.leases {
		if err := l.gate.empty(ctx); err != nil {
			return fmt.Errorf("waiting for a renewal of %s that is under way: %w", l.Key, err)
		}
	}
	err := k.guard(ctx, "removing the rules", func() error { return k.cfg.Backend.Remove(ctx, k.cfg.Rules.Owner) })
	if err != nil {
		return fmt.Errorf("removing the rules: %w", err)
	}
	return nil
}
