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

// What follows is what the kubelet's probes ask for. Load must not fail them: none of it
// waits for anything, takes a lock of the queries' way, or asks a query.

// leaseGrace is how long the agent stays ready after it has lost every lease. While it
// is flooded its own queries get lost like others, and the lease with them, which the
// next one that comes through brings back. Who gets a pod replaced for that has one
// agent less.
const leaseGrace = 30 * time.Second

// hangs is when a reader that has been at one batch of queries counts as hung. A batch
// takes a millisecond; a reader that waits for a processor for a minute is on a machine
// that has other troubles.
const hangs = time.Minute

// notReady says why the agent is not to be sent queries, nil: it is.
func (a *Agent) notReady() error {
	if err := a.hand.notReady(); err != nil {
		return err
	}
	select {
	case <-a.ready:
	default:
		return errors.New("starting")
	}
	if c := a.running.Load().cluster; !c.inSync() {
		return fmt.Errorf("the cluster zone is not in sync: %s%s", c.why(), c.meanwhile(time.Now()))
	}
	return a.node.notReady()
}

// notAlive says why a restart is needed, nil: it is not.
func (a *Agent) notAlive() error { return hung(a.busy()) }

func hung(busy time.Duration) error {
	if busy < hangs {
		return nil
	}
	return fmt.Errorf("a reader has been at one batch of queries for %s: it hangs", busy.Round(time.Second))
}

// notReady says what keeps the node's queries from coming here.
func (n *node) notReady() error {
	if n == nil {
		return nil
	}
	if n.link != nil {
		if err := unlinked(n.link.Stats()); err != nil {
			return err
		}
	}
	if n.backend == nil {
		return nil
	}
	keeper := n.current()
	if keeper == nil {
		return fmt.Errorf("interception waits for %s", n.waitsFor())
	}
	return unleased(keeper.Stats())
}

func unlinked(stats netif.Stats) error {
	if len(stats.Held) > 0 {
		return nil
	}
	return fmt.Errorf("no listen address is on a link: %s", cmp.Or(stats.LastError, "starting"))
}

func unleased(stats intercept.Stats) error {
	switch {
	case stats.StoodDown:
		return fmt.Errorf("the newer agent %s has the node's queries", stats.NewOwner)
	case stats.SinceAny == 0:
		return nil
	case stats.Renewals == 0:
		return errors.New("no lease is held")
	case stats.Released:
		return errors.New("the leases are given up")
	case stats.SinceAny < leaseGrace:
		return nil
	}
	return fmt.Errorf("no lease is held for %s", stats.SinceAny.Round(time.Second))
}
