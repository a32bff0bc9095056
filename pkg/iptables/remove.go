// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/rules"
)

// Remove removes the rules, chains and sets of the agent called owner, or, if owner is
// empty, of any agent. If they belong to another agent, it leaves all and returns
// [rules.ErrOwned]. It also deletes tables and built-in chains of iptables-nft that an
// agent created and that no program uses now. An empty table of iptables-legacy stays: the
// kernel cannot delete it.
func (b *Backend) Remove(ctx context.Context, owner string) error {
	if err := b.writeLock.enter(ctx); err != nil {
		return err
	}
	defer b.writeLock.leave()
	notes, err := b.sets.readNotes()
	if err != nil {
		return err
	}
	if now := notes[noteOwner]; owner != "" && now != "" && now != owner {
		return fmt.Errorf("removing rules of %s: %w: of %s", owner, rules.ErrOwned, now)
	}
	var errs []error
	for _, s := range []*variantTables{b.own, b.other} {
		if s != nil {
			errs = append(errs, b.removeFrom(ctx, s, notes))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err // the sets stay: the rules need them, and they hold the owner
	}
	return b.sets.destroy(ctx)
}

func (b *Backend) removeFrom(ctx context.Context, s *variantTables, notes map[note]string) error {
	for _, v6 := range []bool{false, true} {
		if s.program(v6) == nil {
			continue
		}
		if _, err := s.write(ctx, v6, plan(&rules.Rules{}, v6, false), noop, b.now); err != nil {
			return fmt.Errorf("removing rules from iptables-%s: %w", s.variant, err)
		}
		bases := notes[noteBase4]
		if v6 {
			bases = notes[noteBase6]
		}
		if err := s.deleteEmpty(ctx, v6, strings.Fields(bases)); err != nil {
			return fmt.Errorf("removing empty tables of iptables-%s: %w", s.variant, err)
		}
	}
	return nil
}

// Left reports whether an agent wrote iptables rules in the network namespace of the
// calling thread, or was about to. It checks the ipsets, runs no program, and needs only
// the capability NET_ADMIN.
func Left() (bool, error) {
	s, err := openSets()
	if err != nil {
		return false, err
	}
	defer s.handle.Close()
	notes, err := s.readNotes()
	if err != nil || len(notes) > 0 {
		return len(notes) > 0, err
	}
	// An agent that ended just before its first rules leaves sets without notes.
	for _, v6 := range []bool{false, true} {
		if found, err := s.leases(v6, map[netip.Addr]time.Duration{}); err != nil || found {
			return found, err
		}
	}
	return false, nil
}
