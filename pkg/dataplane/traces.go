// SPDX-License-Identifier: Apache-2.0

package dataplane

// Traces are what data planes leave on a node, as far as they can be seen.
type Traces struct {
	// ProxyMode is what kube-proxy says; empty: it does not.
	ProxyMode string

	Links []string // names of the network links

	// NFT are the chains of nf_tables that tell something, those that iptables-nft
	// writes included, and NoNFT says why they cannot be listed.
	NFT   []Chain
	NoNFT error

	// Legacy are such chains of the tables of iptables-legacy, and NoLegacy says why
	// they cannot be listed. LegacyTables are the names of those tables, with and
	// without such chains.
	Legacy       []Chain
	LegacyTables []string
	NoLegacy     error

	IPVS int // virtual services that the kernel balances; -1: it has no IPVS

	Pins []string // paths in /sys/fs/bpf that tell something

	// Sockets are the programs that see what sockets of this cgroup connect or send
	// to, by name where it can be read, and NoSockets says why they cannot be listed.
	Sockets   []string
	NoSockets error
}

// A Chain is a chain of rules.
type Chain struct {
	V6    bool
	Table string // its name, such as "nat"
	Name  string
}
