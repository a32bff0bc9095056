// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/netif"
)

// NodeStatus is the agent's state in the kernel.
type NodeStatus struct {
	Token     string           `json:"token"`               // the agent's owner token in the kernel
	Link      *LinkStatus      `json:"link,omitempty"`      // nil: interface.manage is false
	Intercept *InterceptStatus `json:"intercept,omitempty"` // nil: intercept.manage is false
}

// LinkStatus is the link that holds the agent's addresses.
type LinkStatus struct {
	Name      string   `json:"name"`
	Kind      string   `json:"kind"`
	Why       string   `json:"why,omitempty"` // why it is of this kind and not of a better one
	Held      []string `json:"held"`          // addresses present
	Missing   []string `json:"missing"`       // addresses missing, and why
	Elsewhere []string `json:"elsewhere"`     // addresses that another link has as well, and its name
	Repairs   uint64   `json:"repairs"`
	Contested bool     `json:"contested,omitempty"` // another program undoes the repairs
	StoodDown bool     `json:"stoodDown,omitempty"` // a newer agent has the link
	LastError string   `json:"lastError,omitempty"`
}

// InterceptStatus is how the node's queries reach the agent.
type InterceptStatus struct {
	Mode      string        `json:"mode"`
	Backend   string        `json:"backend"`
	DataPlane string        `json:"dataPlane"` // Service implementation of the node; "none": not detected
	Note      string        `json:"note,omitempty"`
	Leases    []LeaseStatus `json:"leases"`
	Fallback  []string      `json:"fallback"`               // where queries go while no lease is held
	From      string        `json:"fallbackFrom,omitempty"` // intercept.fallback; empty in transparent mode
	Renewals  uint64        `json:"renewals"`
	Repairs   uint64        `json:"repairs"` // times that the rules had to be corrected
	LastError string        `json:"lastError,omitempty"`
	StoodDown bool          `json:"stoodDown,omitempty"` // a newer agent has the rules
	NewOwner  string        `json:"newOwner,omitempty"`
	Waiting   string        `json:"waitsFor,omitempty"` // what must be known before the rules can be made
}

// LeaseStatus is the lease on one listen address.
type LeaseStatus struct {
	Address string `json:"address"`
	Held    bool   `json:"held"`
	Problem string `json:"problem,omitempty"` // why the last renewal failed
}

func (n *node) status() *NodeStatus {
	if n == nil {
		return nil
	}
	s := &NodeStatus{Token: n.owner}
	if n.link != nil {
		s.Link = linkStatus(&n.config, n.link.Stats())
	}
	if n.backend != nil {
		s.Intercept = n.interceptStatus()
	}
	return s
}

func linkStatus(cfg *config.Config, stats netif.Stats) *LinkStatus {
	s := &LinkStatus{
		Name: cfg.Interface.Name, Kind: stats.Kind, Why: stats.Reason, Held: []string{}, Missing: []string{}, Elsewhere: []string{},
		Repairs: stats.Repairs, Contested: stats.Contested, StoodDown: stats.StoodDown, LastError: stats.LastError,
	}
	if stats.Kind == netif.Loopback.String() {
		s.Name = "lo"
	}
	for _, addr := range cfg.Listen.Addresses {
		if slices.Contains(stats.Held, addr) {
			s.Held = append(s.Held, addr.String())
		} else {
			s.Missing = append(s.Missing, fmt.Sprintf("%s: %s", addr, cmp.Or(stats.Missing[addr], "it is being added")))
		}
		if other := stats.Duplicates[addr]; other != "" {
			s.Elsewhere = append(s.Elsewhere, fmt.Sprintf("%s: %s", addr, other))
		}
	}
	return s
}

func (n *node) interceptStatus() *InterceptStatus {
	s := &InterceptStatus{
		Mode: n.config.Intercept.Mode.String(), Backend: n.backend.String(), DataPlane: cmp.Or(string(n.dataPlane.Proxy), "none"),
		Note: n.dataPlane.Note, Leases: []LeaseStatus{}, Fallback: []string{},
	}
	if n.config.Intercept.Mode == config.ModeLinkLocal {
		s.From = n.target().from
	}
	keeper := n.currentKeeper()
	if keeper == nil {
		s.Waiting = n.waitsFor()
		return s
	}
	stats := keeper.Stats()
	for _, addr := range slices.SortedFunc(maps.Keys(stats.Held), netip.Addr.Compare) {
		s.Leases = append(s.Leases, LeaseStatus{Address: addr.String(), Held: stats.Held[addr], Problem: stats.LeaseErrors[addr]})
	}
	for _, to := range stats.Fallback {
		s.Fallback = append(s.Fallback, to.String())
	}
	s.Renewals, s.Repairs, s.LastError = stats.Renewals, repairs(&stats), stats.LastError
	s.StoodDown, s.NewOwner = stats.StoodDown, stats.NewOwner
	return s
}

// waitsFor returns what must be known before there is a keeper.
func (n *node) waitsFor() string {
	if n.bypassed() {
		return "a data plane whose packets pass netfilter"
	}
	return "the cluster IP of cluster.central.service"
}

// repairs counts the changes after the first, which created the rules.
func repairs(stats *intercept.Stats) uint64 {
	return max(stats.Changes, 1) - 1
}

// nodeProblems reports what is wrong with link and interception.
func nodeProblems(s *NodeStatus) []Problem {
	if s == nil {
		return nil
	}
	return append(linkProblems(s.Link), interceptProblems(s.Intercept)...)
}

func linkProblems(l *LinkStatus) []Problem {
	if l == nil {
		return nil
	}
	if l.StoodDown {
		return []Problem{{
			Where: "interface", What: "a newer agent owns the link " + l.Name,
			Hint: "two agents run on this node: stop one of them",
		}}
	}
	var list []Problem
	for _, missing := range l.Missing {
		list = append(list, Problem{
			Where: "interface", What: fmt.Sprintf("not on %s: %s", l.Name, missing),
			Hint: "the agent retries by itself; the addresses of the other family are served",
		})
	}
	for _, other := range l.Elsewhere {
		list = append(list, Problem{
			Where: "interface", What: "another link has the address, too: " + other,
			Hint: "remove the address from that link, or set another listen address; another node cache may still run",
		})
	}
	if l.Contested {
		list = append(list, Problem{
			Where: "interface", What: "something on the node undoes the repairs of " + l.Name,
			Hint: "exclude the link from networkd or NetworkManager, see docs/node.md",
		})
	}
	return list
}

func interceptProblems(i *InterceptStatus) []Problem {
	if i == nil {
		return nil
	}
	var list []Problem
	if i.Note != "" {
		list = append(list, Problem{Where: "intercept", What: i.Note, Hint: "see the data planes in docs/node.md"})
	}
	if i.Waiting != "" {
		return append(list, Problem{
			Where: "intercept", What: "no query is intercepted: waiting for " + i.Waiting,
			Hint: "check that the service exists, or set intercept.services; mode link-local needs no service",
		})
	}
	if i.StoodDown {
		return append(list, Problem{
			Where: "intercept", What: "a newer agent, " + i.NewOwner + ", has taken over the rules",
			Hint: "two agents run on this node: stop one of them. This one still serves, but maintains neither lease nor rules",
		})
	}
	for _, lease := range i.Leases {
		if !lease.Held {
			list = append(list, Problem{
				Where: "intercept", What: fmt.Sprintf("the lease on %s is not held: %s", lease.Address, cmp.Or(lease.Problem, "not taken yet")),
				Hint: "its queries go to the fallback, if one is set; run `node-cache doctor` on the node",
			})
		}
	}
	if i.LastError != "" {
		list = append(list, Problem{
			Where: "intercept", What: "the rules are wrong: " + i.LastError,
			Hint: "the agent retries by itself; while a lease is held its queries are answered",
		})
	}
	if i.From != "" && i.From != "none" && len(i.Fallback) == 0 {
		list = append(list, Problem{
			Where: "intercept", What: "there is no fallback: without this agent, queries to its addresses time out",
			Hint: "check that cluster.central.service has ready endpoints, or set addresses in intercept.fallback",
		})
	}
	for _, lease := range i.Leases {
		if i.From != "" && len(i.Fallback) > 0 && !slices.ContainsFunc(i.Fallback, sameFamily(lease.Address)) {
			list = append(list, Problem{
				Where: "intercept", What: "there is no fallback of the IP family of " + lease.Address,
				Hint: "without this agent, queries to that address time out: add a fallback of its family, or remove the listen address",
			})
		}
	}
	return list
}

// sameFamily returns a function that reports whether an address with a port is of addr's family.
func sameFamily(addr string) func(string) bool {
	v6 := strings.Contains(addr, ":")
	return func(to string) bool { return strings.HasPrefix(to, "[") == v6 }
}

// linkStats returns the link's metrics; nil: there is no link.
func (n *node) linkStats() *netif.Stats {
	if n == nil || n.link == nil {
		return nil
	}
	stats := n.link.Stats()
	return &stats
}

// keeperStats returns the interception's metrics; nil: there is none, or not yet.
func (n *node) keeperStats() *intercept.Stats {
	if n == nil || n.currentKeeper() == nil {
		return nil
	}
	stats := n.currentKeeper().Stats()
	return &stats
}
