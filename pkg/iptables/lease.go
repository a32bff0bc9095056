// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/rules"
)

// errNoRules says that there is nothing yet that holds leases, or could look at one.
var errNoRules = errors.New("renewing a lease before any rules were applied or prepared")

// Prepare makes the sets of r's leases, which no rule of this agent's looks at yet; those
// of another one may, as the sets are the same. It waits for no lock, and leaves the rules
// to whom they belong.
func (b *Backend) Prepare(ctx context.Context, r rules.Rules) error {
	if err := r.Check(); err != nil {
		return fmt.Errorf("checking rules: %w", err)
	}
	for _, v6 := range []bool{false, true} {
		if part := r.Family(v6); len(part.Addresses) == 0 || v6 && !hasIPv6(b.netns) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := b.sets.create(v6); err != nil {
			return err
		}
	}
	b.prepared.Store(&r)
	return nil
}

// latest are the rules that leases are of; nil: there were none yet.
func (b *Backend) currentRules() *rules.Rules {
	if r := b.applied.Load(); r != nil {
		return r
	}
	return b.prepared.Load()
}

// Renew has the leases on keys end d from now, rounded up to seconds. It waits for no
// lock. It needs a Prepare before, or an Apply, which need not have gone well.
func (b *Backend) Renew(_ context.Context, keys []netip.Addr, d time.Duration) error {
	r := b.currentRules()
	if r == nil {
		return errNoRules
	}
	var errs []error
	for _, key := range keys {
		// First what lets sessions be, so that none is ended that just began.
		if target := drainKey(r, key); target != key {
			errs = append(errs, b.sets.addEntry("drain", target, d))
		}
		errs = append(errs, b.sets.addEntry("lease", key, d))
	}
	return errors.Join(errs...)
}

// sessions is the address that packets of sessions have when a rule looks whether to
// end them: in transparent mode they are the agent's by then.
func drainKey(r *rules.Rules, key netip.Addr) netip.Addr {
	if r.Mode == rules.Transparent {
		if target := r.Target(key); target.IsValid() {
			return target
		}
	}
	return key
}

// Release ends the leases on keys at once. Packets of TCP sessions still reach the
// agent for the time drain, rounded up to seconds. Leases under the rules of another
// agent are that agent's: they stay. It waits for no lock.
func (b *Backend) Release(_ context.Context, keys []netip.Addr, drain time.Duration) error {
	r := b.currentRules()
	if r == nil {
		return nil // none is this agent's
	}
	notes, err := b.sets.readNotes()
	if err != nil {
		return err
	}
	// Before the first Apply they are this agent's leases under the rules of the one that it took over from.
	if now := notes[noteOwner]; b.applied.Load() != nil && now != "" && now != r.Owner {
		return nil
	}
	var errs []error
	for _, key := range keys {
		// First what lets sessions be, so that there is no moment without.
		if drain > 0 {
			err = b.sets.addEntry("drain", drainKey(r, key), drain)
		} else {
			err = b.sets.deleteEntry("drain", drainKey(r, key))
		}
		if !isNotExist(err) {
			errs = append(errs, err)
		}
		errs = append(errs, b.sets.deleteEntry("lease", key))
	}
	return errors.Join(errs...)
}
