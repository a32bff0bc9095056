// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"slices"
	"strings"
)

// Unproven returns why a query of the node that a fallback answers does not prove that it answers pods: clauses. A packet of the node
// skips the hooks for packets that arrive, where some data planes act. Nil: nothing is known that treats pods otherwise.
//
// Cilium's policies are no reason. They act before the agent's rules, so they let pods reach the fallback as they do the agent, and the
// servers of the fallback see the node's address, as in the test. Policies of engines in netfilter see where the rules send the packet.
func (f Found) Unproven() []string {
	var list []string
	if f.Early {
		who := map[Proxy]string{Cilium: "Cilium", Calico: "Calico's eBPF data plane", OVS: "Open vSwitch", EBPF: "an eBPF program"}[f.Proxy]
		list = append(list, who+" handles packets of pods before netfilter")
	}
	if engines := slices.DeleteFunc(slices.Clone(f.Policies), func(name string) bool { return name == engineCilium }); len(engines) > 0 {
		list = append(list, "policies of "+strings.Join(engines, " and ")+" must let pods reach the fallback's servers, not only the agent")
	}
	return list
}
