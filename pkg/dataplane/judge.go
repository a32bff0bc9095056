// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"slices"
	"strings"
)

// judge concludes from traces what carries the traffic of Services. What acts first
// on a packet decides: what kube-proxy wrote matters only where nothing came before.
func judge(t Traces) Found {
	f := Found{}
	early, evidence := earlyProxy(t)
	kube, more := kubeProxy(t)
	f.Evidence = slices.Concat(evidence, more, unseen(t))
	switch {
	case early == EBPF && kube != None:
		// Programs on sockets have other uses, and kube-proxy is there for a reason.
		f.Proxy = kube
		f.Note = "Programs see what the sockets here connect to: should they rewrite a Service's address, transparent interception never sees it."
	case early != None:
		f.Proxy, f.Early = early, true
		f.Note = earlyNote(early)
	default:
		f.Proxy = kube
	}
	return f
}

func earlyNote(p Proxy) string {
	who := map[Proxy]string{
		Cilium: "Cilium takes", Calico: "Calico's eBPF data plane takes", OVS: "Open vSwitch takes", EBPF: "A program on the sockets of this node takes",
	}[p]
	return who + " packets to a Service's address before netfilter sees them: transparent interception cannot work here, link-local can, as far as network policies let pods reach the node."
}

// earlyProxy finds what takes packets before netfilter.
func earlyProxy(t Traces) (Proxy, []string) {
	var evidence []string
	found := None
	take := func(p Proxy, what string) {
		if found == None {
			found = p
		}
		evidence = append(evidence, what)
	}
	for _, name := range t.Links {
		if p := proxyOfLink(name); p != None {
			take(p, "link "+name)
		}
	}
	for _, name := range t.Sockets {
		p := proxyOfProgram(name)
		if p == EBPF && found != None {
			continue // of the one that is known already, most likely
		}
		take(p, "program "+name+" on the sockets of this node")
	}
	for _, pin := range t.Pins {
		switch {
		case strings.Contains(pin, "/cali"):
			take(Calico, "map "+pin)
		case slices.Contains(t.Links, "cilium_host"):
			take(Cilium, "map "+pin)
		default: // what Cilium pins outlives it, until the next boot
			evidence = append(evidence, "map "+pin+", but no link of Cilium's")
		}
	}
	return found, evidence
}

// proxyOfLink tells data planes by links that they make and others do not.
func proxyOfLink(name string) Proxy {
	switch name {
	case "cilium_host", "cilium_net":
		return Cilium
	case "bpfin.cali", "bpfout.cali":
		return Calico
	case "antrea-gw0", "ovn-k8s-mp0", "ovn0":
		return OVS
	}
	return None
}

// proxyOfProgram tells data planes by the names of their programs, of which the
// kernel keeps 15 bytes.
func proxyOfProgram(name string) Proxy {
	switch {
	case strings.HasPrefix(name, "cil_sock"), strings.HasPrefix(name, "sock4_"), strings.HasPrefix(name, "sock6_"):
		return Cilium
	case strings.HasPrefix(name, "cali"):
		return Calico
	}
	return EBPF
}

// kubeProxy finds the mode of kube-proxy, or of what balances by IPVS without it.
// What it says of itself counts more than what it, or a former one, left.
func kubeProxy(t Traces) (Proxy, []string) {
	var evidence []string
	found := None
	take := func(p Proxy, what string) {
		if found == None {
			found = p
		}
		evidence = append(evidence, what)
	}
	if p := Proxy(t.ProxyMode); p == IPTables || p == NFTables || p == IPVS {
		take(p, "kube-proxy says that its mode is "+t.ProxyMode)
	}
	for _, name := range t.Links {
		if name == "kube-ipvs0" || name == "kube-dummy-if" {
			take(IPVS, "link "+name)
		}
	}
	if t.IPVS > 0 {
		take(IPVS, fmt.Sprintf("%d virtual services of IPVS", t.IPVS))
	}
	if where := families(t.NFT, func(c Chain) bool { return c.Table == tableKubeProxy }); where != "" {
		take(NFTables, "table "+tableKubeProxy+" of nftables"+where)
	}
	for _, v := range []struct {
		name   string
		chains []Chain
	}{{BackendIPTablesNFT, t.NFT}, {BackendIPTablesLegacy, t.Legacy}} {
		if where := families(v.chains, isServices); where != "" {
			take(IPTables, "chain "+chainServices+" of "+v.name+where)
		} else if where := families(v.chains, isHint); where != "" {
			evidence = append(evidence, "a chain of the kubelet's in "+v.name+where)
		}
	}
	return found, evidence
}

func isServices(c Chain) bool { return c.Table == "nat" && c.Name == chainServices }

// isHint knows the chains by which the kubelet shows which iptables the node uses.
func isHint(c Chain) bool {
	return c.Table == "mangle" && (c.Name == chainHint || c.Name == chainCanary)
}

// families says for which IP families there is a chain that is meant; "" if for none.
func families(chains []Chain, is func(Chain) bool) string {
	v4 := slices.ContainsFunc(chains, func(c Chain) bool { return !c.V6 && is(c) })
	v6 := slices.ContainsFunc(chains, func(c Chain) bool { return c.V6 && is(c) })
	switch {
	case v4 && v6:
		return " for IPv4 and IPv6"
	case v4:
		return " for IPv4"
	case v6:
		return " for IPv6"
	}
	return ""
}

// unseen tells what could not be looked at.
func unseen(t Traces) []string {
	var list []string
	for _, e := range []struct {
		what string
		err  error
	}{{"nftables", t.NoNFT}, {"iptables-legacy", t.NoLegacy}, {"the programs on sockets", t.NoSockets}} {
		if e.err != nil {
			list = append(list, fmt.Sprintf("not looked at %s: %v", e.what, e.err))
		}
	}
	return list
}
