// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// optInLabel of a namespace or a pod says whether its pods ask the agent.
const optInLabel = "node-cache.io/dns"

// TestOptIn shows pods to a real API server with the policy that gives them the agent's address, by kustomize and by the chart.
func TestOptIn(t *testing.T) {
	t.Parallel()
	for _, by := range []string{byKustomize, byHelm} {
		t.Run(strings.Trim(by, " ()"), func(t *testing.T) {
			t.Parallel()
			c := kubetest.Start(t, kubetest.Options{})
			var policies []byte
			for _, o := range objects(t, rendered(t, "opt-in"+by)) {
				if !strings.HasPrefix(o.GetKind(), "MutatingAdmissionPolicy") {
					continue
				}
				text, err := o.MarshalJSON()
				must(t, err)
				policies = append(append(policies, text...), '\n')
			}
			_, err := run(t.Context(), policies, program(t, "kube"), "kubectl", "--kubeconfig", c.Kubeconfig(kubetest.Admin), "create", "--validate=strict", "-f", "-")
			must(t, err)
			testOptIn(t, c)
		})
	}
}

func testOptIn(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	for name, labels := range map[string]map[string]string{"shop": {optInLabel: "on"}, "other": nil, "left": {optInLabel: "off"}} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		_, err := c.Client().CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
		must(t, err)
	}
	create := func(t *testing.T, namespace string, change func(*corev1.Pod)) *corev1.Pod {
		t.Helper()
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "image"}}},
		}
		if change != nil {
			change(pod)
		}
		made, err := c.Client().CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		must(t, err)
		return made
	}
	proctest.Eventually(t, time.Minute, "the policy is in force", func() bool { return create(t, "shop", nil).Spec.DNSPolicy == corev1.DNSNone })

	// Its cost is bounded: the server ends an expression that takes too long, and then refuses the pod as without the policy.
	long := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "main", Image: "image"}}, DNSConfig: &corev1.PodDNSConfig{Searches: numbered("d%d.example", 20_000)},
	}}
	_, err := c.Client().CoreV1().Pods("shop").Create(t.Context(), long, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.dnsConfig.searches") {
		t.Errorf("20,000 searches: %.200v, want the server's own refusal", err)
	}

	five := "5"
	shop := &corev1.PodDNSConfig{
		Nameservers: []string{"169.254.20.10"},
		Searches:    []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local"},
		Options:     []corev1.PodDNSConfigOption{{Name: "ndots", Value: &five}},
	}
	with := func(change func(*corev1.PodDNSConfig)) *corev1.PodDNSConfig {
		d := shop.DeepCopy()
		change(d)
		return d
	}
	for _, tt := range []struct {
		name, namespace string
		pod             func(*corev1.Pod)
		want            *corev1.PodDNSConfig // nil: the pod stays as it is
	}{
		{"a namespace that is in", "shop", nil, shop},
		{"another namespace", "other", nil, nil},
		{"a namespace that is out", "left", nil, nil},
		{"one pod", "other", label("on"), with(func(d *corev1.PodDNSConfig) { d.Searches[0] = "other.svc.cluster.local" })},
		{"one pod of a namespace that is out", "left", label("on"), with(func(d *corev1.PodDNSConfig) { d.Searches[0] = "left.svc.cluster.local" })},
		{"both labels", "shop", label("on"), shop},
		{"a pod that is out", "shop", label("off"), nil},
		{"an unknown label", "shop", label("maybe"), shop},
		{"the node's network", "shop", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, nil},
		{"the node's network, with the cluster's DNS", "shop", func(p *corev1.Pod) {
			p.Spec.HostNetwork, p.Spec.DNSPolicy = true, corev1.DNSClusterFirstWithHostNet
		}, nil},
		{"the policy for the node's network without it", "shop", func(p *corev1.Pod) { p.Spec.DNSPolicy = corev1.DNSClusterFirstWithHostNet }, shop},
		{"the node's DNS", "shop", func(p *corev1.Pod) { p.Spec.DNSPolicy = corev1.DNSDefault }, nil},
		{"its own DNS", "shop", func(p *corev1.Pod) {
			p.Spec.DNSPolicy, p.Spec.DNSConfig = corev1.DNSNone, &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}}
		}, nil},
		{"Windows", "shop", func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }, nil},
		{"a static pod", "shop", func(p *corev1.Pod) {
			p.Annotations, p.Spec.NodeName = map[string]string{"kubernetes.io/config.mirror": "x"}, "node1"
		}, nil},
		{"an init container", "shop", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "image"}}
		}, shop},
		{"aliases, a host name", "shop", func(p *corev1.Pod) {
			p.Spec.HostAliases = []corev1.HostAlias{{IP: "192.0.2.1", Hostnames: []string{"a"}}}
			p.Spec.Hostname, p.Spec.Subdomain = "web-0", "web"
		}, shop},
		{"searches and options", "shop", func(p *corev1.Pod) {
			two := "2"
			p.Spec.DNSConfig = &corev1.PodDNSConfig{
				Searches: []string{"corp.example", "cluster.local", "corp.example"},
				Options:  []corev1.PodDNSConfigOption{{Name: "edns0"}, {Name: "ndots", Value: &two}},
			}
		}, with(func(d *corev1.PodDNSConfig) {
			two := "2"
			d.Searches = append(d.Searches, "corp.example")
			d.Options = []corev1.PodDNSConfigOption{{Name: "edns0"}, {Name: "ndots", Value: &two}}
		})},
		{"an option", "shop", func(p *corev1.Pod) {
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "single-request"}}}
		}, with(func(d *corev1.PodDNSConfig) {
			d.Options = append(d.Options, corev1.PodDNSConfigOption{Name: "single-request"})
		})},
		{"as many nameservers as a pod may have", "shop", func(p *corev1.Pod) {
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}}
		}, with(func(d *corev1.PodDNSConfig) { d.Nameservers = append(d.Nameservers, "192.0.2.1", "192.0.2.2") })},
		{"the agent's address", "shop", func(p *corev1.Pod) {
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"169.254.20.10"}}
		}, shop},
		{"as many searches as a pod may have", "shop", func(p *corev1.Pod) {
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Searches: numbered("d%d.example", 32)}
		}, with(func(d *corev1.PodDNSConfig) { d.Searches = append(d.Searches, numbered("d%d.example", 29)...) })},
		{"searches as long as a pod may have", "shop", func(p *corev1.Pod) {
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Searches: longSearches()}
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			asked := &corev1.Pod{}
			if tt.pod != nil {
				tt.pod(asked)
			}
			made := create(t, tt.namespace, tt.pod)
			policy, want := corev1.DNSNone, tt.want
			if want == nil {
				policy, want = asked.Spec.DNSPolicy, asked.Spec.DNSConfig
				if policy == "" {
					policy = corev1.DNSClusterFirst
				}
			}
			if made.Spec.DNSPolicy != policy {
				t.Errorf("dnsPolicy %s, want %s", made.Spec.DNSPolicy, policy)
			}
			if diff := cmp.Diff(want, made.Spec.DNSConfig); diff != "" {
				t.Errorf("dnsConfig (-want +got):\n%s", diff)
			}
		})
	}
}

// label returns a change that gives a pod the label.
func label(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{optInLabel: value} }
}

func numbered(format string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(format, i)
	}
	return list
}

// longSearches are 2,048 characters, with the spaces between them.
func longSearches() []string {
	list := make([]string, 16)
	for i := range list {
		list[i] = strings.Repeat("a", 63) + "." + strings.Repeat(string(rune('b'+i)), 63) // 127
	}
	list[15] = strings.Replace(list[15], "a", "a.", 1)
	return list
}
