// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/names/push"
)

// A storeObserver passes changes of the cluster's objects on to what depends on them: the kernel, the cache, and the notifier,
// which makes versions of the zones, and subscribers. The cache and the notifier are those in use now: a reload may have replaced them.
type storeObserver struct {
	kernel  *kernelHits
	push    *push.Server
	running *atomic.Pointer[generation]
}

// Changing implements [zone.Observer].
func (o *storeObserver) Changing() {
	if k := o.kernel.Responder; k != nil {
		k.ZoneChanging()
	}
}

// OwnerChanged implements [zone.Observer]. It does not tell the kernel, which learns of the change from the cache.
func (o *storeObserver) OwnerChanged(owner []byte) {
	if r := o.running.Load(); r != nil {
		r.cache.OwnerChanged(owner, time.Now())
	}
	o.push.OwnerChanged(owner)
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
