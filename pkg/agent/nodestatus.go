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

// NodeStatus is what the agent does to the machine it runs on.
type NodeStatus struct {
	Token     string           `json:"token"`               // the agent's name in the kernel
	Link      *LinkStatus      `json:"link,omitempty"`      // nil: interface.manage is false
	Intercept *InterceptStatus `json:"intercept,omitempty"` // nil: intercept.manage is false
}

// LinkStatus is the link that has the agent's addresses.
type LinkStatus struct {
	Name      string   `json:"name"`
	Kind      string   `json:"kind"`
	Why       string   `json:"why,omitempty"` // it is of no kind that would be better
	Held      []string `json:"held"`          // addresses that are there
	Missing   []string `json:"missing"`       // addresses that should be, and why they are not
	Elsewhere []string `json:"elsewhere"`     // addresses that another link has as well, and which
	Repairs   uint64   `json:"repairs"`
	Contested bool     `json:"contested,omitempty"` // something undoes the repairs
	StoodDown bool     `json:"stoodDown,omitempty"` // a newer agent has the link
	LastError string   `json:"lastError,omitempty"`
}

// InterceptStatus is how the node's queries come to the agent.
type InterceptStatus struct {
	Mode      string        `json:"mode"`
	Backend   string        `json:"backend"`
	DataPlane string        `json:"dataPlane"` // what carries the traffic of Services; "none": nothing was found
	Note      string        `json:"note,omitempty"`
	Leases    []LeaseStatus `json:"leases"`
	Fallback  []string      `json:"fallback"`               // where queries go while a lease is not held
	From      string        `json:"fallbackFrom,omitempty"` // intercept.fallback; empty in transparent mode
	Renewals  uint64        `json:"renewals"`
	Repairs   uint64        `json:"repairs"` // times that the rules were not right
	LastError string        `json:"lastError,omitempty"`
	StoodDown bool          `json:"stoodDown,omitempty"` // a newer agent has the rules
	NewOwner  string        `json:"newOwner,omitempty"`
	Waiting   string        `json:"waitsFor,omitempty"` // what must be known before the rules can be made
}

// LeaseStatus is one address that queries are sent to.
type LeaseStatus struct {
	Address string `json:"address"`
	Held    bool   `json:"held"`
	Problem string `json:"problem,omitempty"` // why it was not renewed last
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
		Name: cfg.Interface.Name, Kind: stats.Kind, Why: stats.Why, Held: []string{}, Missing: []string{}, Elsewhere: []string{},
		Repairs: stats.Repairs, Contested: stats.Contested, StoodDown: stats.StoodDown, LastError: stats.LastError,
	}
	if stats.Kind == netif.Loopback.String() {
		s.Name = "lo"
	}
	for _, addr := range cfg.Listen.Addresses {
		if slices.Contains(stats.Held, addr) {
			s.Held = append(s.Held, addr.String())
		} else {
			s.Missing = append(s.Missing, fmt.Sprintf("%s: %s", addr, cmp.Or(stats.Missing[addr], "it is being put there")))
		}
		if other := stats.Elsewhere[addr]; other != "" {
			s.Elsewhere = append(s.Elsewhere, fmt.Sprintf("%s: %s", addr, other))
		}
	}
	return s
}

func (n *node) interceptStatus() *InterceptStatus {
	s := &InterceptStatus{
		Mode: n.config.Intercept.Mode.String(), Backend: n.backend.String(), DataPlane: cmp.Or(string(n.found.Proxy), "none"),
		Note: n.found.Note, Leases: []LeaseStatus{}, Fallback: []string{},
	}
	if n.config.Intercept.Mode == config.ModeLinkLocal {
		s.From = n.wants().from
	}
	keeper := n.current()
	if keeper == nil {
		s.Waiting = n.waitsFor()
		return s
	}
	stats := keeper.Stats()
	for _, addr := range slices.SortedFunc(maps.Keys(stats.Held), netip.Addr.Compare) {
		s.Leases = append(s.Leases, LeaseStatus{Address: addr.String(), Held: stats.Held[addr], Problem: stats.Problems[addr]})
	}
	for _, to := range stats.Fallback {
		s.Fallback = append(s.Fallback, to.String())
	}
	s.Renewals, s.Repairs, s.LastError = stats.Renewals, repairs(&stats), stats.LastError
	s.StoodDown, s.NewOwner = stats.StoodDown, stats.NewOwner
	return s
}

// waitsFor is what must be known before there is a keeper.
func (n *node) waitsFor() string {
	if n.early() {
		return "a data plane that lets netfilter see the packets"
	}
	return "the address of the service that cluster.central.service names"
}

// repairs are the changes after the first, which put the rules there.
func repairs(stats *intercept.Stats) uint64 {
	return max(stats.Changes, 1) - 1
}

// nodeProblems says what is wrong with link and interception.
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
			Where: "interface", What: "a newer agent has the link " + l.Name,
			Hint: "two agents run on this node: stop one",
		}}
	}
	var list []Problem
	for _, missing := range l.Missing {
		list = append(list, Problem{
			Where: "interface", What: fmt.Sprintf("not on %s: %s", l.Name, missing),
			Hint: "it is tried again by itself; addresses of another family are served meanwhile",
		})
	}
	for _, other := range l.Elsewhere {
		list = append(list, Problem{
			Where: "interface", What: "another link has the address as well: " + other,
			Hint: "take it off that link, or choose another listen address; the incumbent cache of the node may still run",
		})
	}
	if l.Contested {
		list = append(list, Problem{
			Where: "interface", What: "something on the node undoes the repairs of " + l.Name,
			Hint: "tell networkd or NetworkManager that the link is not theirs; docs/node.md shows how",
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
		list = append(list, Problem{Where: "intercept", What: i.Note, Hint: "docs/node.md tells what works with which data plane"})
	}
	if i.Waiting != "" {
		return append(list, Problem{
			Where: "intercept", What: "no query is intercepted: waiting for " + i.Waiting,
			Hint: "see that the service exists, or give intercept.services; mode link-local needs no service",
		})
	}
	if i.StoodDown {
		return append(list, Problem{
			Where: "intercept", What: "a newer agent, " + i.NewOwner + ", has taken over the rules",
			Hint: "two agents run on this node: stop one; this one serves on, but keeps neither lease nor rules",
		})
	}
	for _, lease := range i.Leases {
		if !lease.Held {
			list = append(list, Problem{
				Where: "intercept", What: fmt.Sprintf("the lease on %s is not held: %s", lease.Address, cmp.Or(lease.Problem, "it was not taken yet")),
				Hint: "its queries go to the fallback, if there is one; `node-cache doctor` looks at the node",
			})
		}
	}
	if i.LastError != "" {
		list = append(list, Problem{
			Where: "intercept", What: "the rules are not right: " + i.LastError,
			Hint: "it is tried again by itself; the queries of a held lease are answered all the same",
		})
	}
	if i.From != "" && i.From != "none" && len(i.Fallback) == 0 {
		list = append(list, Problem{
			Where: "intercept", What: "there is no fallback: without this agent its addresses answer nobody",
			Hint: "see that cluster.central.service has ready endpoints, or give intercept.fallback addresses",
		})
	}
	for _, lease := range i.Leases {
		if i.From != "" && len(i.Fallback) > 0 && !slices.ContainsFunc(i.Fallback, sameFamily(lease.Address)) {
			list = append(list, Problem{
				Where: "intercept", What: "there is no fallback of the family of " + lease.Address,
				Hint: "without this agent that address answers nobody: give a fallback of its family, or do not listen there",
			})
		}
	}
	return list
}

// sameFamily tells of an address with a port whether it is of the family of addr.
func sameFamily(addr string) func(string) bool {
	v6 := strings.Contains(addr, ":")
	return func(to string) bool { return strings.HasPrefix(to, "[") == v6 }
}

// linkStats are for the metrics; nil: there is no link.
func (n *node) linkStats() *netif.Stats {
	if n == nil || n.link == nil {
		return nil
	}
	stats := n.link.Stats()
	return &stats
}

// keeperStats are for the metrics; nil: there is no interception, or not yet.
func (n *node) keeperStats() *intercept.Stats {
	if n == nil || n.current() == nil {
		return nil
	}
	stats := n.current().Stats()
	return &stats
}
