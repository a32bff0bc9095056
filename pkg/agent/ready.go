// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/netif"
)

// The kubelet's probes call the functions below. They must not fail under load: none blocks, takes a lock of
// the query path, or sends a query.

// leaseGrace is how long the agent stays ready after it has lost all leases. Under a flood self-queries are
// lost like others, and so are leases; the next self-query that succeeds takes them again. Replacing the pod
// would only remove an agent.
const leaseGrace = 30 * time.Second

// hangThreshold is when a reader counts as hung. A batch of queries takes a millisecond; a reader that waits
// a minute for a CPU is on a host with other problems.
const hangThreshold = time.Minute

// notReady returns why the agent must not receive queries, nil if it may.
func (a *Agent) notReady() error {
	if err := a.handover.notReady(); err != nil {
		return err
	}
	select {
	case <-a.ready:
	default:
		return errors.New("starting")
	}
	if c := a.running.Load().cluster; !c.synced() {
		return fmt.Errorf("the cluster zone is not synced: %s%s", c.syncProblem(), c.restoredNote(time.Now()))
	}
	return a.node.notReady()
}

// notAlive returns why a restart is needed, nil if it is not.
func (a *Agent) notAlive() error { return hangError(a.longestBatch()) }

func hangError(busy time.Duration) error {
	if busy < hangThreshold {
		return nil
	}
	return fmt.Errorf("a reader hangs: it has spent %s on one batch of queries", busy.Round(time.Second))
}

// notReady returns why the node's queries do not arrive here.
func (n *node) notReady() error {
	if n == nil {
		return nil
	}
	if n.link != nil {
		if err := linkError(n.link.Stats()); err != nil {
			return err
		}
	}
	if n.backend == nil {
		return nil
	}
	keeper := n.currentKeeper()
	if keeper == nil {
		return fmt.Errorf("interception is waiting for %s", n.waitsFor())
	}
	return leaseError(keeper.Stats())
}

func linkError(stats netif.Stats) error {
	if len(stats.Held) > 0 {
		return nil
	}
	return fmt.Errorf("no listen address is on a link: %s", cmp.Or(stats.LastError, "starting"))
}

func leaseError(stats intercept.Stats) error {
	switch {
	case stats.StoodDown:
		return fmt.Errorf("the newer agent %s receives the node's queries", stats.NewOwner)
	case stats.NoneHeldFor == 0:
		return nil
	case stats.Renewals == 0:
		return errors.New("no lease is held")
	case stats.Released:
		return errors.New("the leases are released")
	case stats.NoneHeldFor < leaseGrace:
		return nil
	}
	return fmt.Errorf("no lease has been held for %s", stats.NoneHeldFor.Round(time.Second))
}
