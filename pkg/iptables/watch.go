// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"time"
)

const (
	watchEvery = 500 * time.Millisecond // costs a few system calls and no program
	watchFull  = 60                     // of those: time for a full look
)

// Watch calls changed at once, within half a second when rules of ours or of the
// built-in chains that we hang on may have come or gone, and each 30 s for what that does
// not show. It returns nil when ctx ends.
func (b *Backend) Watch(ctx context.Context, changed func()) error {
	changed()
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	last := ""
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now, err := b.fingerprint(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watching iptables-%s: %w", b.own.variant, err)
		}
		// What an Apply of ours left behind is no news.
		news := now != last && now != b.known()
		if last = now; news || n%watchFull == 0 {
			changed()
		}
	}
}

// known is the fingerprint of what was found by the last looks, with rules that are ours.
func (b *Backend) known() string {
	var marks [2]string
	for i := range b.own.last {
		if last := b.own.last[i].Load(); last != nil {
			marks[i] = last.mark
		}
	}
	owner := ""
	if r := b.applied.Load(); r != nil {
		owner = r.Owner
	}
	return marks[0] + marks[1] + "owner " + owner
}

// fingerprint is the kernel's, and whose the rules are.
func (b *Backend) fingerprint(ctx context.Context) (string, error) {
	if err := b.own.looking.enter(ctx); err != nil {
		return "", err
	}
	defer b.own.looking.leave()
	marks, err := b.own.kernel.fingerprint()
	if err != nil {
		return "", err
	}
	notes, err := b.sets.notes()
	return marks[0] + marks[1] + "owner " + notes[noteOwner], err
}
