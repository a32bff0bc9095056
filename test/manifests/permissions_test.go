// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
)

// What a service account may do, one line for each verb on a resource in a place.
const (
	localPermissions = `
everywhere: list services
everywhere: watch services
everywhere: list namespaces
everywhere: watch namespaces
everywhere: list endpointslices.discovery.k8s.io
everywhere: watch endpointslices.discovery.k8s.io`
	podPermissions = `
everywhere: list pods
everywhere: watch pods`
	importPermissions = `
everywhere: list serviceimports.multicluster.x-k8s.io
everywhere: watch serviceimports.multicluster.x-k8s.io`
	nodePermission = `
everywhere: get nodes`
	eventPermissions = `
kube-system: create events
kube-system: patch events`
	ciliumPermissions = `
kube-system: get daemonsets.apps cilium
kube-system: get configmaps cilium-config`
	agentPermissions   = eventPermissions + ciliumPermissions
	centralPermissions = `
kube-system: list services node-cache-resolver
kube-system: watch services node-cache-resolver
kube-system: list endpointslices.discovery.k8s.io
kube-system: watch endpointslices.discovery.k8s.io`
	reviewPermissions = `
everywhere: create subjectaccessreviews.authorization.k8s.io
everywhere: create tokenreviews.authentication.k8s.io`
	configMapPermissions = `
kube-system: list configmaps node-cache
kube-system: watch configmaps node-cache`
)

// TestPermissions lists the permissions of each service account, by kustomize and by the chart. That they are enough is shown where
// agents run with them: test/install.
func TestPermissions(t *testing.T) {
	t.Parallel()
	agent := localPermissions + nodePermission + agentPermissions
	for _, tt := range []struct {
		rendering string
		want      map[string]string
	}{
		{"base", map[string]string{"node-cache": agent}},
		{"transparent", map[string]string{"node-cache": agent}},
		{"dual-stack", map[string]string{"node-cache": agent}},
		{"ipv6", map[string]string{"node-cache": agent}},
		{"large-cluster", map[string]string{"node-cache": agent}},
		{"iptables", map[string]string{"node-cache": agent}},
		{"kernel", map[string]string{"node-cache": agent}},
		{"kube-dns", map[string]string{"node-cache": agent}},
		{"monitoring", map[string]string{"node-cache": agent}},
		{"metrics-secure", map[string]string{"node-cache": agent + reviewPermissions}},
		{"config-map", map[string]string{"node-cache": agent + configMapPermissions}},
		{"central", map[string]string{
			"node-cache": nodePermission + agentPermissions, "node-cache-resolver": localPermissions + eventPermissions,
		}},
		{"everything", map[string]string{
			"node-cache": nodePermission + agentPermissions + configMapPermissions, "node-cache-resolver": localPermissions + eventPermissions,
		}},
	} {
		t.Run(tt.rendering, func(t *testing.T) {
			t.Parallel()
			want := map[string][]string{}
			for account, lines := range tt.want {
				want[account] = sorted(strings.Split(strings.TrimSpace(lines), "\n"))
			}
			for _, text := range [][]byte{rendered(t, tt.rendering+byKustomize), rendered(t, tt.rendering+byHelm)} {
				same(t, "permissions of service accounts", want, permissions(t, text))
			}
		})
	}
}

// TestChartPermissions has what only the chart can set.
func TestChartPermissions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, set, want string
	}{
		{"pods: verified", "config.agent.cluster.pods=verified", localPermissions + nodePermission + agentPermissions + podPermissions},
		{"a cluster set", "config.agent.cluster.clusterSet=clusterset.local", localPermissions + nodePermission + agentPermissions + importPermissions},
		{"the pods of the node", "config.agent.pods.identity=api", localPermissions + nodePermission + agentPermissions + podPermissions},
		{"the pods of the node from the kubelet", "config.agent.pods.identity=kubelet", localPermissions + nodePermission + agentPermissions},
		{"the pods of the node from either", "config.agent.pods.identity=auto", localPermissions + nodePermission + agentPermissions + podPermissions},
		{"both", "config.agent.pods.identity=api,config.agent.cluster.pods=verified", localPermissions + nodePermission + agentPermissions + podPermissions},
		{"no zone", "config.agent.cluster.nodeZone=", localPermissions + agentPermissions},
		{"no zone, but federations", "config.agent.cluster.nodeZone=,config.agent.cluster.endpoints=all,config.agent.cluster.federations={myfed=example.com}", localPermissions + nodePermission + agentPermissions},
		{
			"events of Services", "config.agent.cluster.resolver=central,config.agent.cluster.invalidate=true,config.agent.cluster.central.service=dns/node-cache-resolver",
			nodePermission + agentPermissions + strings.ReplaceAll(centralPermissions, "kube-system", "dns") + "\neverywhere: list services\neverywhere: watch services",
		},
		{
			"a resolver elsewhere", "config.agent.cluster.resolver=central,config.agent.cluster.central.service=dns/node-cache-resolver",
			nodePermission + agentPermissions + strings.ReplaceAll(centralPermissions, "kube-system", "dns"),
		},
		{"no cluster", "config.agent.cluster=null,config.agent.intercept=null", agentPermissions + nodePermission},
		{"pages over TLS", "config.agent.admin.tls.address=0.0.0.0:9254", localPermissions + nodePermission + agentPermissions + reviewPermissions},
		{"pages over TLS for Prometheus", "config.agent.admin.tls.address=0.0.0.0:9254,monitoring.enabled=true", localPermissions + nodePermission + agentPermissions + reviewPermissions},
		{"another API server", "config.agent.cluster.kubeconfig=/etc/kubeconfig", eventPermissions},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want := map[string][]string{"node-cache": sorted(strings.Split(strings.TrimSpace(tt.want), "\n"))}
			if diff := cmp.Diff(want, permissions(t, chart(t, "--set", tt.set))); diff != "" {
				t.Errorf("--set %s: permissions of service accounts (-want +got):\n%s", tt.set, diff)
			}
		})
	}
	for set, added := range map[string]string{"pods=verified": podPermissions, "clusterSet=clusterset.local": importPermissions, "federations={myfed=example.com}": nodePermission} {
		got := permissions(t, chart(t, "--set", "resolver.enabled=true,config.resolver.cluster."+set))["node-cache-resolver"]
		want := sorted(strings.Split(strings.TrimSpace(localPermissions+eventPermissions+added), "\n"))
		same(t, set+" of the resolver: permissions", want, got)
	}
	resolver := permissions(t, chart(t, "--set", "resolver.enabled=true,config.resolver.admin.tls.address=0.0.0.0:9254"))["node-cache-resolver"]
	same(t, "admin.tls of the resolver: permissions", sorted(strings.Split(strings.TrimSpace(localPermissions+eventPermissions+reviewPermissions), "\n")), resolver)
	for name, added := range map[string]string{"pods": podPermissions, "cluster-set": importPermissions} {
		component := rendering{overlay: "base", components: []string{name}}.byKustomize(t)
		want := sorted(strings.Split(strings.TrimSpace(localPermissions+nodePermission+agentPermissions+added), "\n"))
		same(t, "component "+name+": permissions", want, permissions(t, component)["node-cache"])
	}
}

// permissions follows the bindings of a rendering to what they grant.
func permissions(t *testing.T, text []byte) map[string][]string {
	t.Helper()
	list := objects(t, text)
	granted := map[string][]string{}
	rules := map[string][]rbacv1.PolicyRule{}
	for _, r := range all[rbacv1.ClusterRole](t, list, "ClusterRole") {
		if r.AggregationRule != nil {
			t.Errorf("ClusterRole %s takes rules of others", r.Name)
		}
		rules["ClusterRole "+r.Name] = r.Rules
	}
	for _, r := range all[rbacv1.Role](t, list, "Role") {
		rules["Role "+r.Namespace+"/"+r.Name] = r.Rules
	}
	grant := func(place, role string, subjects []rbacv1.Subject) {
		if rules[role] == nil {
			t.Errorf("a binding to %s, which is not here", role)
		}
		for _, s := range subjects {
			if s.Kind != rbacv1.ServiceAccountKind || s.Namespace != namespace {
				t.Errorf("%s is granted to %s %s/%s", role, s.Kind, s.Namespace, s.Name)
			}
			granted[s.Name] = append(granted[s.Name], lines(place, rules[role])...)
		}
		delete(rules, role)
	}
	for _, b := range all[rbacv1.ClusterRoleBinding](t, list, "ClusterRoleBinding") {
		grant("everywhere", b.RoleRef.Kind+" "+b.RoleRef.Name, b.Subjects)
	}
	for _, b := range all[rbacv1.RoleBinding](t, list, "RoleBinding") {
		grant(b.Namespace, b.RoleRef.Kind+" "+b.Namespace+"/"+b.RoleRef.Name, b.Subjects)
	}
	delete(rules, "ClusterRole node-cache-metrics-reader") // for Prometheus, whose account the user knows
	for role := range rules {
		t.Errorf("%s is granted to no account", role)
	}
	for account := range granted {
		granted[account] = sorted(granted[account])
	}
	return granted
}

// lines writes rules out, with what stands for all as it is: no line of a table has a star.
func lines(place string, rules []rbacv1.PolicyRule) []string {
	var out []string
	for _, r := range rules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				if group != "" {
					resource += "." + group
				}
				for _, verb := range r.Verbs {
					line := fmt.Sprintf("%s: %s %s %s", place, verb, resource, strings.Join(r.ResourceNames, ","))
					out = append(out, strings.TrimSpace(line))
				}
			}
		}
		for _, url := range r.NonResourceURLs {
			out = append(out, place+": "+url)
		}
	}
	return out
}

func sorted(lines []string) []string {
	slices.Sort(lines)
	return lines
}
