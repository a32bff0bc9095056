// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"time"
)

const (
	watchInterval = 500 * time.Millisecond // costs a few system calls and no program
	fullReadEvery = 60                     // of those: time for a full look
)

// Watch calls changed at once, within half a second when rules of ours or of the
// built-in chains that we hang on may have come or gone, and each 30 s for what that does
// not show. It returns nil when ctx ends.
func (b *Backend) Watch(ctx context.Context, changed func()) error {
	changed()
	ticker := time.NewTicker(watchInterval)
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
		news := now != last && now != b.lastFingerprint()
		if last = now; news || n%fullReadEvery == 0 {
			changed()
		}
	}
}

// known is the fingerprint of what was found by the last looks, with rules that are ours.
func (b *Backend) lastFingerprint() string {
	var marks [2]string
	for i := range b.own.lastRead {
		if last := b.own.lastRead[i].Load(); last != nil {
			marks[i] = last.fingerprint
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
	if err := b.own.readLock.enter(ctx); err != nil {
		return "", err
	}
	defer b.own.readLock.leave()
	marks, err := b.own.kernel.fingerprint()
	if err != nil {
		return "", err
	}
	notes, err := b.sets.readNotes()
	return marks[0] + marks[1] + "owner " + notes[noteOwner], err
}
