// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/preflight"
)

// TestPreflightCommands renders the chart as preflight's commands do, and checks the agents' configuration.
func TestPreflightCommands(t *testing.T) {
	t.Parallel()
	dns := func(namespace, name string, addrs ...string) []corev1.Service {
		s := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		s.Spec.ClusterIP, s.Spec.ClusterIPs = addrs[0], addrs
		return []corev1.Service{s}
	}
	nodes := func(labels map[string]string) []corev1.Node {
		return []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node1", Labels: labels}}}
	}
	pods := func(addrs ...string) []corev1.Pod {
		p := corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		for _, a := range addrs {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
		}
		return []corev1.Pod{p}
	}
	proxy := map[string]map[string]string{"kube-system/kube-proxy": {"config.conf": "kind: KubeProxyConfiguration\n"}}
	gke := nodes(map[string]string{"cloud.google.com/gke-nodepool": "p"})
	for _, tt := range []struct {
		name  string
		facts preflight.Facts
		want  string // addresses, domain, zones, Service
	}{
		{"another Service and domain, and zones", preflight.Facts{Services: dns("kube-system", "coredns", "10.96.0.10"), ConfigMaps: map[string]map[string]string{
			"kube-system/coredns": {"Corefile": ". {\n kubernetes corp.k8s\n}\na.example b.example {\n forward . 192.0.2.1\n}\n"},
		}}, "169.254.20.10 corp.k8s. a.example. b.example. kube-system/coredns"},
		{"IPv6, large", preflight.Facts{SystemPods: pods("fd00::2"), ServiceCount: 9000}, "fd00::10 cluster.local. kube-system/kube-dns"},
		{"transparent, dual stack", preflight.Facts{Nodes: gke, ConfigMaps: proxy, SystemPods: pods("10.0.0.1", "fd00::2"), Services: dns("kube-system", "kube-dns", "10.96.0.10", "fd00:1::a")}, "169.254.20.10 fd00::10 cluster.local. kube-system/kube-dns"},
		{"transparent, IPv6", preflight.Facts{Nodes: gke, ConfigMaps: proxy, SystemPods: pods("fd00::2")}, "fd00::10 cluster.local. kube-system/kube-dns"},
		{"opt-in", preflight.Facts{Nodes: gke}, "169.254.20.10 cluster.local. kube-system/kube-dns"},
		{"opt-in, dual stack", preflight.Facts{Nodes: gke, SystemPods: pods("10.0.0.1", "fd00::2"), Services: dns("kube-system", "kube-dns", "10.96.0.10", "fd00:1::a")}, "169.254.20.10 fd00::10 cluster.local. kube-system/kube-dns"},
		{"OpenShift", preflight.Facts{
			Nodes: nodes(map[string]string{"node.openshift.io/os_id": "rhel"}), Services: dns("openshift-dns", "dns-default", "172.30.0.10"),
			DaemonSets: []appsv1.DaemonSet{{ObjectMeta: metav1.ObjectMeta{Name: "ovnkube-node"}}},
		}, "169.254.200.10 cluster.local. openshift-dns/dns-default"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.facts.Namespace, tt.facts.Version = namespace, "v1.37.2"
			report := preflight.Examine(&tt.facts)
			i := slices.IndexFunc(report.Choice.Commands, func(c string) bool { return strings.HasPrefix(c, "helm install ") })
			if i < 0 {
				t.Fatalf("no helm in %q", report.Choice.Commands)
			}
			words := strings.Fields(strings.NewReplacer("'", "", "daemonset/chart/", folder+"/chart/").Replace(report.Choice.Commands[i]))
			for _, o := range objects(t, chart(t, words[6:]...)) {
				if o.GetKind() != "ConfigMap" || o.GetName() != "node-cache" {
					continue
				}
				cfg, err := config.Parse([]byte(as[corev1.ConfigMap](t, o).Data["node-cache.yaml"]), config.Agent)
				must(t, err)
				var got []string
				for _, a := range cfg.Listen.Addresses {
					got = append(got, a.String())
				}
				got = append(append(append(got, cfg.ClusterDomain), cfg.Cluster.Zones...), cfg.Cluster.Central.Service.String())
				same(t, "configuration", tt.want, strings.Join(got, " "))
				return
			}
			t.Error("no ConfigMap")
		})
	}
}
