// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/pkg/convert"
)

// dnsService returns the Service of the cluster's DNS, the fallback; nil: none is known. Kubelets may name one, and a kubelet may lie: a
// Service that is known as the DNS's wins, and any other needs port 53.
func (f *Facts) dnsService() *corev1.Service {
	addrs, _ := f.kubeletDNS()
	isNamed := func(s *corev1.Service) bool {
		return slices.ContainsFunc(s.Spec.ClusterIPs, func(a string) bool { return slices.Contains(addrs, a) })
	}
	var known *corev1.Service
	for _, name := range [][2]string{
		{"openshift-dns", "dns-default"},
		{"kube-system", "kube-dns"},
		{"kube-system", "coredns"},
		{"kube-system", "rke2-coredns-rke2-coredns"},
	} {
		s := f.service(name[0], name[1])
		if s == nil || s.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		if isNamed(s) {
			return s
		}
		if known == nil {
			known = s
		}
	}
	for i := range f.Services {
		s := &f.Services[i]
		if isNamed(s) && slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == 53 }) {
			return s
		}
	}
	return known
}

// slicesOf returns the EndpointSlices of a Service.
func (f *Facts) slicesOf(s *corev1.Service) []discoveryv1.EndpointSlice {
	return slices.DeleteFunc(slices.Clone(f.Slices), func(slice discoveryv1.EndpointSlice) bool {
		return slice.Namespace != s.Namespace || slice.Labels[discoveryv1.LabelServiceName] != s.Name
	})
}

// readyEndpoints returns how many ready endpoints a Service has, over IPv4 and over IPv6.
func (f *Facts) readyEndpoints(s *corev1.Service) (four, six int) {
	for _, slice := range f.slicesOf(s) {
		for _, e := range slice.Endpoints {
			switch {
			case e.Conditions.Ready != nil && !*e.Conditions.Ready:
			case slice.AddressType == discoveryv1.AddressTypeIPv4:
				four++
			case slice.AddressType == discoveryv1.AddressTypeIPv6:
				six++
			}
		}
	}
	return four, six
}

// podFamilies returns how many pods of kube-system with a network of their own have IPv4, and how many have IPv6 only.
func (f *Facts) podFamilies() (four, onlySix int) {
	for i := range f.SystemPods {
		p := &f.SystemPods[i]
		if p.Spec.HostNetwork || p.Status.Phase != corev1.PodRunning || len(p.Status.PodIPs) == 0 {
			continue
		}
		if slices.ContainsFunc(p.Status.PodIPs, func(ip corev1.PodIP) bool { return isFour(ip.IP) }) {
			four++
		} else {
			onlySix++
		}
	}
	return four, onlySix
}

func isFour(addr string) bool {
	a, err := netip.ParseAddr(addr)
	return err == nil && a.Is4()
}

// kubeletDNS returns the addresses that kubelets name, and their cluster domains, each once. What is no address or no name is left out.
func (f *Facts) kubeletDNS() (addrs, domains []string) {
	for _, k := range f.Kubelets {
		for _, a := range parseAddrs(k.ClusterDNS) {
			addrs = append(addrs, a.String())
		}
		if name := strings.ToLower(dns.Fqdn(k.ClusterDomain)); name != "." && strings.Trim(name, settingCharacters) == "" {
			if _, ok := dns.IsDomainName(name); ok {
				domains = append(domains, name)
			}
		}
	}
	return unique(addrs), unique(domains)
}

func unique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// readCorefile converts the configuration of the cluster's DNS. Without one both results are nil.
func (f *Facts) readCorefile() (*convert.Result, error) {
	for _, names := range [][]string{
		{"openshift-dns/dns-default"},
		{"kube-system/coredns", "kube-system/coredns-custom"},
		{"kube-system/rke2-coredns-rke2-coredns"},
		{"kube-system/kube-dns"},
	} {
		var inputs []convert.Input
		for _, name := range names {
			if data := f.ConfigMaps[name]; len(data) > 0 {
				text, _ := json.Marshal(map[string]any{"kind": "ConfigMap", "data": data}) // strings cannot fail
				inputs = append(inputs, convert.Input{Name: name, Text: text})
			}
		}
		if f.ConfigMaps[names[0]] == nil {
			continue
		}
		return convert.Files(inputs, convert.Options{Replace: true, Complete: true})
	}
	return nil, nil //nolint:nilnil // there is none, and that is no error
}

// A localDNS is another DNS server on the nodes.
type localDNS struct {
	name  string
	nodes int32
	addrs []string // where it listens; empty: not known
}

// findLocalDNS finds NodeLocal DNSCache and the clouds' own servers.
func (f *Facts) findLocalDNS() (list []localDNS) {
	for i := range f.DaemonSets {
		d := &f.DaemonSets[i]
		spec := &d.Spec.Template.Spec
		is := slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool { return strings.Contains(c.Image, "k8s-dns-node-cache") })
		if !is && d.Name != "node-local-dns" && d.Name != "nodelocaldns" {
			continue
		}
		list = append(list, localDNS{
			"NodeLocal DNSCache, DaemonSet " + d.Namespace + "/" + d.Name, d.Status.DesiredNumberScheduled,
			strings.FieldsFunc(flag(arguments(&d.Spec.Template.Spec), "localip"), func(c rune) bool { return c == ',' }),
		})
	}
	aks := localDNS{name: "LocalDNS of AKS"}
	for _, n := range f.Linux() {
		if n.Labels["kubernetes.azure.com/localdns-state"] == "enabled" {
			aks.nodes++
		}
	}
	if aks.nodes > 0 {
		list = append(list, aks)
	}
	return list
}

// portTakers returns the DaemonSets, and the pods of others, that listen on the agent's ports of the nodes, as far as they say so.
func (f *Facts) portTakers() (list []string) {
	for i := range f.DaemonSets {
		if d := &f.DaemonSets[i]; d.Name != agentName && takesPort(&d.Spec.Template.Spec) {
			list = append(list, "DaemonSet "+d.Namespace+"/"+d.Name)
		}
	}
	pods := f.SystemPods
	if f.Policies != nil {
		pods = f.Policies.Pods
	}
	for i := range pods {
		p := &pods[i]
		ofSet := slices.ContainsFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "DaemonSet" })
		if !ofSet && p.Status.Phase == corev1.PodRunning && takesPort(&p.Spec) {
			list = append(list, "pod "+p.Namespace+"/"+p.Name)
		}
	}
	return list
}

func takesPort(s *corev1.PodSpec) bool {
	return slices.ContainsFunc(s.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
			port := p.HostPort
			if s.HostNetwork {
				port = p.ContainerPort
			}
			return port == 53 || port == 9253
		})
	})
}

// taken returns what of the cluster has an address, or a range with it; empty: nothing is known to.
func (f *Facts) taken(addr netip.Addr) string {
	for i := range f.Nodes {
		n := &f.Nodes[i]
		for _, a := range n.Status.Addresses {
			if own, err := netip.ParseAddr(a.Address); err == nil && own == addr {
				return "node " + n.Name
			}
		}
		for _, text := range n.Spec.PodCIDRs {
			if cidr, err := netip.ParsePrefix(text); err == nil && cidr.Contains(addr) {
				return "the range " + text + " of the pods of node " + n.Name
			}
		}
	}
	for _, text := range f.ServiceCIDRs {
		if cidr, err := netip.ParsePrefix(text); err == nil && cidr.Contains(addr) {
			return "the range " + text + " of Services"
		}
	}
	for i := range f.Services {
		if s := &f.Services[i]; slices.Contains(s.Spec.ClusterIPs, addr.String()) {
			return "the Service " + s.Namespace + "/" + s.Name
		}
	}
	return ""
}
