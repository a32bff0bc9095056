// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/rules"
)

// A Fake is a model of a node's kernel, for tests: it holds rules and leases, which
// end by the injected clock, and says where a packet goes. Agents write to it through
// the backends that [Fake.Open] makes. Faults are its exported methods that no kernel
// has. It may be used from several goroutines.
type Fake struct {
	now func() time.Time

	mu       sync.Mutex // guards what follows
	rules    *rules.Rules
	leases   map[netip.Addr]time.Time // held until then; nil: there are no sets
	drains   map[netip.Addr]time.Time
	dealt    int // packets to a fallback so far
	watchers map[int]func()
	watched  int
	calls    Calls
	failures map[Call]failure
	blocks   map[Call]chan struct{}
}

// A Call is a method of a backend's.
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

// Calls is what the backends of a Fake were asked for.
type Calls struct {
	Begun   map[Call]int // by any backend
	Changed int          // Applies that changed anything
}

type failure struct {
	left  int
	err   error
	panic bool
}

// NewFake returns a node without rules.
func NewFake(now func() time.Time) *Fake {
	return &Fake{
		now:      now,
		watchers: map[int]func(){},
		calls:    Calls{Begun: map[Call]int{}},
		failures: map[Call]failure{},
		blocks:   map[Call]chan struct{}{},
	}
}

// Open makes the backend of one more agent.
func (f *Fake) Open() Backend { return &fakeBackend{kernel: f} }

// Calls returns what was asked for so far.
func (f *Fake) Calls() Calls {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.calls
	c.Begun = maps.Clone(c.Begun)
	return c
}

// Rules returns the rules that are there, nil for none.
func (f *Fake) Rules() *rules.Rules {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rules == nil {
		return nil
	}
	r := *f.rules
	return &r
}

// Fail has the next n calls return err and do nothing.
func (f *Fake) Fail(call Call, n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures[call] = failure{left: n, err: err}
}

// Panic has the next n calls panic.
func (f *Fake) Panic(call Call, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures[call] = failure{left: n, panic: true}
}

// Block has calls hang in the kernel, deaf to their contexts, until the returned
// function is called. Then they do what they were asked for.
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

// Flush takes all rules away, with leases and all, as another program may.
func (f *Fake) Flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules, f.leases, f.drains = nil, nil, nil
	f.tellLocked()
}

// Seize writes rules as another agent would.
func (f *Fake) Seize(r rules.Rules) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applyLocked(r)
}

// Stir calls every watcher, though nothing happened.
func (f *Fake) Stir() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tellLocked()
}

// begin counts a call, and has it hang or fail if it is its turn.
func (f *Fake) begin(call Call) error {
	f.mu.Lock()
	f.calls.Begun[call]++
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

// prepareLocked says whether there was nothing that holds leases.
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
	r.Addresses, r.Services, r.Fallback = slices.Clone(r.Addresses), slices.Clone(r.Services), slices.Clone(r.Fallback)
	f.rules = &r
	if changed {
		f.calls.Changed++
		f.tellLocked()
	}
	return changed
}

func equal(a, b *rules.Rules) bool {
	return a.Owner == b.Owner && a.Mode == b.Mode && a.Port == b.Port && a.Admin == b.Admin &&
		slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.Services, b.Services) && slices.Equal(a.Fallback, b.Fallback)
}

func (f *Fake) tellLocked() {
	for _, changed := range f.watchers {
		changed()
	}
}

func (f *Fake) liveLocked(ends map[netip.Addr]time.Time, key netip.Addr) bool {
	return f.now().Before(ends[key])
}
