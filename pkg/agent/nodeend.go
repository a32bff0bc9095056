// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/netif"
	"github.com/nodecache/node-cache/pkg/rules"
)

// settle is how long the servers go on as usual after the lease was given back:
// packets that were let through a moment before are on their way to the sockets.
const settle = 20 * time.Millisecond

// leaving bounds what is done to the kernel while stopping. A lock that somebody
// holds must not keep a pod from ending.
const leaving = 5 * time.Second

// leave gives the lease back and returns when no more queries come, or after a time
// that a stop can spare. Sessions stay with the agent for the time drain.
func (n *node) leave(ctx context.Context, drain time.Duration) {
	if n != nil {
		n.leaves.Do(func() { n.release(ctx, drain) })
	}
}

func (n *node) release(ctx context.Context, drain time.Duration) {
	n.mu.Lock()
	n.left = true
	theirs := time.Until(n.lapse)
	n.mu.Unlock()
	keeper := n.current()
	if keeper == nil {
		pause(theirs)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaving)
	defer cancel()
	more := settle
	if err := keeper.Release(ctx, drain); err != nil {
		n.log.WarnContext(ctx, "the lease could not be given back, it ends by itself", "err", err, "within", n.config.Intercept.Lease)
		more = min(n.config.Intercept.Lease, leaving) // queries come until then
	}
	pause(max(more, theirs))
}

// pause waits, not at all for less than nothing.
func pause(d time.Duration) {
	wait := time.NewTimer(d)
	defer wait.Stop()
	<-wait.C
}

// end leaves the node as intercept.onExit wants it. Nothing of the node may run.
func (n *node) end(ctx context.Context) {
	if n == nil {
		return
	}
	if n.isHanded() {
		n.endHanded(ctx)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaving)
	defer cancel()
	if !n.config.Intercept.Manage || n.config.Intercept.Exit() == config.ExitRemove {
		n.remove(ctx)
	}
	n.close()
}

// remove takes rules and link away, in this order: an address that is gone while
// queries are still led to it would cost each its whole time-out.
func (n *node) remove(ctx context.Context) {
	if keeper := n.current(); keeper != nil { // without one nothing was put there
		err := keeper.Remove(ctx)
		switch {
		case errors.Is(err, rules.ErrOwned):
			n.log.InfoContext(ctx, "rules left to a newer agent")
			return // and so the link
		case err != nil:
			n.log.ErrorContext(ctx, "rules stay behind", "err", err, "hint", "`node-cache cleanup` takes them away")
		}
	}
	if n.link == nil {
		return
	}
	// Rules that could not be removed in time are no reason to leave the link as well.
	switch err := n.link.Remove(context.WithoutCancel(ctx)); {
	case errors.Is(err, netif.ErrOwned):
		n.log.InfoContext(ctx, "link left to a newer agent")
	case err != nil:
		n.log.ErrorContext(ctx, "the link stays behind", "err", err, "hint", "`node-cache cleanup` takes it away")
	}
}

// close gives up what open has opened. It may be called again.
func (n *node) close() {
	if n == nil || n.backend == nil {
		return
	}
	n.closing.Do(func() {
		if err := n.backend.Close(); err != nil {
			n.log.Warn("closing the way to the rules", "err", err)
		}
	})
}
