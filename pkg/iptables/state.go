// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/rules"
)

// State reads what is there, of whichever variant. It waits for no lock.
func (b *Backend) State(ctx context.Context) (rules.State, error) {
	state := rules.State{Leases: map[netip.Addr]time.Duration{}}
	notes, err := b.sets.readNotes()
	if err != nil {
		return state, err
	}
	state.Owner, state.Present = notes[noteOwner], len(notes) > 0
	for _, v6 := range []bool{false, true} {
		found, err := b.sets.leases(v6, state.Leases)
		if err != nil {
			return state, err
		}
		state.Present = state.Present || found
	}
	for _, s := range []*variantTables{b.own, b.other} {
		if s == nil || state.Count > 0 {
			continue
		}
		err := b.addRules(ctx, s, &state)
		switch {
		case err == nil:
		case s == b.own || ctx.Err() != nil:
			return state, err
		default:
			b.log.DebugContext(ctx, "rules of the other variant not read", "variant", s.variant, "error", err)
		}
	}
	state.Present = state.Present || state.Count > 0
	state.LeasesInUse = state.Count > 0 // the sets are those of all agents
	return state, nil
}

// addRules adds what is in one variant's tables. That IPv6's cannot be read is no
// reason not to tell of the others; Apply says so too, if it matters.
func (b *Backend) addRules(ctx context.Context, s *variantTables, state *rules.State) error {
	for _, v6 := range []bool{false, true} {
		have, err := s.cachedRead(ctx, v6, b.now)
		switch {
		case err == nil:
			state.Count += have.count(v6)
			state.Fallback = append(state.Fallback, have.fallback()...)
		case v6 && ctx.Err() == nil:
			b.log.DebugContext(ctx, "rules of IPv6 not read", "error", err)
		default:
			return err
		}
	}
	return nil
}
