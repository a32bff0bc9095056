// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Namespace returns a namespace.
func Namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// Node returns a node in a zone. The EndpointSlice controller leaves out pods whose node does not exist.
func Node(name, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone, corev1.LabelHostname: name},
	}}
}

// A Pod describes a pod that runs on a node. To delete one, set a grace period of 0: no kubelet confirms its end.
type Pod struct {
	Namespace, Name string
	Labels          map[string]string // what selectors match
	Node            string
	IPs             []netip.Addr // of one family or of both, the first family first; none while the pod starts
	Ports           []corev1.ContainerPort
	Hostname        string // with Subdomain, the pod has a name of its own below the headless service Subdomain
	Subdomain       string
	NotReady        bool
}

// Object returns the pod with the status that a kubelet would give it, for [Apply].
func (p Pod) Object() *corev1.Pod {
	ready := corev1.ConditionTrue
	if p.NotReady {
		ready = corev1.ConditionFalse
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels},
		Spec: corev1.PodSpec{
			NodeName: p.Node, Hostname: p.Hostname, Subdomain: p.Subdomain,
			Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1", Ports: p.Ports}},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
		},
	}
	for i, ip := range p.IPs {
		if i == 0 {
			pod.Status.PodIP = ip.String()
		}
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip.String()})
	}
	return pod
}
