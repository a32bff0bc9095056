// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"slices"
	"strings"
)

// The first chains of policy engines in the table filter of iptables.
const (
	chainKubeRouter = "KUBE-ROUTER-INPUT"
	chainCalico     = "cali-INPUT"
)

// untrackingChains returns the chains of Cilium in raw, by their names from 1.14 to 1.20. While Cilium replaces its rules, the
// second one has the old ones.
func untrackingChains() []string { return []string{"CILIUM_PRE_raw", "OLD_CILIUM_PRE_raw"} }

// ciliumTunnel returns the link of Cilium's tunnel; empty: none.
func ciliumTunnel(t Traces) string {
	for _, name := range []string{"cilium_vxlan", "cilium_geneve"} {
		if slices.Contains(t.Links, name) {
			return name
		}
	}
	return ""
}

// ciliumUntracked returns where Cilium exempts packets of pods from conntrack.
func ciliumUntracked(t Traces) []string {
	untracks := func(c Chain) bool { return c.Untracks }
	var list []string
	for variant, chains := range variants(t) {
		if where := families(chains, untracks); where != "" {
			list = append(list, variant+where)
		}
	}
	return list
}

// engineCilium is Cilium's name as a policy engine.
const engineCilium = "Cilium"

// isPolicyTable reports whether a table of nf_tables belongs to a policy engine.
func isPolicyTable(name string) bool { return policyEngine(Chain{Table: name}) != "" }

// policyEngine returns the policy engine that has the chain or table; empty: none.
func policyEngine(c Chain) string {
	switch {
	case c.Table == "calico", c.Table == "filter" && c.Name == chainCalico:
		return "Calico"
	case c.Table == "filter" && c.Name == chainKubeRouter:
		return "kube-router"
	case strings.HasSuffix(c.Table, "network-policies"): // also that of kindnet, which has the same engine
		return "kube-network-policies"
	}
	return ""
}

// Policies returns the names of the policy engines that have rules or links on this node, in alphabetical order. It reads less than
// [Find].
func Policies() ([]string, error) {
	t := Traces{Links: links()}
	var failed error
	t.NFT, t.NFTErr = nftChains()
	t.Legacy, _, failed = legacyChains("filter")
	return policies(t), errors.Join(t.NFTErr, failed)
}

// policies returns the names of the policy engines.
func policies(t Traces) []string {
	var list []string
	for _, chains := range variants(t) {
		for _, c := range chains {
			if engine := policyEngine(c); engine != "" {
				list = append(list, engine)
			}
		}
	}
	for _, name := range t.Links {
		switch {
		case name == linkCilium:
			list = append(list, engineCilium)
		case name == "antrea-gw0":
			list = append(list, "Antrea")
		case strings.HasPrefix(name, "bpfin.cali"):
			list = append(list, "Calico")
		case strings.HasPrefix(name, "ovn"):
			list = append(list, "OVN")
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
