// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/netif"
	"github.com/nodecache/node-cache/pkg/rules"
)

// drainDelay is how long the servers continue after the lease is released: packets that the rules let through
// just before are still on their way to the sockets.
const drainDelay = 20 * time.Millisecond

// stopTimeout bounds the kernel changes during a stop. A lock of another process must not keep a pod from
// ending.
const stopTimeout = 5 * time.Second

// leave releases the lease and returns once no more queries arrive, or after a bounded time. TCP sessions
// stay with the agent for the time drain.
func (n *node) leave(ctx context.Context, drain time.Duration) {
	if n != nil {
		n.leaveOnce.Do(func() { n.release(ctx, drain) })
	}
}

func (n *node) release(ctx context.Context, drain time.Duration) {
	n.mu.Lock()
	n.left = true
	theirs := time.Until(n.leaseExpiry)
	n.mu.Unlock()
	keeper := n.currentKeeper()
	if keeper == nil {
		sleep(theirs)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	more := drainDelay
	if err := keeper.Release(ctx, drain); err != nil {
		n.log.WarnContext(ctx, "releasing lease failed", "err", err, "expires_within", n.config.Intercept.Lease)
		more = min(n.config.Intercept.Lease, stopTimeout) // queries arrive until the lease expires
	}
	sleep(max(more, theirs))
}

// sleep waits for d. A negative d returns at once.
func sleep(d time.Duration) {
	wait := time.NewTimer(d)
	defer wait.Stop()
	<-wait.C
}

// end leaves the node as intercept.onExit says. No task of the node may run.
func (n *node) end(ctx context.Context) {
	if n == nil {
		return
	}
	if n.isHandedOver() {
		n.endAfterHandover(ctx)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if !n.config.Intercept.Manage || n.config.Intercept.Exit() == config.ExitRemove {
		n.remove(ctx)
	}
	n.close()
}

// remove removes first the rules, then the link: queries redirected to a missing address would each run into
// a timeout.
func (n *node) remove(ctx context.Context) {
	if keeper := n.currentKeeper(); keeper != nil { // without a keeper there are no rules
		err := keeper.Remove(ctx)
		switch {
		case errors.Is(err, rules.ErrOwned):
			n.log.InfoContext(ctx, "rules left to the newer agent")
			return // and the link with them
		case err != nil:
			n.log.ErrorContext(ctx, "removing rules failed", "err", err, "hint", "run `node-cache cleanup` on the node")
		}
	}
	if n.link == nil {
		return
	}
	// Rules that could not be removed in time are no reason to keep the link.
	switch err := n.link.Remove(context.WithoutCancel(ctx)); {
	case errors.Is(err, netif.ErrOwned):
		n.log.InfoContext(ctx, "link left to the newer agent")
	case err != nil:
		n.log.ErrorContext(ctx, "removing link failed", "err", err, "hint", "run `node-cache cleanup` on the node")
	}
}

// close closes the backend. It may be called again.
func (n *node) close() {
	if n == nil || n.backend == nil {
		return
	}
	n.closing.Do(func() {
		if err := n.backend.Close(); err != nil {
			n.log.Warn("closing rules backend failed", "err", err)
		}
	})
}

// keptResources returns what this agent maintains: the link, and the backend of the rules.
func (n *node) keptResources() (link bool, rules string) {
	if n == nil {
		return false, ""
	}
	if n.backend != nil && !n.bypassed() {
		rules = n.backend.String()
	}
	return n.link != nil, rules
}

// yield leaves the node to the agent that has taken over. The lease stays, because the successor renews it,
// and so do link and rules. Rules that the successor does not maintain would redirect its queries, so they
// are removed. The tasks of link and rules are ending when yield is called.
func (n *node) yield(ctx context.Context, claim handover.Claim) {
	if n == nil {
		return
	}
	n.leaveOnce.Do(func() {}) // the lease stays
	_, rules := n.keptResources()
	n.mu.Lock()
	n.left, n.handedOver, n.otherBackend = true, true, claim.Rules != rules
	n.leaseExpiry = time.Now().Add(min(n.config.Intercept.Lease, stopTimeout))
	n.mu.Unlock()
	if claim.Rules == "" {
		n.removeUnmaintainedRules(ctx)
	}
}

// tookOver notes that the agent of that token has handed the node over, or has ended (gone). Its leases
// remain and cannot be released. If it has ended, its rules redirect queries to the fallback already, so
// there is no reason to wait for a lease.
func (n *node) tookOver(from string, gone bool) {
	if n == nil {
		return
	}
	n.predecessors = []string{from} // the keeper is created later
	if gone {
		n.leaseWait = 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leaseExpiry = time.Now().Add(min(n.config.Intercept.Lease, stopTimeout))
}

// removeUnmaintainedRules removes the rules that the successor does not maintain.
func (n *node) removeUnmaintainedRules(ctx context.Context) {
	keeper := n.currentKeeper()
	if keeper == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := keeper.Remove(ctx); err != nil {
		n.log.ErrorContext(ctx, "removing rules after handover failed", "err", err,
			"hint", "they may redirect queries; stop all agents on the node, then run `node-cache cleanup`")
	}
}

// restoreLink sets up the link again after an agent that had set it up ended without taking over.
func (n *node) restoreLink(ctx context.Context) {
	if n == nil || n.link == nil {
		return
	}
	if err := n.link.Setup(ctx); err != nil {
		n.log.WarnContext(ctx, "restoring link failed", "err", err)
	}
}

// endAfterHandover ends a node that another agent has taken over. The kernel removes nftables leases together
// with their set, so the backend is closed only once the successor has had time to take its own lease.
func (n *node) endAfterHandover(ctx context.Context) {
	n.mu.Lock()
	lapse, foreign := n.leaseExpiry, n.otherBackend
	n.mu.Unlock()
	sleep(time.Until(lapse))
	if foreign {
		n.removeUnmaintainedRules(ctx)
	}
	n.close()
}

// isHandedOver reports whether another agent has taken over.
func (n *node) isHandedOver() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.handedOver
}
