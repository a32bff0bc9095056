// SPDX-License-Identifier: Apache-2.0

package preflight_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/dnspolicy"
	"github.com/nodecache/node-cache/pkg/preflight"
)

const corefile = ".:53 {\n  kubernetes cluster.local in-addr.arpa ip6.arpa {\n    fallthrough in-addr.arpa ip6.arpa\n  }\n  forward . /etc/resolv.conf\n}\n"

// kubeadm is a cluster of two nodes as kubeadm makes it, with kube-proxy in mode nftables.
func kubeadm() *preflight.Facts {
	f := &preflight.Facts{
		Namespace: "kube-system", Version: "v1.37.2", Unread: map[string]preflight.Unread{}, ServiceCount: 2,
		Nodes: []corev1.Node{node("node1"), node("node2")},
		Kubelets: map[string]preflight.Kubelet{
			"node1": {ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local"},
			"node2": {ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local"},
		},
		DaemonSets: []appsv1.DaemonSet{daemonSet("kube-proxy", "kube-proxy", "registry.k8s.io/kube-proxy:v1.37.2")},
		SystemPods: []corev1.Pod{pod("10.244.0.2"), pod("10.244.1.2")},
		ConfigMaps: map[string]map[string]string{
			"kube-system/kube-proxy":     {"config.conf": "kind: KubeProxyConfiguration\nmode: nftables\n"},
			"kube-system/coredns":        {"Corefile": corefile},
			"kube-system/kubeadm-config": {"ClusterConfiguration": "{}"},
		},
		Services:       []corev1.Service{service("kube-system", "kube-dns", "10.96.0.10")},
		Slices:         []discoveryv1.EndpointSlice{slice("kube-system", "kube-dns", discoveryv1.AddressTypeIPv4, 2)},
		AgentNamespace: &corev1.Namespace{},
	}
	return f
}

func node(name string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}}
	n.Spec.PodCIDRs = []string{"10.244.0.0/16"}
	n.Status.NodeInfo = corev1.NodeSystemInfo{
		KubeletVersion: "v1.37.2", KernelVersion: "6.12.9-cloud", OSImage: "Debian GNU/Linux 12", ContainerRuntimeVersion: "containerd://2.4.2",
		OperatingSystem: "linux", Architecture: "amd64",
	}
	return n
}

func daemonSet(name, container, image string, args ...string) appsv1.DaemonSet {
	d := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 2}}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: container, Image: image, Args: args}}
	return d
}

func pod(addrs ...string) corev1.Pod {
	p := corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	for _, a := range addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return p
}

func service(namespace, name string, addrs ...string) corev1.Service {
	s := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	s.Spec.ClusterIP, s.Spec.ClusterIPs = addrs[0], addrs
	return s
}

func slice(namespace, name string, family discoveryv1.AddressType, ready int) discoveryv1.EndpointSlice {
	s := discoveryv1.EndpointSlice{AddressType: family}
	s.Namespace, s.Labels = namespace, map[string]string{discoveryv1.LabelServiceName: name}
	s.Endpoints = append(make([]discoveryv1.Endpoint, ready), discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: new(false)}})
	return s
}

// Changes of a cluster, for the tables.
type change func(*preflight.Facts)

func label(key, value string) change {
	return func(f *preflight.Facts) {
		for i := range f.Nodes {
			f.Nodes[i].Labels[key] = value
		}
	}
}

func info(set func(*corev1.NodeSystemInfo)) change {
	return func(f *preflight.Facts) {
		for i := range f.Nodes {
			set(&f.Nodes[i].Status.NodeInfo)
		}
	}
}

func kubelet(version string) change {
	return info(func(n *corev1.NodeSystemInfo) { n.KubeletVersion = version })
}

func sets(list ...appsv1.DaemonSet) change { return func(f *preflight.Facts) { f.DaemonSets = list } }

func add(d appsv1.DaemonSet) change {
	return func(f *preflight.Facts) { f.DaemonSets = append(f.DaemonSets, d) }
}

func version(v string) change { return func(f *preflight.Facts) { f.Version = v } }

func cilium(tag string, settings ...string) change {
	return func(f *preflight.Facts) {
		add(daemonSet("cilium", "cilium-agent", "quay.io/cilium/cilium:"+tag))(f)
		data := map[string]string{}
		for _, s := range settings {
			key, value, _ := strings.Cut(s, "=")
			data[key] = value
		}
		f.ConfigMaps["kube-system/cilium-config"] = data
	}
}

func dns(namespace, name string) change {
	return func(f *preflight.Facts) {
		f.Services = []corev1.Service{service(namespace, name, "10.96.0.10")}
		f.Slices = []discoveryv1.EndpointSlice{slice(namespace, name, discoveryv1.AddressTypeIPv4, 2)}
	}
}

func pods(list ...corev1.Pod) change { return func(f *preflight.Facts) { f.SystemPods = list } }

func dualStack(f *preflight.Facts) {
	f.Services = []corev1.Service{service("kube-system", "kube-dns", "10.96.0.10", "fd00:10:96::a")}
	f.SystemPods = []corev1.Pod{pod("10.244.0.2", "fd00:10:244::2")}
	f.Slices = append(f.Slices, slice("kube-system", "kube-dns", discoveryv1.AddressTypeIPv6, 2))
}

func onlySix(f *preflight.Facts) {
	f.Services = []corev1.Service{service("kube-system", "kube-dns", "fd00:10:96::a")}
	f.SystemPods = []corev1.Pod{pod("fd00:10:244::2")}
	f.Slices = []discoveryv1.EndpointSlice{slice("kube-system", "kube-dns", discoveryv1.AddressTypeIPv6, 2)}
	f.Kubelets = map[string]preflight.Kubelet{"node1": {ClusterDNS: []string{"fd00:10:96::a"}}}
}

const (
	base        = "kubectl apply -k daemonset/base"
	transparent = "kubectl apply -k daemonset/overlays/transparent"
	optIn       = "helm install node-cache daemonset/chart -n kube-system --set 'optIn=true'"
	gke         = "cloud.google.com/gke-nodepool"
	aks         = "kubernetes.azure.com/cluster"
)

func ciliumAlone(tag string, settings ...string) change {
	return func(f *preflight.Facts) {
		f.DaemonSets = nil
		delete(f.ConfigMaps, "kube-system/kube-proxy")
		cilium(tag, append([]string{"kube-proxy-replacement=true"}, settings...)...)(f)
	}
}

// TestChoice has the platforms and data planes, and the first command that installs.
func TestChoice(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		changes []change
		variant string
		optIn   bool
		command string
		page    string // of the kubelets' setting; empty: they keep it
	}{
		{"kubeadm", nil, "base", false, base, "kubeadm.md"},
		{"kubeadm, nothing that forwards Services is known", []change{sets(), func(f *preflight.Facts) { delete(f.ConfigMaps, "kube-system/kube-proxy") }}, "base", false, base, "kubeadm.md"},
		{"no known platform", []change{func(f *preflight.Facts) { delete(f.ConfigMaps, "kube-system/kubeadm-config") }}, "base", false, base, "README.md"},
		{"IPv6", []change{onlySix}, "overlays/ipv6", false, "kubectl apply -k daemonset/overlays/ipv6", "kubeadm.md"},
		{"dual stack", []change{dualStack}, "overlays/dual-stack", false, "kubectl apply -k daemonset/overlays/dual-stack", "kubeadm.md"},
		{"dual stack, DNS by IPv4", []change{pods(pod("10.244.0.2", "fd00::2"))}, "base", false, base, "kubeadm.md"},
		{"dual stack, a pod with IPv6 only", []change{pods(pod("10.244.0.2"), pod("fd00:10::2"))}, "overlays/dual-stack", false, "kubectl apply -k daemonset/overlays/dual-stack", "kubeadm.md"},
		{"dual stack, kubelets name both", []change{func(f *preflight.Facts) {
			f.Kubelets["node1"] = preflight.Kubelet{ClusterDNS: []string{"169.254.20.10", "fd00::10"}}
		}}, "overlays/dual-stack", false, "kubectl apply -k daemonset/overlays/dual-stack", "kubeadm.md"},
		{"many Services", []change{func(f *preflight.Facts) { f.ServiceCount = 4000 }}, "overlays/large-cluster", false, "kubectl apply -k daemonset/overlays/large-cluster", "kubeadm.md"},
		{"many Services, IPv6", []change{func(f *preflight.Facts) { f.ServiceCount = 4000 }, onlySix}, "overlays/ipv6", false, "helm install node-cache daemonset/chart -n kube-system -f daemonset/chart/presets/ipv6.yaml -f daemonset/chart/presets/large-cluster.yaml", "kubeadm.md"},
		{"another namespace", []change{func(f *preflight.Facts) { f.Namespace = "dns" }}, "base", false, "helm install node-cache daemonset/chart -n dns", "kubeadm.md"},
		{"another domain", []change{func(f *preflight.Facts) {
			f.ConfigMaps["kube-system/coredns"]["Corefile"] = strings.ReplaceAll(corefile, "cluster.local", "corp.k8s")
			f.Kubelets = nil
		}}, "base", false, "helm install node-cache daemonset/chart -n kube-system --set 'config.agent.clusterDomain=corp.k8s'", "kubeadm.md"},
		{"stub domains", []change{func(f *preflight.Facts) {
			f.ConfigMaps["kube-system/coredns"]["Corefile"] = corefile + "corp.example:53 {\n  forward . 192.0.2.1\n}\nbar.example:53 {\n  forward . 192.0.2.2\n}\n"
		}}, "base", false, "helm install node-cache daemonset/chart -n kube-system --set 'config.agent.cluster.zones={bar.example.,corp.example.}'", "kubeadm.md"},
		{"more names than fit into a command", []change{func(f *preflight.Facts) {
			for i := range 30 {
				f.ConfigMaps["kube-system/coredns"]["Corefile"] += fmt.Sprintf("%d.example {\n forward . 192.0.2.1\n}\n", i)
			}
		}}, "base", false, base, "kubeadm.md"},
		{"stub domains of coredns-custom", []change{func(f *preflight.Facts) {
			f.ConfigMaps["kube-system/coredns"]["Corefile"] += "import custom/*.server\n"
			f.ConfigMaps["kube-system/coredns-custom"] = map[string]string{"corp.server": "corp.example:53 {\n  forward . 192.0.2.1\n}\n"}
		}}, "base", false, "helm install node-cache daemonset/chart -n kube-system --set 'config.agent.cluster.zones={corp.example.}'", "kubeadm.md"},
		{"Cilium in place of kube-proxy", []change{ciliumAlone("v1.20.2")}, "base", false, base, "kubeadm.md"},
		{"Cilium that redirects", []change{ciliumAlone("v1.20.2", "enable-local-redirect-policy=true")}, "overlays/cilium", false, "kubectl apply -k daemonset/overlays/cilium", ""},
		{"Cilium beside kube-proxy", []change{cilium("v1.20.2", "kube-proxy-replacement=false", "enable-local-redirect-policy=true")}, "base", false, base, "kubeadm.md"},
		{"k3s", []change{kubelet("v1.36.1+k3s1")}, "base", false, base, "k3s.md"},
		{"RKE2", []change{kubelet("v1.36.1+rke2r1"), dns("kube-system", "rke2-coredns-rke2-coredns")}, "base", false, "helm install node-cache daemonset/chart -n kube-system --set 'config.agent.cluster.central.service=kube-system/rke2-coredns-rke2-coredns'", "rke2.md"},
		{"Kubespray", []change{dns("kube-system", "coredns")}, "base", false, "helm install node-cache daemonset/chart -n kube-system --set 'config.agent.cluster.central.service=kube-system/coredns'", "kubespray.md"},
		{"Talos", []change{info(func(n *corev1.NodeSystemInfo) { n.OSImage = "Talos (v1.11.1)" })}, "base", false, base, "talos.md"},
		{"Flatcar", []change{info(func(n *corev1.NodeSystemInfo) { n.OSImage = "Flatcar Container Linux by Kinvolk 4081" })}, "base", false, base, "flatcar.md"},
		{"kind", []change{func(f *preflight.Facts) { f.Nodes[0].Spec.ProviderID = "kind://docker/kind/kind-control-plane" }}, "base", false, base, "kind.md"},
		{"minikube", []change{label("minikube.k8s.io/name", "minikube")}, "base", false, base, "minikube.md"},
		{"kOps", []change{label("kops.k8s.io/instancegroup", "nodes")}, "base", false, base, "kops.md"},
		{"EKS", []change{kubelet("v1.33.1-eks-1234"), add(daemonSet("aws-node", "aws-node", "amazon-k8s-cni:v1"))}, "base", false, base, "eks.md"},
		{"EKS with Bottlerocket", []change{kubelet("v1.33.1-eks-1234"), info(func(n *corev1.NodeSystemInfo) { n.OSImage = "Bottlerocket OS 1.40" })}, "base", false, base, "bottlerocket.md"},
		{"EKS Auto Mode", []change{label("eks.amazonaws.com/compute-type", "auto"), sets()}, "base", true, optIn, ""},
		{"EKS Auto Mode beside nodes with kube-proxy", []change{func(f *preflight.Facts) { f.Nodes[0].Labels["eks.amazonaws.com/compute-type"] = "auto" }}, "base", true, optIn, ""},
		{"EKS Auto Mode before 1.36", []change{label("eks.amazonaws.com/compute-type", "auto"), sets(), version("v1.35.2-eks-1")}, "base", false, base, ""},
		{"GKE", []change{label(gke, "p"), sets(), func(f *preflight.Facts) {
			f.SystemPods = append(f.SystemPods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"component": "kube-proxy"}}})
		}}, "overlays/transparent", false, transparent, ""},
		{"GKE, dual stack", []change{label(gke, "p"), dualStack}, "overlays/transparent", false, "helm install node-cache daemonset/chart -n kube-system -f daemonset/chart/presets/transparent.yaml -f daemonset/chart/presets/dual-stack.yaml", ""},
		{"GKE Dataplane V2", []change{label(gke, "p"), sets(daemonSet("anetd", "cilium-agent", "gke.gcr.io/cilium/cilium:v1.19.1")), func(f *preflight.Facts) {
			f.ConfigMaps["kube-system/cilium-config"] = map[string]string{"kube-proxy-replacement": "true", "enable-local-redirect-policy": "true"}
		}}, "base", true, optIn, ""},
		{"GKE, nothing of it may be read", []change{label(gke, "p"), sets(), func(f *preflight.Facts) { delete(f.ConfigMaps, "kube-system/kube-proxy") }}, "base", true, optIn, ""},
		{"GKE Autopilot", []change{label(gke, "p"), func(f *preflight.Facts) { f.Nodes[0].Name = "gk3-a" }}, "", false, "", ""},
		{"AKS", []change{label(aks, "c"), add(daemonSet("azure-cns", "cns", "azure-cns:v1"))}, "overlays/transparent", false, transparent, ""},
		{"AKS with Cilium", []change{label(aks, "c"), ciliumAlone("1.19.4")}, "base", true, optIn, ""},
		{
			"OpenShift",
			[]change{label("node.openshift.io/os_id", "rhel"), sets(daemonSet("ovnkube-node", "ovnkube-controller", "ovn")), dns("openshift-dns", "dns-default")},
			"base", true,
			"oc apply -f daemonset/openshift/scc.yaml", "",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := kubeadm()
			for _, c := range tt.changes {
				c(f)
			}
			r := preflight.Examine(f)
			got := r.Choice
			commands := slices.DeleteFunc(slices.Clone(got.Commands), func(c string) bool { return strings.HasPrefix(c, "# first") })
			first := ""
			if len(commands) > 0 {
				first = commands[0]
			}
			assert.Equal(t, "variant", tt.variant, got.Variant)
			assert.Equal(t, "opt-in", tt.optIn, got.OptIn)
			assert.Equal(t, "command", tt.command, first)
			page := ""
			if n := len(commands); n > 0 {
				_, page, _ = strings.Cut(commands[n-1], "docs/platforms/")
			}
			assert.Equal(t, "page", tt.page, page)
			if _, err := os.Stat("../../daemonset/" + got.Variant); err != nil {
				t.Error(err)
			}
			if page != "" {
				if _, err := os.Stat("../../docs/platforms/" + page); err != nil {
					t.Error(err)
				}
			}
			if t.Failed() {
				t.Log(r.Text())
			}
		})
	}
}

// TestChecks has what a change of a good cluster adds to the findings.
func TestChecks(t *testing.T) {
	t.Parallel()
	nodeLocal := daemonSet("node-local-dns", "node-cache", "registry.k8s.io/dns/k8s-dns-node-cache:1.26", "-localip", "169.254.20.10,10.96.0.10", "-conf", "/etc/Corefile")
	quota := func(hard string, value string, scopes ...corev1.ResourceQuotaScope) change {
		return func(f *preflight.Facts) {
			q := corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Scopes: scopes}}
			q.Status.Hard = corev1.ResourceList{corev1.ResourceName(hard): resource.MustParse(value)}
			f.Quotas = append(f.Quotas, q)
		}
	}
	for _, tt := range []struct {
		name    string
		changes []change
		want    []string // verdict, check: what
	}{
		{"an old API server", []change{version("v1.29.3")}, []string{"fail API server: v1.29.3"}},
		{"an API server that names no version", []change{version("x")}, []string{"unknown API server: version x"}},
		{"an old kubelet", []change{kubelet("v1.28.1")}, []string{"fail kubelets: older than 1.30: node1 (v1.28.1), node2 (v1.28.1)"}},
		{"kernels", []change{info(func(n *corev1.NodeSystemInfo) { n.KernelVersion = "5.4.0-1" })}, []string{"warn kernels: older than 5.12: node1 (5.4.0-1), node2 (5.4.0-1)"}},
		{"a kernel of 4.18", []change{func(f *preflight.Facts) { f.Nodes[0].Status.NodeInfo.KernelVersion = "4.18.0-553.el8" }}, []string{"warn kernels: older than 5.12: node1 (4.18.0-553.el8)"}},
		{"architectures", []change{func(f *preflight.Facts) { f.Nodes[1].Status.NodeInfo.Architecture = "s390x" }}, []string{"warn nodes: neither amd64 nor arm64: node2"}},
		{"Windows", []change{func(f *preflight.Facts) { f.Nodes[1].Status.NodeInfo.OperatingSystem = "windows" }}, []string{"warn nodes: with Windows: node2"}},
		{"only Windows", []change{info(func(n *corev1.NodeSystemInfo) { n.OperatingSystem = "windows" })}, []string{"fail nodes: no Linux node", "warn nodes: with Windows: node1, node2"}},
		{"Fargate", []change{func(f *preflight.Facts) { f.Nodes[1].Labels["eks.amazonaws.com/compute-type"] = "fargate" }}, []string{"warn nodes: virtual: node2"}},
		{"virtual-kubelet", []change{func(f *preflight.Facts) { f.Nodes[1].Labels["type"] = "virtual-kubelet" }}, []string{"warn nodes: virtual: node2"}},
		{"GKE Autopilot", []change{label(gke, "p"), func(f *preflight.Facts) { f.Nodes[0].Name = "gk3-a" }}, []string{"fail platform: GKE Autopilot refuses pods with the node's network"}},
		{"IPVS by a flag", []change{sets(daemonSet("kube-proxy", "kube-proxy", "p", "--proxy-mode=ipvs"))}, []string{"warn data plane: kube-proxy in mode ipvs"}},
		{"IPVS of k3s", []change{sets(), kubelet("v1.36.1+k3s1"), func(f *preflight.Facts) {
			f.Nodes[0].Annotations["k3s.io/node-args"] = `["server","--kube-proxy-arg","proxy-mode=ipvs"]`
		}}, []string{"warn data plane: kube-proxy in mode ipvs"}},
		{"kube-proxy without a configuration", []change{func(f *preflight.Facts) { delete(f.ConfigMaps, "kube-system/kube-proxy") }}, []string{"unknown data plane: kube-proxy, in a mode that was not read, by default iptables"}},
		{"no kube-proxy", []change{sets(), func(f *preflight.Facts) { delete(f.ConfigMaps, "kube-system/kube-proxy") }}, []string{"unknown data plane: nothing that forwards packets to Services was recognised"}},
		{"Calico", []change{add(daemonSet("calico-node", "calico-node", "c"))}, nil},
		{"Calico's eBPF", []change{add(daemonSet("calico-node", "calico-node", "c")), func(f *preflight.Facts) { f.CalicoBPF = true }}, []string{"warn data plane: kube-proxy in mode nftables, Calico's eBPF data plane (network: Calico)"}},
		{"OVN-Kubernetes", []change{sets(daemonSet("ovnkube-node", "ovnkube-controller", "o"))}, []string{"warn data plane: OVN-Kubernetes"}},
		{"kube-router as the proxy", []change{sets(daemonSet("kube-router", "kube-router", "k", "--run-router=true", "--run-service-proxy=true"))}, nil},
		{"Antrea as the proxy", []change{add(daemonSet("antrea-agent", "antrea-agent", "a")), func(f *preflight.Facts) {
			f.ConfigMaps["kube-system/antrea-config-7b"] = map[string]string{"antrea-agent.conf": "antreaProxy:\n  proxyAll: true\n"}
		}}, nil},
		{"Cilium 1.18 with BPF host routing", []change{ciliumAlone("v1.18.2", "enable-bpf-masquerade=true")}, []string{"fail Cilium: with BPF host routing it loses queries to the agents' address"}},
		{"Cilium 1.18 with the setting", []change{ciliumAlone("v1.18.2", "enable-bpf-masquerade=true", "local-max-addr-scope=254")}, nil},
		{"Cilium 1.18 with a lower setting", []change{ciliumAlone("v1.18.2", "enable-bpf-masquerade=true", "local-max-addr-scope=252")}, []string{"fail Cilium: with BPF host routing it loses queries to the agents' address"}},
		{"Cilium 1.18 with legacy host routing", []change{ciliumAlone("v1.18.2@sha256:12", "enable-bpf-masquerade=true", "enable-host-legacy-routing=true")}, []string{"warn Cilium: it takes the agents' address for the world: so do policies"}},
		{"Cilium 1.18 that redirects", []change{ciliumAlone("v1.18.2", "enable-bpf-masquerade=true", "enable-local-redirect-policy=true")}, nil},
		{"Cilium 1.19", []change{ciliumAlone("v1.19.0-rc.1", "enable-bpf-masquerade=true")}, nil},
		{"Cilium of an image without a version", []change{ciliumAlone("latest")}, []string{"unknown Cilium: its version or its settings"}},
		{"Cilium's host firewall", []change{ciliumAlone("v1.20.2", "enable-host-firewall=true")}, []string{"warn Cilium: the host firewall is on"}},
		{"no DNS Service", []change{func(f *preflight.Facts) { f.Services = nil }}, []string{"fail DNS Service: none found"}},
		{"no fallback", []change{func(f *preflight.Facts) {
			f.Slices = []discoveryv1.EndpointSlice{slice("kube-system", "kube-dns", discoveryv1.AddressTypeIPv4, 0)}
		}}, []string{"fail fallback: the DNS Service has no ready endpoint"}},
		{"one endpoint", []change{func(f *preflight.Facts) {
			f.Slices = []discoveryv1.EndpointSlice{slice("kube-system", "kube-dns", discoveryv1.AddressTypeIPv4, 1), slice("kube-system", "other", discoveryv1.AddressTypeIPv4, 5)}
		}}, []string{"warn fallback: the DNS Service has one ready endpoint"}},
		{"the fallback has one family", []change{dualStack, func(f *preflight.Facts) { f.Slices = f.Slices[:1] }}, []string{"warn fallback: no ready endpoint with an IPv6 address: no fallback over IPv6"}},
		{"a kubelet that lies", []change{func(f *preflight.Facts) {
			f.Services = append(f.Services, service("kube-system", "a", "10.96.0.66"), service("kube-system", "b", "10.96.0.67"))
			f.Services[2].Spec.Ports = []corev1.ServicePort{{Port: 53}}
			f.Kubelets["node1"] = preflight.Kubelet{ClusterDNS: []string{"10.96.0.66", "10.96.0.67", "x\x1b[2J"}, ClusterDomain: "a'b"}
		}}, nil},
		{"kubelets that name another Service", []change{func(f *preflight.Facts) {
			f.Services = append(f.Services, service("kube-system", "a", "10.96.0.66"), service("kube-system", "dns", "10.96.0.67"))
			f.Services[2].Spec.Ports = []corev1.ServicePort{{Port: 53}}
			f.Kubelets = map[string]preflight.Kubelet{"node1": {ClusterDNS: []string{"10.96.0.66", "10.96.0.67"}}}
		}}, []string{"fail fallback: the DNS Service has no ready endpoint"}},
		{"kubelets without clusterDNS", []change{func(f *preflight.Facts) { f.Kubelets = map[string]preflight.Kubelet{"node1": {}} }}, []string{"warn kubelets: no clusterDNS"}},
		{"kubelets name another server", []change{func(f *preflight.Facts) {
			f.Kubelets = map[string]preflight.Kubelet{"node1": {ClusterDNS: []string{"192.0.2.1"}}}
		}}, []string{"warn kubelets: clusterDNS: 192.0.2.1 (1 asked): not the DNS Service"}},
		{"two domains", []change{func(f *preflight.Facts) {
			f.Kubelets["node1"] = preflight.Kubelet{ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "corp.k8s."}
		}}, []string{"warn cluster domain: kubelets and DNS do not agree: cluster.local., corp.k8s."}},
		{"no Corefile", []change{func(f *preflight.Facts) { delete(f.ConfigMaps, "kube-system/coredns") }}, []string{"unknown Corefile: no ConfigMap of CoreDNS or kube-dns was found"}},
		{"a Corefile that is none", []change{func(f *preflight.Facts) { f.ConfigMaps["kube-system/coredns"]["Corefile"] = ". {\n kubernetes" }}, []string{"unknown Corefile: "}},
		{"a zone", []change{func(f *preflight.Facts) {
			f.ConfigMaps["kube-system/coredns"]["Corefile"] += "corp.example {\n forward . 192.0.2.1\n}\n"
		}}, []string{"warn zones: names that the cluster's DNS serves go to the default route: corp.example."}},
		{"the file of k3s", []change{func(f *preflight.Facts) {
			f.ConfigMaps["kube-system/coredns"]["Corefile"] = strings.Replace(corefile, "forward", "hosts /etc/coredns/NodeHosts {\n ttl 60\n fallthrough\n }\n import /etc/coredns/custom/*.override\n forward", 1) + "import /etc/coredns/custom/*.server\n"
			f.ConfigMaps["kube-system/coredns"]["NodeHosts"] = "192.0.2.1 node1\n"
		}}, []string{"warn zones: names in files of the cluster's DNS go to the default route: /etc/coredns/NodeHosts"}},
		{"a plugin without a counterpart", []change{func(f *preflight.Facts) {
			f.ConfigMaps["kube-system/coredns"]["Corefile"] = strings.Replace(corefile, "forward", "rewrite name regex (.*)\\.a\\.example {1}.b.example\n forward", 1)
		}}, []string{`warn zones: lines of the Corefile have no counterpart: rewrite name regex (.*)\.a\.example {1}.b.example`}},
		{"other upstreams", []change{func(f *preflight.Facts) {
			f.ConfigMaps["kube-system/coredns"]["Corefile"] = strings.Replace(corefile, "/etc/resolv.conf", "192.0.2.1 tls://192.0.2.2", 1)
		}}, []string{"warn zones: only the cluster's DNS asks these servers for other names: 192.0.2.1, tls://192.0.2.2"}},
		{"it is installed", []change{add(daemonSet("node-cache", "node-cache", "n"))}, []string{"warn installed: DaemonSet kube-system/node-cache"}},
		{"NodeLocal DNSCache", []change{add(nodeLocal)}, []string{"fail node-local DNS: NodeLocal DNSCache, DaemonSet kube-system/node-local-dns, on 2 nodes at 169.254.20.10, 10.96.0.10"}},
		{"LocalDNS of AKS", []change{label(aks, "c"), label("kubernetes.azure.com/localdns-state", "enabled")}, []string{"fail node-local DNS: LocalDNS of AKS, on 2 nodes"}},
		{"LocalDNS of AKS, off", []change{label(aks, "c"), label("kubernetes.azure.com/localdns-state", "disabled")}, nil},
		{"a server on the nodes", []change{func(f *preflight.Facts) {
			d := daemonSet("dnsmasq", "d", "d")
			d.Spec.Template.Spec.HostNetwork = true
			d.Spec.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 53}}
			add(d)(f)
		}}, []string{"warn ports: port 53 or 9253 of the nodes is used by DaemonSet kube-system/dnsmasq"}},
		{"pods with ports of the nodes", []change{func(f *preflight.Facts) {
			taker := func(name string, port corev1.ContainerPort) *corev1.Pod {
				p := pod("10.244.0.9")
				p.Namespace, p.Name, p.Spec.Containers = "shop", name, []corev1.Container{{Ports: []corev1.ContainerPort{port}}}
				return &p
			}
			ended, ofSet := taker("ended", corev1.ContainerPort{HostPort: 53}), taker("of-set", corev1.ContainerPort{HostPort: 53})
			ended.Status.Phase, ofSet.OwnerReferences = corev1.PodSucceeded, []metav1.OwnerReference{{Kind: "DaemonSet"}}
			f.Policies = &dnspolicy.Input{Pods: []corev1.Pod{
				*taker("host-port", corev1.ContainerPort{HostPort: 53}), *taker("of-its-own", corev1.ContainerPort{ContainerPort: 53}), *ended, *ofSet,
			}}
		}}, []string{"warn ports: port 53 or 9253 of the nodes is used by pod shop/host-port"}},
		{"the address is a node's", []change{func(f *preflight.Facts) {
			f.Nodes[0].Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "169.254.20.10"}}
		}}, []string{"fail address: 169.254.20.10 of the agents: node node1 has it"}},
		{"the address is in a range of pods", []change{onlySix, func(f *preflight.Facts) { f.Nodes[1].Spec.PodCIDRs = []string{"fd00::/64"} }}, []string{"fail address: fd00::10 of the agents: the range fd00::/64 of the pods of node node2 has it"}},
		{"the address is a Service's", []change{onlySix, func(f *preflight.Facts) { f.Services = append(f.Services, service("kube-system", "x", "fd00::10")) }}, []string{"fail address: fd00::10 of the agents: the Service kube-system/x has it"}},
		{"a Pod Security level", []change{func(f *preflight.Facts) {
			f.AgentNamespace.Labels = map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}
		}}, []string{"fail pod security: namespace kube-system enforces baseline"}},
		{"another namespace", []change{func(f *preflight.Facts) { f.Namespace = "dns" }}, []string{"unknown pod security: namespace dns has no level: that of the API server applies"}},
		{"no namespace", []change{func(f *preflight.Facts) { f.AgentNamespace = nil }}, []string{"unknown pod security: namespace kube-system does not exist"}},
		{"a quota of pods", []change{quota("pods", "1")}, []string{"fail quotas: ResourceQuota q leaves 1 of pods, and the agents of 2 nodes need 2"}},
		{"a large quota", []change{quota("pods", "1G")}, nil},
		{"a quota of memory", []change{quota("limits.memory", "200Mi")}, []string{"fail quotas: ResourceQuota q leaves 209715200 of limits.memory, and the agents of 2 nodes need 301989888"}},
		{"a quota of CPU limits", []change{quota("limits.cpu", "100")}, []string{"fail quotas: ResourceQuota q refuses pods without a CPU limit, which the agents do not have"}},
		{"a quota of other pods", []change{quota("pods", "0", corev1.ResourceQuotaScopeBestEffort)}, nil},
		{"a quota of pods without a priority class", []change{quota("pods", "0"), func(f *preflight.Facts) {
			f.Quotas[0].Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
				{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpDoesNotExist},
			}}
		}}, nil},
		{"a quota of pods with such affinity", []change{quota("pods", "0", corev1.ResourceQuotaScopeCrossNamespacePodAffinity)}, nil},
		{"a quota of pods that do not end", []change{quota("pods", "0", corev1.ResourceQuotaScopeNotTerminating)}, []string{"fail quotas: ResourceQuota q leaves 0 of pods, and the agents of 2 nodes need 2"}},
		{"a quota of another priority class", []change{quota("pods", "0"), func(f *preflight.Facts) {
			f.Quotas[0].Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
				{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{"low"}},
			}}
		}}, nil},
		{"a LimitRange", []change{func(f *preflight.Facts) {
			f.Limits = []corev1.LimitRange{{ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
				Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
				Default: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
			}}}}}
		}}, []string{"fail quotas: LimitRange l allows 128Mi memory, and the agents' limit is 144Mi", "warn quotas: LimitRange l gives the agents a CPU limit"}},
		{"permissions", []change{func(f *preflight.Facts) {
			*f = preflight.Facts{Namespace: "kube-system", Version: "v1.37.2", Unread: map[string]preflight.Unread{}}
			for _, p := range []string{
				preflight.ListNodes, preflight.ListDaemonSets, preflight.ListSystemPods, preflight.ListConfigMaps, preflight.ListServices,
				preflight.ListSlices, preflight.CountServices, preflight.GetNamespace, preflight.ListQuotas, preflight.GetKubeletConfig,
			} {
				f.Unread[p] = preflight.Unread{Why: "forbidden", Denied: true}
			}
		}}, append(slices.Repeat([]string{"unknown not read: forbidden"}, 10),
			"unknown data plane: nothing that forwards packets to Services was recognised", "unknown cluster domain: cluster.local is assumed")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := kubeadm()
			for _, c := range tt.changes {
				c(f)
			}
			r := preflight.Examine(f)
			var got []string
			for _, one := range r.Findings {
				if one.Verdict != preflight.OK && one.Hint == "" {
					t.Errorf("%s has no hint", one.Check)
				}
				if one.Verdict != preflight.OK && one.Check != "policies" {
					got = append(got, fmt.Sprintf("%s %s: %s", one.Verdict, one.Check, one.What))
				}
			}
			for i := range min(len(got), len(tt.want)) {
				if strings.HasSuffix(tt.want[i], ": ") && strings.HasPrefix(got[i], tt.want[i]) {
					got[i] = tt.want[i] // the text is another package's
				}
			}
			assert.Same(t, "findings", tt.want, got)
			failed := slices.ContainsFunc(tt.want, func(w string) bool { return strings.HasPrefix(w, "fail ") })
			assert.Equal(t, "failed", failed, r.Failed())
			if n := len(r.Choice.Commands); failed && n > 0 {
				assert.Equal(t, "first", "# first: the checks that failed", r.Choice.Commands[0])
			}
		})
	}
}

// TestText has the report of a good cluster, and texts of a hostile API server.
func TestText(t *testing.T) {
	t.Parallel()
	r := preflight.Examine(kubeadm())
	assert.Golden(t, "testdata/kubeadm.txt", r.Text())
	hostile := kubeadm()
	hostile.Version = "v1.37.2\x1b[2J\nok       all"
	hostile.Nodes[0].Status.NodeInfo.OSImage = "x\u202ey"
	hostile.Services[0].Name = "kube-dns\x1b[2J"
	hostile.ConfigMaps["kube-system/coredns"]["Corefile"] += "corp';reboot;'.example {\n forward . 192.0.2.1\n}\n"
	r = preflight.Examine(hostile)
	text := r.Text()
	if strings.ContainsAny(text, "\x1b\u202e") || strings.Contains(text, "\nok       all") {
		t.Errorf("not printable:\n%s", text)
	}
	for _, c := range r.Choice.Commands {
		if strings.Contains(c, "reboot") {
			t.Errorf("a command has a text of the Corefile: %s", c)
		}
	}
}

// TestManifests compares what the checks know of the agents with daemonset/base.
func TestManifests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../daemonset/base/daemonset.yaml")
	assert.NoError(t, err)
	var d appsv1.DaemonSet
	assert.NoError(t, yaml.Unmarshal(text, &d))
	r := d.Spec.Template.Spec.Containers[0].Resources
	assert.Equal(t, "request", preflight.AgentMemory, r.Requests.Memory().String())
	assert.Equal(t, "limit", preflight.AgentMemoryLimit, r.Limits.Memory().String())
	if _, has := r.Limits[corev1.ResourceCPU]; has {
		t.Error("the agents have a CPU limit")
	}
}
