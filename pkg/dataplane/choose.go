// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"slices"
)

// choose takes the backend that follows the data plane: who looks at the rules of
// this node with one program finds ours with the same, and no second xtables is
// loaded beside the one in use. Where there is nothing to follow it takes nftables.
func choose(p Proxy, t Traces, usable func(backend string) error) (backend, why string) {
	backend, why = follow(p, t)
	if usable == nil {
		return backend, why
	}
	wrong := usable(backend)
	if wrong == nil {
		return backend, why
	}
	for _, other := range []string{BackendNFTables, BackendIPTablesNFT, BackendIPTablesLegacy} {
		if other != backend && usable(other) == nil {
			return other, fmt.Sprintf("%s would be taken, as %s, but cannot be used here: %v", backend, why, wrong)
		}
	}
	return backend, fmt.Sprintf("%s, and no backend can be used here: %v", why, wrong)
}

// follow is choose where each backend can be used.
func follow(p Proxy, t Traces) (backend, why string) {
	variant, shown := variant(t)
	switch {
	case p == NFTables && t.NoNFT == nil:
		return BackendNFTables, "kube-proxy uses it"
	case p == IPTables:
		return variant, "kube-proxy uses " + shown
	case p == IPVS:
		return variant, "IPVS comes with rules in " + shown
	case t.NoNFT != nil:
		return BackendIPTablesLegacy, fmt.Sprintf("nftables is not to be had: %v", t.NoNFT)
	case p == None:
		return BackendNFTables, "there is no kube-proxy to follow, and it needs no program"
	default:
		return BackendNFTables, "there are no rules of kube-proxy's to follow, and it needs no program"
	}
}

// variant says which iptables this node uses, and what it is to be called in a
// sentence. The chains of kube-proxy tell it best; before kube-proxy wrote any,
// those of the kubelet do.
func variant(t Traces) (backend, shown string) {
	for _, is := range []func(Chain) bool{isServices, isHint} {
		switch {
		case slices.ContainsFunc(t.NFT, is):
			return BackendIPTablesNFT, BackendIPTablesNFT
		case slices.ContainsFunc(t.Legacy, is):
			return BackendIPTablesLegacy, BackendIPTablesLegacy
		}
	}
	if slices.Contains(t.LegacyTables, "nat") || t.NoNFT != nil {
		return BackendIPTablesLegacy, "iptables, here " + BackendIPTablesLegacy + " by its tables"
	}
	return BackendIPTablesNFT, "iptables, and nothing shows that it is the legacy one"
}
