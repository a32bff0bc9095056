// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/nodecache/node-cache/internal/proctest"
)

// gkeLabel is on the nodes of a platform that does not let its users set the kubelets.
const gkeLabel = "cloud.google.com/gke-nodepool"

// testPreflight runs the plugin's preflight on a cluster without agents: as it is, where kube-proxy is no pod and has no ConfigMap; with the
// ConfigMap that kubeadm writes; and on nodes whose kubelets cannot be set. Nothing of it stays.
func (b *harness) testPreflight(t *testing.T, mode, variant string) {
	t.Helper()
	plugin := b.plugin(t)
	service := b.kubectl(t, "-n", "kube-system", "get", "service", "kube-dns", "-o", "jsonpath={.spec.clusterIP}")
	expect := func(name, verdict, plane, variant string) {
		out, err := output(t, plugin("preflight -o json"))
		var report struct {
			Findings []struct{ Check, Verdict, What string }
			Choice   struct {
				Variant  string
				Commands []string
			}
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if report.Choice.Variant != variant || !slices.Contains(report.Choice.Commands, "kubectl apply -k daemonset/"+variant) {
			t.Errorf("%s: the choice is %+v, want %s", name, report.Choice, variant)
		}
		found := map[string]string{}
		for _, f := range report.Findings {
			found[f.Check] = f.Verdict + " " + f.What
		}
		for check, want := range map[string]string{
			"data plane": verdict + " " + plane, "fallback": "ok 2 ready endpoints", "cluster domain": "ok cluster.local.",
			"zones": "ok the agent serves what the cluster's DNS serves", "kubelets": "ok clusterDNS: " + service + " (2 asked)",
		} {
			if found[check] != want {
				t.Errorf("%s: %s: %q, want %q", name, check, found[check], want)
			}
		}
		proctest.Figure(t, "preflight, %s: %s", name, report.Choice.Variant)
	}
	expect("as it is", "unknown", "nothing that forwards packets to Services was recognised", variant)
	config := "config.conf=apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: " + mode + "\n"
	b.kubectl(t, "-n", "kube-system", "create", "configmap", "kube-proxy", "--from-literal="+config)
	defer b.kubectl(t, "-n", "kube-system", "delete", "configmap", "kube-proxy")
	expect("kube-proxy in mode "+mode, "ok", "kube-proxy in mode "+mode, variant)
	if variant != "base" {
		return // of two families the commands are those of the chart: test/manifests renders it so
	}
	b.kubectl(t, "label", "nodes", "--all", gkeLabel+"=pool")
	defer b.kubectl(t, "label", "nodes", "--all", gkeLabel+"-")
	expect("kubelets that cannot be set", "ok", "kube-proxy in mode "+mode, "overlays/transparent")
}
