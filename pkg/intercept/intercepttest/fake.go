// SPDX-License-Identifier: Apache-2.0

package intercepttest

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// A Fake models a node's kernel for tests. It holds rules, and leases that end by the
// injected clock, and decides where a packet goes. Agents write to it through the
// backends that [Fake.Open] returns. Its other exported methods inject faults. It may be
// used from several goroutines.
type Fake struct {
	now func() time.Time

	mu              sync.Mutex // guards the fields below
	rules           *rules.Rules
	leases          map[netip.Addr]time.Time // the end of each lease; nil: there are no sets
	drains          map[netip.Addr]time.Time // the end of each drain
	fallbackPackets int                      // packets sent to a fallback so far
	watchers        map[int]func()
	nextWatcher     int
	calls           Calls
	failures        map[Call]failure
	blocks          map[Call]chan struct{}
}

// A Call is a method of a backend.
type Call string

// The calls that can be made to fail or hang.
const (
	CallPrepare Call = "prepare"
	CallApply   Call = "apply"
	CallRenew   Call = "renew"
	CallRelease Call = "release"
	CallRemove  Call = "remove"
	CallState   Call = "state"
	CallWatch   Call = "watch"
)

// Calls counts the calls of a Fake's backends.
type Calls struct {
	Started map[Call]int // calls by method, of all backends
	Changed int          // calls of Apply that changed anything
}

type failure struct {
	left  int
	err   error
	panic bool
}

// NewFake returns a fake without rules.
func NewFake(now func() time.Time) *Fake {
	return &Fake{
		now:      now,
		watchers: map[int]func(){},
		calls:    Calls{Started: map[Call]int{}},
		failures: map[Call]failure{},
		blocks:   map[Call]chan struct{}{},
	}
}

// Open returns the backend of one more agent.
func (f *Fake) Open() intercept.Backend { return &fakeBackend{kernel: f} }

// Calls returns how many calls there were so far.
func (f *Fake) Calls() Calls {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.calls
	c.Started = maps.Clone(c.Started)
	return c
}

// Rules returns the current rules, or nil.
func (f *Fake) Rules() *rules.Rules {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rules == nil {
		return nil
	}
	r := *f.rules
	return &r
}

// Fail makes the next n calls return err and do nothing.
func (f *Fake) Fail(call Call, n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures[call] = failure{left: n, err: err}
}

// Panic makes the next n calls panic.
func (f *Fake) Panic(call Call, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures[call] = failure{left: n, panic: true}
}

// Block makes calls hang in the kernel, regardless of their contexts, until the returned
// function is called. Then they continue.
func (f *Fake) Block(call Call) (unblock func()) {
	gate := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blocks[call] = gate
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.blocks[call] == gate {
			delete(f.blocks, call)
		}
		close(gate)
	}
}

// Flush removes all rules and leases, as another program may.
func (f *Fake) Flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules, f.leases, f.drains = nil, nil, nil
	f.notifyLocked()
}

// Overwrite writes rules as another agent would.
func (f *Fake) Overwrite(r rules.Rules) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applyLocked(r)
}

// Notify calls every watcher although nothing happened.
func (f *Fake) Notify() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notifyLocked()
}

// begin counts a call, and makes it hang, fail or panic as Block, Fail and Panic have set.
func (f *Fake) begin(call Call) error {
	f.mu.Lock()
	f.calls.Started[call]++
	block := f.blocks[call]
	f.mu.Unlock()
	if block != nil {
		<-block
	}
	f.mu.Lock()
	fault := f.failures[call]
	if fault.left > 0 {
		fault.left--
		f.failures[call] = fault
	} else {
		fault = failure{}
	}
	f.mu.Unlock()
	if fault.panic {
		panic("the fake's " + string(call))
	}
	return fault.err
}

// prepareLocked reports whether it created the sets for leases.
func (f *Fake) prepareLocked() (changed bool) {
	if f.leases != nil {
		return false
	}
	f.leases, f.drains = map[netip.Addr]time.Time{}, map[netip.Addr]time.Time{}
	return true
}

func (f *Fake) applyLocked(r rules.Rules) (changed bool) {
	changed = f.prepareLocked()
	if f.rules == nil || !equal(f.rules, &r) {
		changed = true
	}
	r.Addresses, r.Services, r.Servers, r.Fallback = slices.Clone(r.Addresses), slices.Clone(r.Services), slices.Clone(r.Servers), slices.Clone(r.Fallback)
	f.rules = &r
	if changed {
		f.calls.Changed++
		f.notifyLocked()
	}
	return changed
}

func equal(a, b *rules.Rules) bool {
	return a.Owner == b.Owner && a.Mode == b.Mode && a.Port == b.Port && a.Admin == b.Admin && a.Excluded == b.Excluded &&
		a.Track == b.Track && a.MarkHost == b.MarkHost &&
		slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.Services, b.Services) && slices.Equal(a.Servers, b.Servers) && slices.Equal(a.Fallback, b.Fallback)
}

func (f *Fake) notifyLocked() {
	for _, changed := range f.watchers {
		changed()
	}
}

func (f *Fake) liveLocked(ends map[netip.Addr]time.Time, key netip.Addr) bool {
	return f.now().Before(ends[key])
}

// A fakeBackend is the backend of one agent.
type fakeBackend struct {
	kernel   *Fake
	prepared atomic.Bool
	closed   atomic.Bool
	owner    string // owner of the rules that this backend applied last; empty: none; guarded by the kernel's mu
}

var (
	errNotPrepared = errors.New("no set of leases: apply or prepare rules first")
	errClosed      = errors.New("the backend is closed")
)

// String implements [intercept.Backend].
func (b *fakeBackend) String() string { return "fake" }

// begin fails if ctx has ended. A call that has begun does not check ctx again.
func (b *fakeBackend) begin(ctx context.Context, call Call) error {
	if b.closed.Load() {
		return errClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return b.kernel.begin(call)
}

// Apply implements [intercept.Backend].
func (b *fakeBackend) Apply(ctx context.Context, r rules.Rules) (bool, error) {
	if err := b.begin(ctx, CallApply); err != nil {
		return false, err
	}
	if err := r.Check(); err != nil {
		return false, err
	}
	b.kernel.mu.Lock()
	defer b.kernel.mu.Unlock()
	b.prepared.Store(true)
	b.owner = r.Owner
	return b.kernel.applyLocked(r), nil
}

// Prepare implements [intercept.Backend].
func (b *fakeBackend) Prepare(ctx context.Context, r rules.Rules) error {
	if err := b.begin(ctx, CallPrepare); err != nil {
		return err
	}
	if err := r.Check(); err != nil {
		return err
	}
	b.kernel.mu.Lock()
	defer b.kernel.mu.Unlock()
	b.prepared.Store(true)
	b.kernel.prepareLocked()
	return nil
}

// Renew implements [intercept.Backend].
func (b *fakeBackend) Renew(ctx context.Context, keys []netip.Addr, d time.Duration) error {
	if err := b.begin(ctx, CallRenew); err != nil {
		return err
	}
	f := b.kernel
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leases == nil || !b.prepared.Load() {
		return errNotPrepared
	}
	for _, key := range keys {
		f.leases[key] = f.now().Add(d)
		delete(f.drains, key)
	}
	return nil
}

// Release implements [intercept.Backend].
func (b *fakeBackend) Release(ctx context.Context, keys []netip.Addr, drain time.Duration) error {
	if err := b.begin(ctx, CallRelease); err != nil {
		return err
	}
	f := b.kernel
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leases == nil || b.owner != "" && f.rules != nil && f.rules.Owner != b.owner {
		return nil // no lease is held, or a newer agent holds it
	}
	for _, key := range keys {
		delete(f.leases, key)
		f.drains[key] = f.now().Add(drain)
	}
	return nil
}

// Watch implements [intercept.Backend].
func (b *fakeBackend) Watch(ctx context.Context, changed func()) error {
	if err := b.begin(ctx, CallWatch); err != nil {
		return err
	}
	f := b.kernel
	f.mu.Lock()
	id := f.nextWatcher
	f.nextWatcher++
	f.watchers[id] = changed
	f.mu.Unlock()
	changed()
	<-ctx.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.watchers, id)
	return nil
}

// Remove implements [intercept.Backend].
func (b *fakeBackend) Remove(ctx context.Context, owner string) error {
	if err := b.begin(ctx, CallRemove); err != nil {
		return err
	}
	f := b.kernel
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rules == nil {
		f.leases, f.drains = nil, nil // from Prepare
		return nil
	}
	if owner != "" && owner != f.rules.Owner {
		return rules.ErrOwned
	}
	f.rules, f.leases, f.drains = nil, nil, nil
	f.notifyLocked()
	return nil
}

// State implements [intercept.Backend].
func (b *fakeBackend) State(ctx context.Context) (rules.State, error) {
	if err := b.begin(ctx, CallState); err != nil {
		return rules.State{}, err
	}
	f := b.kernel
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rules == nil {
		return rules.State{}, nil
	}
	s := rules.State{
		Present: true, Owner: f.rules.Owner,
		Leases:      map[netip.Addr]time.Duration{},
		Fallback:    slices.Clone(f.rules.Fallback),
		Count:       len(f.rules.Leases()),
		LeasesInUse: true,
	}
	for key, until := range f.leases {
		if left := until.Sub(f.now()); left > 0 {
			s.Leases[key] = left
		}
	}
	return s, nil
}

// Close implements [intercept.Backend].
func (b *fakeBackend) Close() error {
	b.closed.Store(true)
	return nil
}

// A Packet is a packet of a client.
type Packet struct {
	Network     string // "udp" or "tcp"
	To          netip.AddrPort
	Marked      bool // it has [rules.Mark]: the agent sent it
	Test        bool // it has [rules.TestMark]
	Arrives     bool // a pod sent it, not a process of the node; it matters only with Test
	Established bool // it is not the first packet of its TCP session
	Tracked     bool // conntrack has seen the first packet of its session
}

// A Decision is what the rules do with a packet.
type Decision uint8

// The decisions.
const (
	Direct      Decision = iota // no rule redirects the packet
	ToAgent                     // to the agent's address
	ToFallback                  // to one of the fallbacks
	SameAsFirst                 // to the destination of the first packet of its session
	Rejected                    // its session is reset
)

// A Route is the destination of a packet.
type Route struct {
	Decision Decision
	To       netip.AddrPort // not set for SameAsFirst and Rejected
	Tracked  bool           // conntrack tracks the packet
}

// Route returns where the node's rules send a packet now. They treat packets of pods and
// of the node's own processes alike.
func (f *Fake) Route(p Packet) Route {
	f.mu.Lock()
	defer f.mu.Unlock()
	direct := Route{Decision: Direct, To: p.To, Tracked: true}
	r := f.rules
	if r == nil {
		return direct
	}
	own := slices.Contains(r.Addresses, p.To.Addr())
	redirected := slices.ContainsFunc(r.Redirects(), func(d rules.Redirect) bool { return d.From == p.To.Addr() })
	switch {
	case own && r.Admin != 0 && p.To.Port() == r.Admin && p.Network == "tcp":
		return Route{Decision: Direct, To: p.To}
	case p.To.Port() != r.Port || !own && !redirected:
		return direct
	case p.Marked:
		return Route{Decision: Direct, To: p.To, Tracked: !own}
	}
	key := p.To.Addr()
	draining := p.Network == "tcp" && p.Established && !p.Tracked && f.liveLocked(f.drains, key)
	fallsBack := slices.Contains(r.FallbackKeys(), key)
	test := p.Test && !p.Arrives && fallsBack
	if held := f.liveLocked(f.leases, key); (held || draining) && !test {
		return Route{Decision: ToAgent, To: netip.AddrPortFrom(r.Listener(key), r.Port)}
	}
	if p.Established && p.Tracked {
		return Route{Decision: SameAsFirst, Tracked: true}
	}
	if !fallsBack {
		return direct
	}
	return f.fallBackLocked(p, direct)
}

func (f *Fake) fallBackLocked(p Packet, direct Route) Route {
	of := f.rules.Family(p.To.Addr().Is6())
	switch {
	case len(of.Fallback) == 0:
		return direct
	case p.Network == "tcp" && p.Established:
		return Route{Decision: Rejected, Tracked: true}
	}
	f.fallbackPackets++
	return Route{Decision: ToFallback, To: of.Fallback[f.fallbackPackets%len(of.Fallback)], Tracked: true}
}
