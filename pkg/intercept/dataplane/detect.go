// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// detect returns the data plane for Services that left the traces. Data planes that handle packets
// before netfilter win over kube-proxy, except unknown eBPF programs on sockets.
func detect(t Traces) Found {
	f := Found{Policies: policies(t)}
	early, evidence := earlyProxy(t)
	kube, more := kubeProxy(t)
	f.Evidence = slices.Concat(evidence, more, unreadable(t))
	switch {
	case early == EBPF && kube != None:
		// Socket programs have other uses too, and kube-proxy would hardly run if they handled Services.
		f.Proxy = kube
		f.Note = "eBPF programs run on connect of this node's sockets: if they rewrite the Service's address, transparent interception does not work."
	case early != None:
		f.Proxy, f.Early = early, true
		f.Note = earlyNote(early)
		if early == Cilium {
			f.Tunnel, f.Untracked = ciliumTunnel(t), ciliumUntracked(t)
		}
	default:
		f.Proxy = kube
	}
	return f
}

// CiliumNote is the note of a node with Cilium.
func CiliumNote() string { return earlyNote(Cilium) }

func earlyNote(p Proxy) string {
	who := map[Proxy]string{
		Cilium: "Cilium handles", Calico: "Calico's eBPF data plane handles", OVS: "Open vSwitch handles", EBPF: "An eBPF program on the sockets of this node handles",
	}[p]
	note := who + " packets to a Service's address before netfilter: transparent interception cannot work here. Link-local can, if network policies let pods reach the node."
	switch p {
	default:
	case Cilium:
		note += " So can daemonset/overlays/cilium, a Local Redirect Policy."
	case Calico:
		note += " For transparent mode exclude the DNS Service from it: docs/platforms/calico.md."
	case OVS:
		note += " For transparent mode on Antrea exclude the DNS Service from it: docs/platforms/antrea.md."
	}
	return note
}

// add adds evidence of a data plane. The first call decides which data plane it is.
func (f *Found) add(p Proxy, what string) {
	if f.Proxy == None {
		f.Proxy = p
	}
	f.Evidence = append(f.Evidence, what)
}

// earlyProxy returns the data plane that handles packets before netfilter, if any.
func earlyProxy(t Traces) (Proxy, []string) {
	var found Found
	for _, name := range t.Links {
		if p := proxyOfLink(name); p != None {
			found.add(p, "link "+name)
		}
	}
	for _, name := range t.Sockets {
		p := proxyOfProgram(name)
		if p == EBPF && found.Proxy != None {
			continue // most likely a program of the data plane that is already found
		}
		found.add(p, "program "+name+" on the sockets of this node")
	}
	for _, pin := range t.Pins {
		switch {
		case strings.Contains(pin, "/cali"):
			found.add(Calico, "map "+pin)
		case slices.Contains(t.Links, linkCilium):
			found.add(Cilium, "map "+pin)
		default: // pins of Cilium stay until the next boot, also after Cilium was removed
			found.Evidence = append(found.Evidence, "map "+pin+", but no link of Cilium")
		}
	}
	return found.Proxy, found.Evidence
}

// proxyOfLink identifies a data plane by the name of a link that only it creates.
func proxyOfLink(name string) Proxy {
	switch name {
	case linkCilium, "cilium_net":
		return Cilium
	case "bpfin.cali", "bpfout.cali":
		return Calico
	case "antrea-gw0", "ovn-k8s-mp0", "ovn0":
		return OVS
	}
	return None
}

// proxyOfProgram identifies a data plane by the name of its eBPF program, of which the
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

// kubeProxy returns the mode of kube-proxy, or IPVS if another program uses IPVS. The mode
// that kube-proxy reports counts more than traces, which may be old.
func kubeProxy(t Traces) (Proxy, []string) {
	var found Found
	if p := Proxy(t.ProxyMode); p == IPTables || p == NFTables || p == IPVS {
		found.add(p, "kube-proxy reports mode "+t.ProxyMode)
	}
	for _, name := range t.Links {
		if name == "kube-ipvs0" || name == "kube-dummy-if" {
			found.add(IPVS, "link "+name)
		}
	}
	if t.IPVS > 0 {
		found.add(IPVS, fmt.Sprintf("%d IPVS virtual services", t.IPVS))
	}
	if where := families(t.NFT, func(c Chain) bool { return c.Table == tableKubeProxy }); where != "" {
		found.add(NFTables, "table "+tableKubeProxy+" of nftables"+where)
	}
	for variant, chains := range variants(t) {
		if where := families(chains, isServices); where != "" {
			found.add(IPTables, "chain "+chainServices+" of "+variant+where)
		} else if where := families(chains, isHint); where != "" {
			found.Evidence = append(found.Evidence, "a chain of the kubelet in "+variant+where)
		}
	}
	return found.Proxy, found.Evidence
}

// variants yields the variants of iptables with their chains.
func variants(t Traces) iter.Seq2[string, []Chain] {
	return func(yield func(string, []Chain) bool) {
		_ = yield(BackendIPTablesNFT, t.NFT) && yield(BackendIPTablesLegacy, t.Legacy)
	}
}

func isServices(c Chain) bool { return c.Table == "nat" && c.Name == chainServices }

// isHint reports whether c is a chain by which the kubelet marks the node's iptables variant.
func isHint(c Chain) bool {
	return c.Table == "mangle" && (c.Name == chainHint || c.Name == chainCanary)
}

// families describes the IP families that have a matching chain; "" if none has.
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

// unreadable lists what could not be read.
func unreadable(t Traces) []string {
	var list []string
	for _, e := range []struct {
		what string
		err  error
	}{{"nftables", t.NFTErr}, {"iptables-legacy", t.LegacyErr}, {"the programs on sockets", t.SocketsErr}} {
		if e.err != nil {
			list = append(list, fmt.Sprintf("cannot read %s: %v", e.what, e.err))
		}
	}
	return list
}
