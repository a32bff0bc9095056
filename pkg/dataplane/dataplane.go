// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"time"
)

// A Proxy is what carries the traffic of Services.
type Proxy string

// What carries the traffic of Services.
const (
	None     Proxy = ""         // nothing that could be found
	IPTables Proxy = "iptables" // kube-proxy
	NFTables Proxy = "nftables" // kube-proxy
	IPVS     Proxy = "ipvs"     // kube-proxy, or kube-router
	Cilium   Proxy = "cilium"   //
	Calico   Proxy = "calico"   // with its eBPF data plane; with another one it leaves Services to kube-proxy
	OVS      Proxy = "ovs"      // Open vSwitch: Antrea, OVN-Kubernetes or Kube-OVN
	EBPF     Proxy = "ebpf"     // programs on the sockets of a cgroup, of whom is not known
)

// The backends that Find chooses from, spelled as they call themselves.
const (
	BackendNFTables       = "nftables"
	BackendIPTablesNFT    = "iptables-nft"
	BackendIPTablesLegacy = "iptables-legacy"
)

// Config says where Find looks. The zero value is the node: the network namespace of
// the calling thread.
type Config struct {
	// Timeout is how long kube-proxy has for saying its mode; 0: 500 ms.
	Timeout time.Duration

	// Usable says why a backend cannot be used here: its program is missing, say.
	// Nil: each can.
	Usable func(backend string) error

	// Look collects the traces that a data plane leaves; nil: from the kernel.
	Look func(ctx context.Context) Traces
}

// Found is the outcome of Find.
type Found struct {
	Proxy    Proxy
	Evidence []string // what was seen, a short sentence each, the weightiest first

	Backend string // the backend that `auto` takes
	Why     string // it takes that one, a clause

	// Early says that packets to a Service's address are rewritten before netfilter
	// sees them, so that transparent interception cannot work. Link-local can: its
	// address is no Service's.
	Early bool
	Note  string // about interception, a sentence; empty: nothing stands in its way
}

// Find says what carries the traffic of Services on this node. Each thing that
// cannot be looked at, for want of a right say, is told in Evidence; an error is
// returned only when ctx ends.
func Find(ctx context.Context, c Config) (Found, error) {
	look := c.Look
	if look == nil {
		look = node{timeout: c.Timeout}.look
	}
	t := look(ctx)
	if err := ctx.Err(); err != nil {
		return Found{}, err
	}
	f := judge(t)
	f.Backend, f.Why = choose(f.Proxy, t, c.Usable)
	return f, nil
}
