// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/rules"
)

// A fakeBackend is one agent's way to the kernel.
type fakeBackend struct {
	kernel   *Fake
	prepared atomic.Bool
	closed   atomic.Bool
}

var (
	errNotPrepared = errors.New("no set of leases: apply or prepare rules first")
	errClosed      = errors.New("the backend is closed")
)

// String implements [Backend].
func (b *fakeBackend) String() string { return "fake" }

// begin fails when ctx has ended. Later it is not asked again: what is in the kernel is done.
func (b *fakeBackend) begin(ctx context.Context, call Call) error {
	if b.closed.Load() {
		return errClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return b.kernel.begin(call)
}

// Apply implements [Backend].
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
	return b.kernel.applyLocked(r), nil
}

// Prepare implements [Backend].
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

// Renew implements [Backend].
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

// Release implements [Backend].
func (b *fakeBackend) Release(ctx context.Context, keys []netip.Addr, drain time.Duration) error {
	if err := b.begin(ctx, CallRelease); err != nil {
		return err
	}
	f := b.kernel
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leases == nil {
		return nil // nothing is held
	}
	for _, key := range keys {
		delete(f.leases, key)
		f.drains[key] = f.now().Add(drain)
	}
	return nil
}

// Watch implements [Backend].
func (b *fakeBackend) Watch(ctx context.Context, changed func()) error {
	if err := b.begin(ctx, CallWatch); err != nil {
		return err
	}
	f := b.kernel
	f.mu.Lock()
	id := f.watched
	f.watched++
	f.watchers[id] = changed
	f.mu.Unlock()
	changed()
	<-ctx.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.watchers, id)
	return nil
}

// Remove implements [Backend].
func (b *fakeBackend) Remove(ctx context.Context, owner string) error {
	if err := b.begin(ctx, CallRemove); err != nil {
		return err
	}
	f := b.kernel
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rules == nil {
		f.leases, f.drains = nil, nil // that were prepared
		return nil
	}
	if owner != "" && owner != f.rules.Owner {
		return rules.ErrOwned
	}
	f.rules, f.leases, f.drains = nil, nil, nil
	f.tellLocked()
	return nil
}

// State implements [Backend].
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

// Close implements [Backend].
func (b *fakeBackend) Close() error {
	b.closed.Store(true)
	return nil
}
