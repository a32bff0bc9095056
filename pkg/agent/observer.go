// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"sync/atomic"
	"time"
)

// A storeObserver passes the changes of the cluster's objects on to all that keep something made of them: the kernel, the cache,
// and the notifier, which makes versions. The last two are those in use now: a reload may have replaced them.
type storeObserver struct {
	kernel  *kernelHits
	running *atomic.Pointer[generation]
}

// Changing implements [zone.Observer].
func (o *storeObserver) Changing() {
	if k := o.kernel.Responder; k != nil {
		k.ZoneChanging()
	}
}

// OwnerChanged implements [zone.Observer]. The kernel observes the cache.
func (o *storeObserver) OwnerChanged(owner []byte) {
	if r := o.running.Load(); r != nil {
		r.cache.OwnerChanged(owner, time.Now())
	}
}

// Changed implements [zone.Observer].
func (o *storeObserver) Changed() {
	if k := o.kernel.Responder; k != nil {
		k.ZoneChanged()
	}
	if r := o.running.Load(); r != nil && r.cluster.Notifier != nil {
		r.cluster.Notifier.Changed()
	}
}
