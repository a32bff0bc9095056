// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"github.com/nodecache/node-cache/pkg/handover"
)

// keeps tells what of the node this agent keeps: the link, and by which backend the rules.
func (n *node) keeps() (link bool, rules string) {
	if n == nil {
		return false, ""
	}
	if n.backend != nil && !n.early() {
		rules = n.backend.String()
	}
	return n.link != nil, rules
}

// yield leaves the node to the agent that has taken over: no lease is given back, because
// it renews them, and nothing of it is removed. Rules that it does not know how to keep
// are of no use any more, and would lead its queries elsewhere: they go. What keeps link
// and rules is ending when yield is called.
func (n *node) yield(ctx context.Context, claim handover.Claim) {
	if n == nil {
		return
	}
	n.leaves.Do(func() {}) // there is nothing left to leave
	_, rules := n.keeps()
	n.mu.Lock()
	n.left, n.handed, n.foreignRules = true, true, claim.Rules != rules
	n.lapse = time.Now().Add(min(n.config.Intercept.Lease, leaving))
	n.mu.Unlock()
	if claim.Rules == "" {
		n.removeHanded(ctx)
	}
}

// took notes that the agent of that name has left the node to this one, or that it is gone.
// Its leases are still there, and nobody can give them back. One that is gone has left
// rules that lead elsewhere: nothing is gained by a wait with those that lead here.
func (n *node) took(from string, gone bool) {
	if n == nil {
		return
	}
	n.before = []string{from} // what keeps the rules begins later
	if gone {
		n.await = 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lapse = time.Now().Add(min(n.config.Intercept.Lease, leaving))
}

// removeHanded takes the rules away that the other agent does not keep.
func (n *node) removeHanded(ctx context.Context) {
	keeper := n.current()
	if keeper == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaving)
	defer cancel()
	if err := keeper.Remove(ctx); err != nil {
		n.log.ErrorContext(ctx, "rules stay behind that the next agent does not keep", "err", err,
			"hint", "`node-cache cleanup` takes them away, while no agent runs")
	}
}

// retake has the node be this agent's again, after another one that has set it up has
// ended without taking over.
func (n *node) retake(ctx context.Context) {
	if n == nil || n.link == nil {
		return
	}
	if err := n.link.Setup(ctx); err != nil {
		n.log.WarnContext(ctx, "the link could not be taken back", "err", err)
	}
}

// endHanded is the end of a node that another agent has. The kernel takes the leases of
// nftables away with what made them, so that goes last: when the other agent had time to
// take its own.
func (n *node) endHanded(ctx context.Context) {
	n.mu.Lock()
	lapse, foreign := n.lapse, n.foreignRules
	n.mu.Unlock()
	pause(time.Until(lapse))
	if foreign {
		n.removeHanded(ctx)
	}
	n.close()
}

// isHanded tells whether another agent has the node.
func (n *node) isHanded() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.handed
}
