// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"fmt"
	"slices"
)

// A Proxy is a data plane for Services.
type Proxy string

// The data planes.
const (
	None     Proxy = ""         // none found
	IPTables Proxy = "iptables" // kube-proxy
	NFTables Proxy = "nftables" // kube-proxy
	IPVS     Proxy = "ipvs"     // kube-proxy, or kube-router
	Cilium   Proxy = "cilium"   //
	Calico   Proxy = "calico"   // Calico's eBPF data plane; its other data planes leave Services to kube-proxy
	OVS      Proxy = "ovs"      // Open vSwitch: Antrea, OVN-Kubernetes or Kube-OVN
	EBPF     Proxy = "ebpf"     // unknown programs on the sockets of a cgroup
)

// The names of the backends that Find chooses from.
const (
	BackendNFTables       = "nftables"
	BackendIPTablesNFT    = "iptables-nft"
	BackendIPTablesLegacy = "iptables-legacy"
)

// Found is the result of Find.
type Found struct {
	Proxy    Proxy
	Evidence []string // short phrases, the most important first

	Backend string // the backend for `auto`
	Reason  string // why Find chose that backend; a clause

	// Early means that packets to a Service's address are rewritten before netfilter, so transparent
	// interception cannot work. Link-local interception can: pods query the agent's own address.
	Early bool
	Note  string // a warning about interception, a sentence; empty: none

	// Tunnel is the link by which Cilium sends packets to pods of other nodes; empty: it routes them, or there is no Cilium.
	Tunnel string
	// Untracked are the variants of iptables in which Cilium exempts the pods' packets from conntrack, such as "iptables-nft for IPv4".
	Untracked []string
	// Policies are the policy engines that have rules or links here, in alphabetical order.
	Policies []string
}

// Find detects the data plane for Services on this node: the network namespace of the calling
// thread. What it cannot read, for example for lack of a capability, is in Evidence. usable
// returns why a backend is not available, for example a missing program; nil: all are. Find
// returns an error only when ctx ends.
func Find(ctx context.Context, usable func(backend string) error) (Found, error) {
	t := readTraces(ctx)
	if err := ctx.Err(); err != nil {
		return Found{}, err
	}
	return conclude(t, usable), nil
}

// conclude returns what the traces show, with the backend for them.
func conclude(t Traces, usable func(backend string) error) Found {
	f := detect(t)
	f.Backend, f.Reason = chooseBackend(f.Proxy, t, usable)
	return f
}

// chooseBackend selects the backend that the data plane uses, so that one program shows all rules of the node and no second
// xtables is loaded. For other data planes it prefers nftables. If that backend is not available, it selects another one.
func chooseBackend(p Proxy, t Traces, usable func(backend string) error) (backend, why string) {
	backend, why = preferredBackend(p, t)
	if usable == nil {
		return backend, why
	}
	wrong := usable(backend)
	if wrong == nil {
		return backend, why
	}
	for _, other := range []string{BackendNFTables, BackendIPTablesNFT, BackendIPTablesLegacy} {
		if other != backend && usable(other) == nil {
			return other, fmt.Sprintf("%s would be used (%s), but is not available: %v", backend, why, wrong)
		}
	}
	return backend, fmt.Sprintf("%s, but no backend is available: %v", why, wrong)
}

// preferredBackend is chooseBackend if every backend is available.
func preferredBackend(p Proxy, t Traces) (backend, why string) {
	variant, shown := variant(t)
	switch {
	case p == NFTables && t.NFTErr == nil:
		return BackendNFTables, "kube-proxy uses it"
	case p == IPTables:
		return variant, "kube-proxy uses " + shown
	case p == IPVS:
		return variant, "IPVS uses rules in " + shown
	case t.NFTErr != nil:
		return BackendIPTablesLegacy, fmt.Sprintf("nftables is not available: %v", t.NFTErr)
	case p == None:
		return BackendNFTables, "there is no kube-proxy, and it needs no program"
	default:
		return BackendNFTables, "kube-proxy has no rules, and it needs no program"
	}
}

// Variant returns the variant of iptables that this node uses, [BackendIPTablesNFT] or
// [BackendIPTablesLegacy], and its description with the reason.
func Variant() (backend, shown string) {
	var t Traces
	t.readChains()
	return variant(t)
}

// variant returns the variant of iptables that this node uses, and its description. It decides
// by the chains of kube-proxy, or else by those of the kubelet, or else by the nat table of iptables-legacy.
func variant(t Traces) (backend, shown string) {
	for _, is := range []func(Chain) bool{isServices, isHint} {
		switch {
		case slices.ContainsFunc(t.NFT, is):
			return BackendIPTablesNFT, BackendIPTablesNFT
		case slices.ContainsFunc(t.Legacy, is):
			return BackendIPTablesLegacy, BackendIPTablesLegacy
		}
	}
	if slices.Contains(t.LegacyTables, "nat") || t.NFTErr != nil {
		return BackendIPTablesLegacy, "iptables, here " + BackendIPTablesLegacy + " because of its tables"
	}
	return BackendIPTablesNFT, "iptables, with no sign of iptables-legacy"
}

// Traces are the visible traces of data planes on a node.
type Traces struct {
	// ProxyMode is the mode that kube-proxy reports; empty: none.
	ProxyMode string

	Links []string // names of the network links

	// NFT are the tables of kube-proxy and of policy engines in nf_tables, and the chains of iptables-nft that knownChains names.
	// NFTErr is why they cannot be listed.
	NFT    []Chain
	NFTErr error

	// Legacy are the chains of iptables-legacy that knownChains names. LegacyErr is why they cannot be listed.
	// LegacyTables are the names of its tables, with and without such chains.
	Legacy       []Chain
	LegacyTables []string
	LegacyErr    error

	IPVS int // number of virtual services; -1: the kernel has no IPVS

	Pins []string // paths of pinned eBPF maps that belong to Cilium or Calico

	// Sockets are the names or IDs of eBPF programs that see the destinations of sockets in
	// this cgroup. SocketsErr is why they cannot be listed.
	Sockets    []string
	SocketsErr error
}

// A Chain is a chain of rules.
type Chain struct {
	V6       bool
	Table    string // such as "nat"
	Name     string // empty: the table is meant
	Untracks bool   // Table is "raw", and the chain exempts packets from conntrack by their source
}
