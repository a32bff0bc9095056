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

	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/panics"
)

const (
	defaultLease = 3 * time.Second
	defaultRenew = time.Second
	minLease     = time.Second // a shorter lease would lapse whenever the node is busy
)

// Config configures a Keeper.
type Config struct {
	Backend Backend     // the Keeper does not close it
	Rules   rules.Rules // its Fallback is the initial list; SetFallback replaces it

	Lease time.Duration // duration of a lease after a successful probe; 0: 3 s, at least 1 s
	// Renew is the interval between the starts of two probes of an address; a fifth of it after a
	// renewal that failed. 0: 1 s. It is at most a third of Lease.
	Renew time.Duration

	// Probe queries the agent through its own listening sockets at addr, and returns nil
	// only for the right answer. Each lease calls it from one goroutine. See [Prober].
	Probe func(ctx context.Context, addr netip.Addr) (Cause, error)

	// TestFallback tests the fallback of a lease of the rules. It never changes who answers. Nil: it is not tested. See [Tester].
	TestFallback func(ctx context.Context, r *rules.Rules, l rules.Lease) FallbackResult
	// PodsWay returns what is known of the way of pods' packets to the fallback of a lease, besides what tests show: a query of the node
	// that the fallback answers does not prove that it answers pods. It must not block. Nil: [FallbackWorks], nothing speaks against it.
	PodsWay func(l rules.Lease) FallbackResult

	// AwaitLease is the longest time that the first rules wait for the leases. It is for an agent
	// that already serves and has taken over from another one: if the kernel has no rules, or those
	// of another backend, the new rules and the leases take effect together. It has to be well
	// below the remaining time of the predecessor's lease. 0: the rules do not wait.
	AwaitLease time.Duration

	// Predecessors are owners whose rules this agent takes over, besides those found at the
	// start: one of them may still be writing when it hands over.
	Predecessors []string

	// Busy returns how long the longest-running reader of the agent has been in its current
	// batch of queries. Above a quarter of Renew the lease is not renewed, even if the probe
	// succeeded: another reader may have answered it. Nil: not checked.
	Busy func() time.Duration

	// Adapt sets the fields of the rules that the data plane of the node asks for, before each pass over the rules. It must not
	// take long. Nil: they stay as in Rules.
	Adapt func(ctx context.Context, r *rules.Rules)

	Now func() time.Time // monotonic: ages are computed from it
	Log *slog.Logger     // nil: no logs
}

func (cfg *Config) setDefaults() {
	if cfg.Lease == 0 {
		cfg.Lease = defaultLease
	}
	if cfg.Renew == 0 {
		cfg.Renew = defaultRenew
	}
	if cfg.PodsWay == nil {
		cfg.PodsWay = func(rules.Lease) FallbackResult { return FallbackResult{State: FallbackWorks} }
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
	if cfg.Lease < minLease {
		errs = append(errs, fmt.Errorf("lease %s is shorter than %s", cfg.Lease, minLease))
	}
	if cfg.Renew <= 0 || cfg.Renew > cfg.Lease/3 {
		errs = append(errs, fmt.Errorf("renewing each %s is not within 0 and a third of the lease %s", cfg.Renew, cfg.Lease))
	}
	if err := cfg.Rules.Check(); err != nil {
		errs = append(errs, fmt.Errorf("checking rules: %w", err))
	}
	return errors.Join(errs...)
}

// A Keeper keeps the rules in the kernel and renews the leases. Its methods may be
// called from several goroutines.
type Keeper struct {
	cfg     Config
	log     *slog.Logger
	leases  []*lease
	rules   *gate         // admits passes of the rules loop
	wake    chan struct{} // capacity 1: holds a value while a pass is requested
	retest  chan struct{} // capacity 1: holds a value while a test of the fallback is requested
	started chan struct{} // closed by Start
	made    time.Time     // when New was called
	// leaseOnly is set from awaitLeases until rules match the leases that this Keeper renews.
	leaseOnly atomic.Bool
	start     sync.Once
	running   atomic.Bool
	standby   atomic.Bool // no lease is renewed, see SetStandby
	// ruleChanges counts changes of the rules and of the list of the fallback.
	ruleChanges atomic.Uint64
	panics      atomic.Uint64
	seed        maphash.Seed // selects fallback endpoints if there are too many

	mu              sync.Mutex // guards stats and fallbackCleared
	stats           Stats      // without the fields that the method Stats computes
	fallbackCleared bool       // ClearFallback was called last: the fallback in the kernel is not used either

	// Only the rules loop uses the fields below.
	predecessors []string // Config.Predecessors, and owners found before the first Apply
	applied      bool     // an Apply succeeded
	writes       int      // number of Applies since writesSince that changed the rules
	writesSince  time.Time
}

// New validates cfg. It starts nothing and changes nothing in the kernel.
func New(cfg Config) (*Keeper, error) {
	cfg.setDefaults()
	seed := maphash.MakeSeed()
	known, omitted := usable(cfg.Rules.Fallback, own(&cfg.Rules), seed) // invalid endpoints come from the cluster: no error
	cfg.Rules.Fallback = known
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.Rules.Addresses = slices.Clone(cfg.Rules.Addresses)
	cfg.Rules.Services = slices.Clone(cfg.Rules.Services)
	cfg.Rules.Servers = slices.Clone(cfg.Rules.Servers)
	k := &Keeper{
		cfg: cfg, log: cfg.Log,
		rules:        newGate(),
		wake:         make(chan struct{}, 1),
		retest:       make(chan struct{}, 1),
		started:      make(chan struct{}),
		predecessors: slices.Clone(cfg.Predecessors),
		made:         cfg.Now(),
		seed:         seed,
	}
	k.stats.Backend = cfg.Backend.String()
	if cfg.Rules.FallsBack() {
		k.stats.Fallback, k.stats.FallbackOmitted = known, omitted
	}
	for _, l := range cfg.Rules.Leases() {
		k.leases = append(k.leases, newLease(l, k.made))
	}
	return k, nil
}

// String names the task.
func (k *Keeper) String() string { return "interception" }

// Run keeps the rules and the leases until ctx ends, and then leaves both in place. It
// waits for what it started. A second call returns an error.
func (k *Keeper) Run(ctx context.Context) error {
	if !k.running.CompareAndSwap(false, true) {
		return errors.New("a keeper runs once")
	}
	var group sync.WaitGroup
	rulesCtx := k.rules.context(ctx, &group)
	group.Go(func() { k.watch(rulesCtx) })
	group.Go(func() { k.reconcile(rulesCtx) })
	group.Go(func() { k.testLoop(rulesCtx) })
	for _, l := range k.leases {
		leaseCtx := l.gate.context(ctx, &group)
		group.Go(func() { k.renewLoop(leaseCtx, l) })
	}
	group.Wait()
	<-ctx.Done() // a Keeper that stood down is still a task of the agent
	return nil
}

// Start tells the Keeper that the agent serves, so that it may acquire the leases.
func (k *Keeper) Start() { k.start.Do(func() { close(k.started) }) }

// SetStandby releases the leases, as Release does, until it is called with false. The rules stay, so that the fallback answers.
// If the kernel refuses, the leases end by themselves. One goroutine at a time may call it.
func (k *Keeper) SetStandby(ctx context.Context, on bool, drain time.Duration) error {
	if k.standby.Swap(on) == on {
		return nil
	}
	if !on {
		for _, l := range k.leases {
			l.requestRenewal()
		}
		return nil
	}
	keys := make([]netip.Addr, len(k.leases))
	for i, l := range k.leases {
		if l.gate.enter() { // a running renewal is over now, and the next one finds standby set
			l.lapse(k.cfg.Now())
			l.gate.leave()
		}
		keys[i] = l.Key
	}
	if k.Stats().StoodDown {
		return nil
	}
	return k.releaseKeys(ctx, keys, drain)
}

// Release ends the leases at once and permanently: after it has returned nil, this Keeper
// renews none, not even by a call that was running. Packets of open TCP sessions reach the
// agent for the time drain. The rules stay, and the Keeper still maintains them. Release
// does not need Run and does not wait for an Apply. After standing down it does nothing.
func (k *Keeper) Release(ctx context.Context, drain time.Duration) error {
	keys := make([]netip.Addr, len(k.leases))
	again := false // release twice: a running renewal may reach the kernel after the first release
	for i, l := range k.leases {
		l.release(k.cfg.Now())
		again = again || l.gate.busy()
		keys[i] = l.Key
	}
	if k.Stats().StoodDown {
		return nil
	}
	first := k.releaseKeys(ctx, keys, drain)
	for _, l := range k.leases {
		if err := l.gate.wait(ctx); err != nil {
			return fmt.Errorf("waiting for a running renewal of %s: %w", l.Key, err)
		}
	}
	if again {
		return k.releaseKeys(ctx, keys, drain)
	}
	return first
}

func (k *Keeper) releaseKeys(ctx context.Context, keys []netip.Addr, drain time.Duration) error {
	err := k.guard(ctx, "releasing the leases", func() error { return k.cfg.Backend.Release(ctx, keys, drain) })
	if err != nil {
		return fmt.Errorf("releasing the leases: %w", err)
	}
	return nil
}

// Remove permanently removes the rules and leases, after waiting for a running Apply. If
// they belong to another agent by now, it leaves them and returns an error that wraps
// [rules.ErrOwned].
func (k *Keeper) Remove(ctx context.Context) error {
	k.rules.close()
	for _, l := range k.leases {
		l.release(k.cfg.Now())
	}
	if err := k.rules.wait(ctx); err != nil {
		return fmt.Errorf("waiting for a running pass over the rules: %w", err)
	}
	for _, l := range k.leases {
		if err := l.gate.wait(ctx); err != nil {
			return fmt.Errorf("waiting for a running renewal of %s: %w", l.Key, err)
		}
	}
	err := k.guard(ctx, "removing the rules", func() error { return k.cfg.Backend.Remove(ctx, k.cfg.Rules.Owner) })
	if err != nil {
		return fmt.Errorf("removing the rules: %w", err)
	}
	return nil
}

// A gate admits one goroutine at a time, until it is closed permanently. It ensures that
// nothing is renewed after a release. A context cannot do that: it may end right after a
// goroutine has checked it.
type gate struct {
	once   sync.Once
	closed chan struct{}
	inside chan struct{} // capacity 1: holds a value while a goroutine is inside
}

func newGate() *gate {
	return &gate{closed: make(chan struct{}), inside: make(chan struct{}, 1)}
}

// enter waits until the gate is free and reports whether it is open. If so, leave must follow.
func (g *gate) enter() bool {
	select {
	case g.inside <- struct{}{}:
	case <-g.closed:
		return false
	}
	if g.isClosed() { // both channels were ready
		g.leave()
		return false
	}
	return true
}

func (g *gate) leave() { <-g.inside }

// close closes the gate permanently. A goroutine inside may still be there.
func (g *gate) close() { g.once.Do(func() { close(g.closed) }) }

func (g *gate) isClosed() bool {
	select {
	case <-g.closed:
		return true
	default:
		return false
	}
}

// busy reports whether a goroutine is still inside the closed gate.
func (g *gate) busy() bool { return len(g.inside) > 0 }

// wait waits until no goroutine is inside the closed gate.
func (g *gate) wait(ctx context.Context) error {
	select {
	case g.inside <- struct{}{}:
		g.leave()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// context returns a context that ends with ctx or when the gate is closed. The group
// waits for the goroutine behind it.
func (g *gate) context(ctx context.Context, group *sync.WaitGroup) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	group.Go(func() {
		defer cancel()
		select {
		case <-g.closed:
		case <-ctx.Done():
		}
	})
	return ctx
}

// recordPass counts a failed pass over the rules. It logs the error unless the previous
// pass failed with the same one.
func (k *Keeper) recordPass(ctx context.Context, err error) {
	problem, was := "", ""
	if err != nil {
		problem = err.Error()
	}
	k.update(func(s *Stats) {
		was, s.LastError = s.LastError, problem
		if err != nil {
			s.ApplyFailures++
		}
	})
	switch {
	case was == problem:
	case err != nil:
		k.log.WarnContext(ctx, "interception rules not in place", "backend", k.cfg.Backend.String(), "err", err)
	default:
		k.log.InfoContext(ctx, "interception rules in place again", "backend", k.cfg.Backend.String())
	}
}

// guard calls fn and turns a panic into an error. The agent can answer without rules; if it
// crashed, it could not.
func (k *Keeper) guard(ctx context.Context, what string, fn func() error) error {
	return panics.Guard{Where: what, Log: k.log, Count: &k.panics}.Do(ctx, fn)
}

// A Cause says why a lease was not renewed.
type Cause uint8

// The causes, a closed set.
const (
	ProbeFailed Cause = iota // the probe failed with an error that no other cause describes
	Silent                   // the agent did not answer in time
	Refused                  // no process listens at the address
	Wrong                    // the answer came from another process, or to another query
	Unsent                   // the probe could not be sent: no address or route, no permission to mark it, or too many open files
	Wedged                   // the probe succeeded, but a reader of the agent was busy for more than a quarter of Renew
	StaleProbe               // the probe succeeded, but took more than half of Lease
	RenewFailed              // the backend failed to renew
	NumCauses   = int(iota)
)

// String returns the cause in lower case, as in metrics.
func (c Cause) String() string {
	names := [NumCauses]string{"no-proof", "silent", "refused", "wrong", "unsent", "wedged", "late", "kernel"}
	if int(c) >= len(names) {
		return "unknown"
	}
	return names[c]
}

// Stats is the state of a Keeper, and its counters since it was made.
type Stats struct {
	Backend string // name of the backend

	Leases     []LeaseStats  // sorted by address
	NotHeldFor time.Duration // longest time that a lease has not been held, at most since New; 0: all are held

	Renewals        uint64            // successful renewals; 0 while no rules use the leases yet
	RenewalFailures [NumCauses]uint64 // failed renewals, by Cause

	Applies       uint64 // passes whose Apply succeeded
	Changes       uint64 // passes whose Apply changed the rules
	ApplyFailures uint64 // passes that failed
	WatchFailures uint64 // times that the watch of the rules ended by itself
	LastError     string // error of the last pass; empty: it succeeded, or there was none

	Fallback        []netip.AddrPort // endpoints in the rules, or in the next ones; nil in transparent mode
	FallbackOmitted int              // endpoints that are not used: too many, or invalid

	Panics    uint64 // recovered panics; each is logged with its stack
	Released  bool   // the leases are released permanently
	Standby   bool   // the leases are released until SetStandby is called again
	StoodDown bool   // a newer agent has the rules, see NewOwner
	NewOwner  string // empty unless StoodDown

	// NoneHeldFor is the time since any lease was held, or since New; 0: at least one is held.
	NoneHeldFor time.Duration
}

// LeaseStats is the state of the lease on one address, as /status shows it.
type LeaseStats struct {
	Address netip.Addr `json:"address"`
	Held    bool       `json:"held"`              // false while no rules use it yet
	Problem string     `json:"problem,omitempty"` // why the last renewal failed; empty: it succeeded, or there was none
	// Fallback says whether queries would be answered without the lease. The result is some five minutes old at most.
	Fallback    FallbackState `json:"fallback"`
	FallbackWhy string        `json:"fallbackWhy,omitempty"` // why it does not work, or is not verified: a clause
}

func (k *Keeper) update(change func(*Stats)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.stats)
}

// Stats returns the state and the counters. The caller may keep it.
func (k *Keeper) Stats() Stats {
	k.mu.Lock()
	s := k.stats
	k.mu.Unlock()
	s.Fallback = slices.Clone(s.Fallback)
	s.Panics, s.Released, s.Standby = k.panics.Load(), true, k.standby.Load()
	s.Leases = make([]LeaseStats, 0, len(k.leases))
	now := k.cfg.Now()
	ahead := k.leaseOnly.Load()
	if ahead {
		s.Renewals = 0
	}
	for i, l := range k.leases {
		held, since, problem := l.read(now)
		if held && ahead {
			held, since = false, max(now.Sub(k.made), 1)
		}
		fallback := k.fallbackResult(l)
		if s.StoodDown {
			fallback = FallbackResult{FallbackUnverified, "a newer agent has the rules"}
		}
		s.Leases = append(s.Leases, LeaseStats{Address: l.Key, Held: held, Problem: problem, Fallback: fallback.State, FallbackWhy: fallback.Why})
		s.NotHeldFor = max(s.NotHeldFor, since)
		if i == 0 || since < s.NoneHeldFor {
			s.NoneHeldFor = since
		}
		s.Released = s.Released && l.gate.isClosed()
	}
	slices.SortFunc(s.Leases, func(a, b LeaseStats) int { return a.Address.Compare(b.Address) })
	return s
}
