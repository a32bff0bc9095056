// SPDX-License-Identifier: Apache-2.0

package dataplane

import "strings"

// Unproven returns why a query of the node that a fallback answers does not prove that it answers pods: clauses. A packet of the node
// skips the hooks for packets that arrive, where some data planes act. Nil: nothing is known that treats pods otherwise.
func (f Found) Unproven() []string {
	var list []string
	if f.Early {
		who := map[Proxy]string{Cilium: "Cilium", Calico: "Calico's eBPF data plane", OVS: "Open vSwitch", EBPF: "an eBPF program"}[f.Proxy]
		list = append(list, who+" handles packets of pods before netfilter")
	}
	if len(f.Policies) > 0 {
		list = append(list, "policies of "+strings.Join(f.Policies, " and ")+" may keep pods from the fallback")
	}
	return list
}
