// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/rules"
)

const (
	lookEvery  = time.Minute            // without any cause: for what Watch does not see
	lookSpace  = 100 * time.Millisecond // after a pass: what changes meanwhile is one more pass
	pauseFirst = 100 * time.Millisecond // after a failure; doubled with each
	pauseLast  = 5 * time.Second
	passLimit  = time.Minute // of State and Apply together; a backend's own limits are far shorter
	writesTold = 20          // of one minute; more are not logged
	maxFormers = 8           // more agents than that were not here within one start
)

// reconcile makes the kernel hold the rules until ctx ends.
func (k *Keeper) reconcile(ctx context.Context) {
	every := time.NewTicker(lookEvery)
	defer every.Stop()
	k.leaseFirst(ctx)
	var p pause
	for ctx.Err() == nil {
		select {
		case <-k.look: // what it is about is part of this pass
		default:
		}
		err := k.pass(ctx)
		if ctx.Err() != nil || k.rules.isClosed() {
			return
		}
		k.noteRules(ctx, err)
		if err != nil {
			sleep(ctx, p.next())
			continue
		}
		p = pause{}
		sleep(ctx, lookSpace)
		select {
		case <-ctx.Done():
		case <-k.look:
		case <-every.C:
		}
	}
}

// leaseFirst waits until the leases are held, or given up, of rules that are not there yet,
// for as long as these may wait.
func (k *Keeper) leaseFirst(ctx context.Context) {
	if k.cfg.Await == 0 || !k.rules.enter() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Await)
	defer cancel()
	k.ahead.Store(true)
	err := k.guard(ctx, "preparing the leases", func() error { return k.cfg.Backend.Prepare(ctx, k.cfg.Rules) })
	k.rules.leave()
	if err != nil {
		k.log.DebugContext(ctx, "leases cannot be held ahead of the rules", "error", err)
		return // what it is about meets the rules as well, where it is told
	}
	for _, l := range k.leases {
		l.wantRound()
	}
	for _, l := range k.leases {
		select {
		case <-l.first:
		case <-l.gate.closed:
		case <-ctx.Done():
			return
		}
	}
}

// watch asks for a pass whenever the backend says that rules may be gone.
func (k *Keeper) watch(ctx context.Context) {
	var p pause
	for ctx.Err() == nil {
		begun := k.cfg.Now()
		err := k.guard(ctx, "watching the rules", func() error { return k.cfg.Backend.Watch(ctx, k.wantLook) })
		if ctx.Err() != nil {
			return
		}
		k.count.watchFailures.Add(1)
		k.log.DebugContext(ctx, "watching of the rules ended", "error", err)
		if k.cfg.Now().Sub(begun) > pauseLast { // it went well for a while
			p = pause{}
		}
		sleep(ctx, p.next())
		k.wantLook() // for what happened meanwhile
	}
}

func (k *Keeper) wantLook() {
	select {
	case k.look <- struct{}{}:
	default: // one is wanted already
	}
}

// pass looks at what the kernel holds and makes it hold what it should.
func (k *Keeper) pass(ctx context.Context) error {
	if !k.rules.enter() {
		return nil
	}
	defer k.rules.leave()
	ctx, cancel := context.WithTimeout(ctx, passLimit)
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
		k.ahead.Store(false)
	}
	if k.lost(state.Owner) {
		k.standDown(ctx, state.Owner)
		return nil
	}
	want := k.cfg.Rules
	want.Fallback = k.fallback.adopt(state, &k.cfg.Rules)
	changed := false
	err = k.guard(ctx, "writing the rules", func() (err error) {
		changed, err = k.cfg.Backend.Apply(ctx, want)
		return err
	})
	if err != nil {
		return fmt.Errorf("writing the rules: %w", err)
	}
	k.owned = true
	k.ahead.Store(false)
	k.count.applies.Add(1)
	if changed {
		k.count.changes.Add(1)
		k.tellWritten(ctx, want.Fallback)
		for _, l := range k.leases { // what holds them may be new, and empty
			l.wantRound()
		}
	}
	return nil
}

// tellWritten logs that rules were written. Who undoes them all the time has them written
// ten times a second: that is told, and then no more for the rest of a minute.
func (k *Keeper) tellWritten(ctx context.Context, fallback []netip.AddrPort) {
	now := k.cfg.Now()
	if k.written == 0 || now.Sub(k.writtenFrom) >= lookEvery {
		k.written, k.writtenFrom = 0, now
	}
	k.written++
	switch {
	case k.written < writesTold:
		k.log.InfoContext(ctx, "interception rules written", "backend", k.cfg.Backend.String(), "fallback", fallback)
	case k.written == writesTold:
		k.log.WarnContext(ctx, "interception rules written again and again, something on the node may undo them",
			"backend", k.cfg.Backend.String(), "changes", k.count.changes.Load())
	}
}

// lost says whether the rules are those of an agent that came later. Who was here
// before us is known: its last Apply may have crossed our first.
func (k *Keeper) lost(owner string) bool {
	if owner == "" || owner == k.cfg.Rules.Owner || slices.Contains(k.former, owner) {
		return false
	}
	if k.owned {
		return true
	}
	if len(k.former) < maxFormers {
		k.former = append(k.former, owner)
	}
	return false
}

// standDown leaves rules and leases to the agent that has them now.
func (k *Keeper) standDown(ctx context.Context, owner string) {
	k.note.setStoodDown(owner)
	k.rules.close()
	for _, l := range k.leases {
		l.end(k.cfg.Now())
	}
	k.log.InfoContext(ctx, "interception left to a newer agent", "owner", owner, "own", k.cfg.Rules.Owner)
}

// A pause grows with each failure.
type pause struct{ last time.Duration }

// next is the pause after one more failure: up to half less than the whole, so that
// agents which fail for one reason do not try in step.
func (p *pause) next() time.Duration {
	p.last = min(max(2*p.last, pauseFirst), pauseLast)
	return p.last - rand.N(p.last/2)
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
