// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nodecache/node-cache/pkg/rules"
)

// Remove takes away rules, chains and sets of the agent called owner, or, if owner is
// empty, of any. When they are another agent's it leaves all and returns
// [rules.ErrOwned]. Tables and built-in chains of iptables-nft that were not there
// before go too, if nobody uses them now; an empty table of iptables-legacy stays: the
// kernel has no way to remove it.
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
		return err // the sets stay: they cannot go before the rules, and tell whose those are
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
