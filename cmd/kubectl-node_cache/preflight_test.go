// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cli"
)

// objects are a cluster of kubeadm with Calico's eBPF data plane, by the path of the request. It has no agents.
func objects() map[string]string {
	const list = `{"kind": "%s", "apiVersion": "%s", "metadata": {"remainingItemCount": 2499}, "items": [%s]}`
	of := func(kind, version string, items ...string) string {
		return fmt.Sprintf(list, kind, version, strings.Join(items, ","))
	}
	node := func(name string) string {
		return `{"metadata": {"name": "` + name + `"}, "status": {"nodeInfo": {"kubeletVersion": "v1.37.2", "operatingSystem": "linux", "architecture": "arm64", "kernelVersion": "6.18.1"}}}`
	}
	const system = "/api/v1/namespaces/kube-system"
	return map[string]string{
		"/version":                          `{"major": "1", "minor": "37", "gitVersion": "v1.37.2"}`,
		"/api/v1/nodes":                     of("NodeList", "v1", node("node1"), node("node2"), node("node3"), node("node4"), node("node5"), node("node6")),
		"/api/v1/nodes/node1/proxy/configz": `{"kubeletconfig": {"clusterDNS": ["10.96.0.10"], "clusterDomain": "corp.k8s"}}`,
		"/api/v1/nodes/node2/proxy/configz": `{"kubeletconfig": {"clusterDNS": ["10.96.0.10"], "clusterDomain": "corp.k8s"}}`,
		"/apis/apps/v1/daemonsets": of("DaemonSetList", "apps/v1", `{"metadata": {"namespace": "kube-system", "name": "kube-proxy"}}`,
			`{"metadata": {"namespace": "calico-system", "name": "calico-node"}}`,
			`{"metadata": {"namespace": "cilium", "name": "cilium"}, "spec": {"template": {"spec": {"containers": [{"name": "cilium-agent", "image": "cilium:v1.20.2"}]}}}}`),
		"/apis/crd.projectcalico.org/v1/felixconfigurations/default": `{"spec": {"bpfEnabled": true}}`,
		"/api/v1/namespaces/cilium/configmaps/cilium-config":         `{"kind": "ConfigMap", "apiVersion": "v1", "data": {"enable-host-firewall": "true"}}`,
		system:                     `{"kind": "Namespace", "apiVersion": "v1", "metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}`,
		system + "/resourcequotas": of("ResourceQuotaList", "v1", `{"metadata": {"name": "q"}, "status": {"hard": {"pods": "3"}}}`),
		system + "/limitranges":    of("LimitRangeList", "v1", `{"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}}]}}`),
		system + "/pods":           of("PodList", "v1", `{"status": {"phase": "Running", "podIPs": [{"ip": "fd00:1::1"}]}}`),
		system + "/configmaps": of("ConfigMapList", "v1", `{"metadata": {"namespace": "kube-system", "name": "coredns"}, "data": {"Corefile": ". {\n kubernetes corp.k8s in-addr.arpa ip6.arpa\n}\n"}}`,
			`{"metadata": {"namespace": "kube-system", "name": "kube-proxy"}, "data": {"config.conf": "kind: KubeProxyConfiguration\n"}}`),
		system + "/services": of("ServiceList", "v1", `{"metadata": {"namespace": "kube-system", "name": "coredns"}, "spec": {"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"]}}`),
		"/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices": of("EndpointSliceList", "discovery.k8s.io/v1",
			`{"metadata": {"namespace": "kube-system", "labels": {"kubernetes.io/service-name": "coredns"}}, "addressType": "IPv6", "endpoints": [{"addresses": ["fd00:1::1"]}, {"addresses": ["fd00:1::2"]}]}`),
		"/api/v1/services":                        of("ServiceList", "v1", `{}`),
		"/apis/networking.k8s.io/v1/servicecidrs": of("ServiceCIDRList", "networking.k8s.io/v1", `{"spec": {"cidrs": ["10.96.0.0/12", "fd00::/112"]}}`),
	}
}

// serveObjects serves objects and refuses the requests for which denied is true. It returns the flag for a kubeconfig.
func serveObjects(t *testing.T, objects map[string]string, denied func(path string) bool) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		text, code, reason := objects[r.URL.Path], http.StatusNotFound, metav1.StatusReasonNotFound
		if denied(r.URL.Path) {
			text, code, reason = "", http.StatusForbidden, metav1.StatusReasonForbidden
		}
		w.Header().Set("Content-Type", "application/json")
		if text != "" {
			_, _ = w.Write([]byte(text))
			return
		}
		w.WriteHeader(code)
		send(t, w, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Message: "no " + r.URL.Path, Code: int32(code)})
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a}}]\nclusters: [{name: a, cluster: {server: %s}}]\n", server.URL)
	assert.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return "--kubeconfig=" + file
}

// findings are the lines of a report, without the hints.
func findings(text string) []string {
	var list []string
	for line := range strings.Lines(text) {
		if line == "\n" {
			break
		}
		if !strings.HasPrefix(line, " ") {
			list = append(list, strings.Join(strings.Fields(line), " "))
		}
	}
	return list
}

func TestPreflight(t *testing.T) {
	t.Parallel()
	flag := serveObjects(t, objects(), func(string) bool { return false })
	got := command("preflight", flag)
	assert.Equal(t, "exit code", cli.ExitFailed, got.Code)
	assert.Equal(t, "errors", "", got.Stderr)
	assert.Same(t, "findings", []string{
		"ok API server v1.37.2",
		"ok nodes 6 with v1.37.2 arm64 Linux 6.18.1",
		"ok size 6 nodes, 2500 Services: the sizes of overlay large-cluster",
		"unknown platform none of those that are known",
		"warn data plane kube-proxy in mode iptables, Calico's eBPF data plane, Cilium 1.20.2 (network: Calico)",
		"warn Cilium the host firewall is on",
		"ok Cilium it takes the agents' address for one of the node",
		"ok DNS Service kube-system/coredns at 10.96.0.10",
		"ok fallback 2 ready endpoints",
		"ok kubelets clusterDNS: 10.96.0.10 (2 asked)",
		"ok IP families pods have IPv6 only",
		"ok cluster domain corp.k8s.",
		"ok zones the agent serves what the cluster's DNS serves",
		"ok node-local DNS none was recognised",
		"fail address fd00::10 of the agents: the range fd00::/112 of Services has it",
		"unknown policies they are not looked at",
		"fail pod security namespace kube-system enforces baseline",
		"fail quotas ResourceQuota q leaves 3 of pods, and the agents of 6 nodes need 6",
		"warn quotas LimitRange l gives the agents a CPU limit",
	}, findings(got.Stdout))
	got = command("preflight", flag, "-o", "json")
	var report struct {
		Findings []struct{ Check, Verdict, What, Hint string }
		Choice   struct {
			Variant  string
			Commands []string
		}
		NotKnown []string
	}
	assert.NoError(t, json.Unmarshal([]byte(got.Stdout), &report))
	if len(report.Findings) != 19 || report.Findings[18].Verdict != "warn" || report.Choice.Variant != "overlays/ipv6" || len(report.Choice.Commands) < 3 || len(report.NotKnown) == 0 {
		t.Errorf("got %+v", report)
	}
}

// TestPreflightDenied takes permissions away, one and all. It goes on with the others and names what is missing.
func TestPreflightDenied(t *testing.T) {
	t.Parallel()
	count := func(text string) int { return strings.Count("\n"+text, "\nunknown  not read ") }
	for path := range objects() {
		if path == "/version" {
			continue
		}
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			flag := serveObjects(t, objects(), func(p string) bool {
				return p == path || strings.HasSuffix(path, "/configz") && strings.HasSuffix(p, "/configz")
			})
			got := command("preflight", flag)
			if n := count(got.Stdout); n != 1 || !strings.Contains(got.Stdout, "hint: you need to ") || !strings.Contains(got.Stdout, "\nvariant ") {
				t.Errorf("%d permissions: %+v", n, got)
			}
		})
	}
	t.Run("all", func(t *testing.T) {
		t.Parallel()
		got := command("preflight", serveObjects(t, objects(), func(p string) bool { return p != "/version" }))
		if n := count(got.Stdout); n != 11 || got.Code != cli.ExitOK {
			t.Errorf("%d permissions: %+v", n, got)
		}
	})
	t.Run("a node that is not ready is not asked", func(t *testing.T) {
		t.Parallel()
		list := objects()
		list["/api/v1/nodes"] = strings.ReplaceAll(list["/api/v1/nodes"], `"status": {`, `"status": {"conditions": [{"type": "Ready", "status": "Unknown"}], `)
		got := command("preflight", serveObjects(t, list, func(p string) bool { return strings.HasSuffix(p, "/configz") }))
		if n := count(got.Stdout); n != 0 {
			t.Errorf("%d permissions: %+v", n, got)
		}
	})
	t.Run("no API server", func(t *testing.T) {
		t.Parallel()
		got := command("preflight", serveObjects(t, nil, func(string) bool { return false }))
		if got.Code != cli.ExitFailed || got.Stdout != "" || !strings.Contains(got.Stderr, "\nhint: ") {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("a kubelet that sends nonsense", func(t *testing.T) {
		t.Parallel()
		list := objects()
		list["/api/v1/nodes/node1/proxy/configz"] = "\x1b[2J"
		list["/api/v1/nodes/node2/proxy/configz"] = `{"kubeletconfig": {"clusterDNS": ["10.96.0.10"]}, "x": "` + strings.Repeat("x", maxReply) + `"}`
		got := command("preflight", serveObjects(t, list, func(string) bool { return false }))
		if n := count(got.Stdout); n != 1 || strings.Contains(got.Stdout, "\x1b") {
			t.Errorf("%d permissions: %+v", n, got)
		}
	})
}
