// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodecache/node-cache/pkg/dnspolicy"
)

// What is read, by the permission that it needs: the keys of Facts.Unread.
const (
	ListNodes        = "list nodes"
	ListDaemonSets   = "list daemonsets in all namespaces"
	ListSystemPods   = "list pods in kube-system"
	ListConfigMaps   = "list configmaps in kube-system"
	ListServices     = "list services in kube-system"
	ListServiceCIDRs = "list servicecidrs.networking.k8s.io"
	ListSlices       = "list endpointslices in kube-system"
	ListOpenShift    = "get service and configmap dns-default, and list endpointslices, in openshift-dns"
	CountServices    = "list services in all namespaces"
	GetNamespace     = "get the namespace of the agents"
	ListQuotas       = "list resourcequotas and limitranges in the namespace of the agents"
	GetFelix         = "get felixconfigurations.crd.projectcalico.org"
	GetCiliumConfig  = "get configmap cilium-config in the namespace of Cilium"
	GetKubeletConfig = "get nodes/proxy"
	ListPolicies     = "list pods, namespaces and all kinds of network policies in all namespaces"
)

// Facts are objects of a cluster.
type Facts struct {
	Namespace string // of the agents
	Version   string // of the API server, such as v1.37.2

	Nodes      []corev1.Node
	Kubelets   map[string]Kubelet // of some nodes, by name
	DaemonSets []appsv1.DaemonSet // of all namespaces
	SystemPods []corev1.Pod       // of kube-system

	ConfigMaps map[string]map[string]string // data by namespace/name: of kube-system, dns-default of OpenShift, and cilium-config

	Services     []corev1.Service            // of kube-system, and dns-default of OpenShift
	Slices       []discoveryv1.EndpointSlice // of the same namespaces
	ServiceCount int64                       // in all namespaces
	ServiceCIDRs []string                    // ranges of Services; Kubernetes before 1.33 does not say

	AgentNamespace *corev1.Namespace // nil: it does not exist
	Quotas         []corev1.ResourceQuota
	Limits         []corev1.LimitRange

	CalicoBPF bool // bpfEnabled of the FelixConfiguration default; false: it is off, or there is none

	Policies *dnspolicy.Input // pods, namespaces and policies of all namespaces; nil: not read

	Unread map[string]Unread // by the permission
}

// Unread is why something could not be read.
type Unread struct {
	Why    string
	Denied bool // the permission is missing
}

// A Kubelet is a part of a kubelet's configuration.
type Kubelet struct {
	ClusterDNS    []string `json:"clusterDNS"`
	ClusterDomain string   `json:"clusterDomain"`
}

// Linux returns the nodes that can run an agent.
func (f *Facts) Linux() (list []*corev1.Node) {
	for i := range f.Nodes {
		if n := &f.Nodes[i]; !isVirtual(n) && n.Status.NodeInfo.OperatingSystem != "windows" {
			list = append(list, n)
		}
	}
	return list
}

// isVirtual reports whether no pod of a node has the node's network.
func isVirtual(n *corev1.Node) bool {
	return n.Labels["eks.amazonaws.com/compute-type"] == "fargate" || n.Labels["type"] == "virtual-kubelet"
}

// reads reports whether what needs a permission was read.
func (f *Facts) reads(permission string) bool {
	_, unread := f.Unread[permission]
	return !unread
}
