// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// A platform is what made the cluster.
type platform struct {
	name  string
	page  string // in docs/platforms
	fixed bool   // no setting of it changes the kubelets' clusterDNS

	isIt func(*Facts) bool
}

// platforms returns those that are known, the most particular first.
func platforms() []platform {
	return []platform{
		{openShift, "openshift.md", true, anyNode(hasLabel("node.openshift.io/os_id"))},
		{gkeAutopilot, "gke.md", true, anyNode(func(n *corev1.Node) bool {
			return hasLabel("cloud.google.com/gke-nodepool")(n) && strings.HasPrefix(n.Name, "gk3-")
		})},
		{"GKE", "gke.md", true, anyNode(hasLabel("cloud.google.com/gke-nodepool"))},
		{"AKS", "aks.md", true, anyNode(hasLabel("kubernetes.azure.com/cluster"))},
		{eksAutoMode, "eks.md", true, anyNode(func(n *corev1.Node) bool { return n.Labels["eks.amazonaws.com/compute-type"] == "auto" })},
		{"Bottlerocket", "bottlerocket.md", false, anyNode(image("Bottlerocket"))},
		{"EKS", "eks.md", false, anyNode(kubelet("-eks-"))},
		{"Talos", "talos.md", false, anyNode(image("Talos"))},
		{"RKE2", "rke2.md", false, anyNode(kubelet("+rke2"))},
		{"k3s", "k3s.md", false, anyNode(kubelet("+k3s"))},
		{"kind", "kind.md", false, anyNode(func(n *corev1.Node) bool { return strings.HasPrefix(n.Spec.ProviderID, "kind://") })},
		{"minikube", "minikube.md", false, anyNode(hasLabel("minikube.k8s.io/name"))},
		{"kOps", "kops.md", false, anyNode(hasLabel("kops.k8s.io/instancegroup"))},
		{"Kubespray", "kubespray.md", false, func(f *Facts) bool {
			return f.service("kube-system", "coredns") != nil && f.service("kube-system", "kube-dns") == nil && f.hasConfigMap("kubeadm-config")
		}},
		{"Flatcar", "flatcar.md", false, anyNode(image("Flatcar"))},
		{"kubeadm", "kubeadm.md", false, func(f *Facts) bool { return f.hasConfigMap("kubeadm-config") }},
	}
}

const (
	gkeAutopilot = "GKE Autopilot"
	eksAutoMode  = "EKS Auto Mode"
	openShift    = "OpenShift"
)

// findPlatform returns the platform; without a name it is none of those that are known.
func (f *Facts) findPlatform() platform {
	for _, p := range platforms() {
		if p.isIt(f) {
			return p
		}
	}
	return platform{page: "README.md"}
}

func anyNode(is func(*corev1.Node) bool) func(*Facts) bool {
	return func(f *Facts) bool { return slices.ContainsFunc(f.Linux(), is) }
}

func hasLabel(key string) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { _, has := n.Labels[key]; return has }
}

func image(begin string) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { return strings.HasPrefix(n.Status.NodeInfo.OSImage, begin) }
}

func kubelet(part string) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { return strings.Contains(n.Status.NodeInfo.KubeletVersion, part) }
}

func (f *Facts) hasConfigMap(name string) bool { return f.ConfigMaps["kube-system/"+name] != nil }

func (f *Facts) service(namespace, name string) *corev1.Service {
	i := slices.IndexFunc(f.Services, func(s corev1.Service) bool { return s.Namespace == namespace && s.Name == name })
	if i < 0 {
		return nil
	}
	return &f.Services[i]
}
