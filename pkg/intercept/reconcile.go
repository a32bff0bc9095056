// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/retry"
)

const (
	passInterval    = time.Minute            // interval of passes without a request, for changes that Watch does not report
	passGap         = 100 * time.Millisecond // wait after a pass; all changes during the wait cause one more pass
	passTimeout     = time.Minute            // limit of State and Apply together; a backend's own limits are far shorter
	maxWritesLogged = 20                     // limit of logged writes of rules per minute
	maxPredecessors = 8                      // limit of recorded predecessors; a node never has more agents during one start
)

// retries are the delays after failures, at most 5 s with their random part.
func retries() retry.Backoff {
	return retry.Backoff{First: 100 * time.Millisecond, Last: 3300 * time.Millisecond}
}

// reconcile makes the kernel hold the rules until ctx ends.
func (k *Keeper) reconcile(ctx context.Context) {
	every := time.NewTicker(passInterval)
	defer every.Stop()
	k.awaitLeases(ctx)
	backoff := retries()
	for ctx.Err() == nil {
		select {
		case <-k.wake: // the pass below serves this request
		default:
		}
		err := k.pass(ctx)
		if ctx.Err() != nil || k.rules.isClosed() {
			return
		}
		k.recordPass(ctx, err)
		if err != nil {
			_ = retry.Sleep(ctx, backoff.Next()) // the loop checks ctx
			continue
		}
		backoff.Reset()
		_ = retry.Sleep(ctx, passGap)
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-every.C:
		}
	}
}

// awaitLeases creates the sets for the leases and waits until all leases are held or released, but
// at most AwaitLease. The first rules are written afterwards.
func (k *Keeper) awaitLeases(ctx context.Context) {
	if k.cfg.AwaitLease == 0 || !k.rules.enter() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, k.cfg.AwaitLease)
	defer cancel()
	k.leaseOnly.Store(true)
	err := k.guard(ctx, "preparing the leases", func() error { return k.cfg.Backend.Prepare(ctx, k.cfg.Rules) })
	k.rules.leave()
	if err != nil {
		k.log.DebugContext(ctx, "leases not acquired before the rules", "err", err)
		return // the passes over the rules get the same error and report it
	}
	for _, l := range k.leases {
		l.requestRenewal()
	}
	for _, l := range k.leases {
		select {
		case <-l.renewed:
		case <-l.gate.closed:
		case <-ctx.Done():
			return
		}
	}
}

// watch requests a pass whenever the backend reports that rules may have changed, and after its Watch ended by itself.
func (k *Keeper) watch(ctx context.Context) {
	backoff := retries()
	for ctx.Err() == nil {
		begun := k.cfg.Now()
		err := k.guard(ctx, "watching the rules", func() error { return k.cfg.Backend.Watch(ctx, k.requestPass) })
		if ctx.Err() != nil {
			return
		}
		k.update(func(s *Stats) { s.WatchFailures++ })
		k.log.DebugContext(ctx, "watch of the rules ended", "err", err)
		if k.cfg.Now().Sub(begun) > backoff.Last { // this Watch worked for longer than the longest delay
			backoff.Reset()
		}
		_ = retry.Sleep(ctx, backoff.Next())
		k.requestPass() // for changes while there was no watch
	}
}

func (k *Keeper) requestPass() {
	select {
	case k.wake <- struct{}{}:
	default: // a pass is requested already
	}
}

// pass reads what the kernel holds and applies the rules. If the kernel holds those of a newer agent, it stands down instead.
func (k *Keeper) pass(ctx context.Context) error {
	if !k.rules.enter() {
		return nil
	}
	defer k.rules.leave()
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	var state rules.State
	err := k.guard(ctx, "reading the rules", func() (err error) {
		state, err = k.cfg.Backend.State(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("reading the rules: %w", err)
	}
	if state.LeasesInUse {
		k.leaseOnly.Store(false)
	}
	if k.ownedByNewer(state.Owner) {
		k.standDown(ctx, state.Owner)
		return nil
	}
	want := k.cfg.Rules
	want.Fallback = k.wantedFallback(state)
	changed := false
	err = k.guard(ctx, "writing the rules", func() (err error) {
		if k.cfg.Adapt != nil {
			k.cfg.Adapt(ctx, &want)
		}
		changed, err = k.cfg.Backend.Apply(ctx, want)
		return err
	})
	if err != nil {
		return fmt.Errorf("writing the rules: %w", err)
	}
	if changed || !k.applied {
		k.rulesChanged()
	}
	k.applied = true
	k.leaseOnly.Store(false)
	k.update(func(s *Stats) {
		s.Applies++
		if changed {
			s.Changes++
		}
	})
	if changed {
		k.logWrite(ctx, want.Fallback)
		for _, l := range k.leases { // the sets of the leases may be new and empty
			l.requestRenewal()
		}
	}
	return nil
}

// logWrite logs that rules were written. If another program undoes them all the time, they
// are written ten times a second: logWrite then warns, and is silent for the rest of the minute.
func (k *Keeper) logWrite(ctx context.Context, fallback []netip.AddrPort) {
	now := k.cfg.Now()
	if k.writes == 0 || now.Sub(k.writesSince) >= passInterval {
		k.writes, k.writesSince = 0, now
	}
	k.writes++
	switch {
	case k.writes < maxWritesLogged:
		k.log.InfoContext(ctx, "interception rules written", "backend", k.cfg.Backend.String(), "fallback", fallback)
	case k.writes == maxWritesLogged:
		k.log.WarnContext(ctx, "interception rules rewritten repeatedly, another program may undo them",
			"backend", k.cfg.Backend.String(), "changes", k.Stats().Changes)
	}
}

// ownedByNewer reports whether the rules belong to an agent that started later. Owners found before this
// Keeper's first Apply are predecessors: their own last Apply may come after that one.
func (k *Keeper) ownedByNewer(owner string) bool {
	if owner == "" || owner == k.cfg.Rules.Owner || slices.Contains(k.predecessors, owner) {
		return false
	}
	if k.applied {
		return true
	}
	if len(k.predecessors) < maxPredecessors {
		k.predecessors = append(k.predecessors, owner)
	}
	return false
}

// standDown leaves rules and leases to the newer agent.
func (k *Keeper) standDown(ctx context.Context, owner string) {
	k.update(func(s *Stats) { s.NewOwner, s.StoodDown = owner, true })
	k.rules.close()
	for _, l := range k.leases {
		l.release(k.cfg.Now())
	}
	k.log.InfoContext(ctx, "interception left to a newer agent", "owner", owner, "own", k.cfg.Rules.Owner)
}
