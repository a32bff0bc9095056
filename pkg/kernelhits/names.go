// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"sync/atomic"
	"time"
)

// nameSweepInterval is the time between two removals of old permits of names.
const nameSweepInterval = 10 * time.Second

// SetNamePermit sets how long a pod gets the answer to one question after the agent itself has given it that answer; 0: as long as the
// answer is valid. Policy engines that learn names from DNS replies see only those of the agent. Denials need no such permit.
func (k *Responder) SetNamePermit(d time.Duration) {
	atomic.StoreUint64(&k.control.NamePermit, uint64(d))
}

// ForgetNames ends all permits of names: a policy engine has forgotten the names that it has learned.
func (k *Responder) ForgetNames() { atomic.StoreUint64(&k.control.NamesSince, bootTime()) }

// sweepNames removes the permits of names that have ended, at most once in nameSweepInterval. Until then they take room, but permit nothing.
func (k *Responder) sweepNames() {
	now := k.cfg.Now()
	if now.Sub(k.namesSwept) < nameSweepInterval {
		return
	}
	k.namesSwept = now
	end := bootTime() - atomic.LoadUint64(&k.control.NamePermit)
	var name hitsNameKey
	var answered uint64
	var old []hitsNameKey
	for all := k.objects.Names.Iterate(); all.Next(&name, &answered); { // one that a change interrupts is continued by the next sweep
		if answered < end {
			old = append(old, name)
		}
	}
	for _, name := range old {
		_ = k.objects.Names.Delete(name) // if the agent has answered it meanwhile, it does so once more
	}
}
