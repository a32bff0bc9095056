// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/netif"
)

// leaseGrace is how long the agent stays ready after it has lost all leases. A flood of queries makes self-queries
// fail, and so leases lapse; the next self-query that succeeds acquires them again. Replacing the pod would not help.
const leaseGrace = 30 * time.Second

// Status returns nil if the agent manages neither link nor interception.
func (n *Node) Status() *status.Node {
	if !n.Managed() {
		return nil
	}
	s := &status.Node{Token: n.cfg.Token}
	if n.link != nil {
		s.Link = n.LinkStats()
		if len(s.Link.Held)+len(s.Link.Missing) == 0 {
			for _, addr := range n.config.Listen.Addresses {
				s.Link.Missing = append(s.Link.Missing, addr.String()+": it is being added")
			}
		}
	}
	if n.backend != nil {
		s.Intercept = n.interceptStatus()
	}
	return s
}

func (n *Node) interceptStatus() *status.Intercept {
	s := &status.Intercept{
		Mode: n.config.Intercept.Mode, Backend: n.backend.String(), DataPlane: cmp.Or(string(n.dataPlane.Proxy), "none"),
		Note: n.dataPlane.Note, Leases: []intercept.LeaseStats{}, Fallback: []netip.AddrPort{},
	}
	now, transparent := n.cfg.Target(), n.config.Intercept.Mode == config.ModeTransparent
	switch {
	case !transparent:
		s.NotLocal, s.Lost = n.cilium.notLocal(), n.cilium.loses(netip.Addr{})
	case !n.traffic.fallsBack():
	case n.traffic.isExcluded(&now):
		s.Note = ""
	default:
		s.Note = noLongerExcluded
	}
	if n.traffic.fallsBack() {
		s.From = now.From
	}
	if n.cilium.on() && n.dataPlane.Proxy != dataplane.Cilium { // it came after the start
		s.DataPlane, s.Note = string(dataplane.Cilium), dataplane.CiliumNote()
	}
	keeper := n.currentKeeper()
	if keeper == nil {
		s.Waiting = n.waitsFor()
		return s
	}
	stats := keeper.Stats()
	s.Standby = stats.Standby
	s.Leases, s.Fallback = stats.Leases, append(s.Fallback, stats.Fallback...)
	s.Renewals, s.Repairs, s.LastError = stats.Renewals, max(stats.Changes, 1)-1, stats.LastError // the first change created the rules
	s.StoodDown, s.NewOwner = stats.StoodDown, stats.NewOwner
	return s
}

// noLongerExcluded is the note of a node whose rules wait for packets that the data plane takes again.
const noLongerExcluded = "The DNS Service has lost the annotation projectcalico.org/natExcludeService: Calico sends its packets past this agent."

// waitsFor returns what must be known before there is a keeper.
func (n *Node) waitsFor() string {
	now := n.cfg.Target()
	switch {
	case !n.traffic.bypassed() || n.traffic.isExcluded(&now):
	case n.dataPlane.Proxy == dataplane.Calico:
		return `the annotation projectcalico.org/natExcludeService: "true" on the DNS Service`
	default:
		return "a data plane whose packets pass netfilter"
	}
	return "the cluster IP of cluster.central.service"
}

// LinkStats returns the link's metrics; nil: there is no link.
func (n *Node) LinkStats() *netif.Stats {
	if n.link == nil {
		return nil
	}
	return new(n.link.Stats())
}

// InterceptStats returns the interception's metrics; nil: there is none, or not yet.
func (n *Node) InterceptStats() *intercept.Stats {
	keeper := n.currentKeeper()
	if keeper == nil {
		return nil
	}
	return new(keeper.Stats())
}

// NotReady returns why the node's queries do not arrive at this agent; nil if they do, or did less than leaseGrace ago.
func (n *Node) NotReady() error {
	if n.link != nil {
		if err := linkError(n.link.Stats()); err != nil {
			return err
		}
	}
	stats := n.InterceptStats()
	switch {
	case n.backend == nil:
		return nil
	case stats == nil:
		return fmt.Errorf("interception is waiting for %s", n.waitsFor())
	}
	if err := leaseError(*stats); err != nil {
		return err
	}
	// A rollout stops at the first node. The lease stays: this node's own queries arrive, and no rule sees those of its pods.
	if why := n.cilium.loses(netip.Addr{}); why != "" {
		return fmt.Errorf("queries of pods are lost: %s", why)
	}
	return nil
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
	case stats.NoneHeldFor == 0, stats.Standby:
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
