// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/config"
)

// valuesFile writes values as people do. Helm reads its numbers another way than those of --set: as floats.
func valuesFile(t *testing.T, text string) string {
	t.Helper()
	return proctest.WriteFile(t, filepath.Join(t.TempDir(), "values.yaml"), text)
}

// TestNumbersOfAFile writes as numbers, into a file, what may be one.
func TestNumbersOfAFile(t *testing.T) {
	t.Parallel()
	list := objects(t, chart(t, "-f", valuesFile(t, `
config:
  agent:
    cache: {size: 134217728}
    snapshot: {size: 33554432}
    limits: {waiting: 3000000}
  resolver:
    cache: {size: 134217728}
resources:
  requests: {cpu: 0.5, memory: 134217728}
  limits: {cpu: 0.5, memory: 268435456}
resolver:
  enabled: true
  resources:
    requests: {memory: 1073741824}
`)))
	configs := configurations(t, list)
	got := configs["node-cache"]
	want := [...]int64{128 << 20, 32 << 20, 3_000_000, 128 << 20}
	if got := [...]int64{got.Cache.Size, got.Snapshot.Size, int64(got.Limits.Waiting), configs["node-cache-resolver"].Cache.Size}; got != want {
		t.Errorf("cache.size, snapshot.size, limits.waiting and the resolver's cache.size are %v, want %v", got, want)
	}
	wantMemory := map[string][2]int64{"node-cache": {128 << 20, 256 << 20}, "node-cache-resolver": {1 << 30, 1 << 30}}
	for _, w := range workloads(t, list) {
		cfg, has := configs[w.name]
		if !has {
			continue
		}
		checkAgreement(t, &w.spec, &cfg)
		r := w.spec.Containers[0].Resources
		same(t, w.name+" requests and has at most", wantMemory[w.name], [2]int64{r.Requests.Memory().Value(), r.Limits.Memory().Value()})
	}
}

// TestNumbersOfAFileRefused shows that they are compared too, and shown as they were written.
func TestNumbersOfAFileRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, want string }{
		{"too little memory", "resources: {limits: {memory: 104857600}}", "resources.limits.memory: 104857600 is too little"},
		{"more memory requested than allowed", "resources: {requests: {memory: 268435456}, limits: {memory: 150994944}}", "resources.requests.memory: 268435456 is more than resources.limits.memory, 150994944"},
		{"a fraction for a size", "config: {agent: {cache: {size: 1.5}}}", "'/config/agent/cache/size'"},
		{"a low limit for CPU", "resources: {limits: {cpu: 0.1}}", "resources.limits.cpu: 0.1: with so little"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := template(t, "-f", valuesFile(t, tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v, want %q", tt.text, err, tt.want)
			}
		})
	}
}

// TestRequestRaisesTheLimit asks for more memory than is worked out, in every form that a request may have.
func TestRequestRaisesTheLimit(t *testing.T) {
	t.Parallel()
	for request, want := range map[string]string{
		"1.5Gi": "1536Mi", "0.2Gi": "205Mi", "0.5G": "477Mi", "1Gi": "1Gi", "209715201": "201Mi", "209715200000m": "200Mi", "0.1Gi": "144Mi",
	} {
		t.Run(request, func(t *testing.T) {
			t.Parallel()
			for _, d := range all[appsv1.DaemonSet](t, objects(t, chart(t, "--set", "resources.requests.memory="+request)), "DaemonSet") {
				r := d.Spec.Template.Spec.Containers[0].Resources
				if r.Requests.Memory().Cmp(*r.Limits.Memory()) > 0 || r.Limits.Memory().String() != want {
					t.Errorf("a request of %s and a limit of %s, want %s", r.Requests.Memory(), r.Limits.Memory(), want)
				}
			}
		})
	}
}

// TestResolverHoldsItsSnapshot gives the resolver a folder for one: the kubelet ends a pod that has more than a volume's
// limit in it.
func TestResolverHoldsItsSnapshot(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]string{
		"config.resolver.cache.size=64Mi":                                                                  "8Mi",
		"config.resolver.snapshot.folder=/var/lib/node-cache/snapshot":                                     "40Mi",
		"config.resolver.snapshot.folder=/var/lib/node-cache,config.resolver.snapshot.size=100000001":      "199Mi",
		"config.resolver.snapshot.folder=/var/lib/node-cache/snapshot,config.resolver.snapshot.size=256Mi": "520Mi",
	} {
		t.Run(set, func(t *testing.T) {
			t.Parallel()
			list := objects(t, chart(t, "--set", "resolver.enabled=true,"+set))
			cfg := configurations(t, list)["node-cache-resolver"]
			for _, w := range workloads(t, list) {
				if w.name != "node-cache-resolver" {
					continue
				}
				checkAgreement(t, &w.spec, &cfg)
				for _, v := range w.spec.Volumes {
					if v.EmptyDir != nil && v.EmptyDir.SizeLimit.String() != want {
						t.Errorf("volume %s holds %s, want %s", v.Name, v.EmptyDir.SizeLimit, want)
					}
				}
			}
		})
	}
}

// TestTestPodTolerates has `helm test` tolerate what the agents do, but for nodes that are gone: what they do not tolerate has no
// agent to ask.
func TestTestPodTolerates(t *testing.T) {
	t.Parallel()
	const everywhere, effect = corev1.TolerationOpExists, corev1.TaintEffectNoSchedule
	edge := corev1.Toleration{Key: "edge", Operator: corev1.TolerationOpEqual, Value: "yes"}
	for _, tt := range []struct {
		name, values string
		want         []corev1.Toleration
	}{
		{"everything", "", []corev1.Toleration{{Operator: everywhere, Effect: effect}}},
		{"nothing", "tolerations: null", nil},
		{"one taint", "tolerations: [{key: edge, operator: Equal, value: 'yes'}]", []corev1.Toleration{edge}},
		{"each effect by itself", "tolerations: [{operator: Exists, effect: NoExecute}, {operator: Exists, effect: NoSchedule}]", []corev1.Toleration{{Operator: everywhere, Effect: effect}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, p := range all[corev1.Pod](t, objects(t, chart(t, "-f", valuesFile(t, tt.values))), "Pod") {
				same(t, "tolerations", tt.want, p.Spec.Tolerations)
			}
		})
	}
}

// TestVirtualNodes puts what daemonset/README.md has for virtual nodes where it says.
func TestVirtualNodes(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(filepath.Join(folder, "README.md"))
	must(t, err)
	_, text, _ := strings.Cut(string(readme), "- **Virtual nodes**")
	_, text, _ = strings.Cut(text, "```yaml\n")
	text, _, has := strings.Cut(text, "  ```\n")
	if !has {
		t.Fatal("no such part, or no YAML in it")
	}
	text = strings.ReplaceAll("\n"+text, "\n  ", "\n")
	sources := map[string][]byte{"chart": chart(t, "-f", valuesFile(t, text))}
	for overlay, name := range map[string]string{"base": "node-cache", "uninstall": "node-cache-cleanup"} {
		dir := rendering{overlay: overlay}.kustomization(t)
		path := filepath.Join(dir, "kustomization.yaml")
		kustomization, err := os.ReadFile(path)
		must(t, err)
		patch := "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: " + name + ", namespace: kube-system}\nspec:\n  template:\n    spec:" +
			strings.ReplaceAll(text, "\n", "\n      ")
		for file, text := range map[string]string{path: string(kustomization) + "patches: [{path: patch.yaml}]\n", filepath.Join(dir, "patch.yaml"): patch} {
			proctest.WriteFile(t, file, text)
		}
		sources[overlay] = kustomize(t, dir)
	}
	want := []corev1.NodeSelectorRequirement{
		{Key: "eks.amazonaws.com/compute-type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"fargate"}},
		{Key: "type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"virtual-kubelet"}},
	}
	for name, source := range sources {
		for _, w := range workloads(t, objects(t, source)) {
			if w.spec.Affinity == nil {
				t.Errorf("%s: %s goes everywhere", name, w.name)
				continue
			}
			terms := w.spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			if diff := cmp.Diff([]corev1.NodeSelectorTerm{{MatchExpressions: want}}, terms); diff != "" {
				t.Errorf("%s: %s (-want +got):\n%s", name, w.name, diff)
			}
		}
	}
}

// TestNamesOfWhatIsNotMade takes for volumes and mounts of a user what the chart has with other values only.
func TestNamesOfWhatIsNotMade(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, path, with string }{
		{"kube-dns", "/etc/kube-dns", "config.kubeDNS=kube-dns"},
		{"xtables-lock", "/run/xtables.lock", "image.variant=iptables"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			volume, mount := "extraVolumes[0].name="+tt.name, "extraVolumeMounts[0].name=mine,extraVolumeMounts[0].mountPath="+tt.path
			for set, refused := range map[string]string{volume: "extraVolumes: " + tt.name + ": the chart has", mount: "extraVolumeMounts: " + tt.path + ": the chart mounts"} {
				if _, err := template(t, "--set", set); err != nil {
					t.Errorf("--set %s: %v", set, err)
				}
				if _, err := template(t, "--set", set+","+tt.with); err == nil || !strings.Contains(err.Error(), refused) {
					t.Errorf("--set %s,%s: %v, want %q", set, tt.with, err, refused)
				}
			}
		})
	}
}

// TestDurationsLikeTheProgram takes every form of a duration that the program takes, for as long.
func TestDurationsLikeTheProgram(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"1.5s500000us", "2000000µs", "2000000μs", "2000000000ns", "+2s", ".5s1500ms", "2.s"} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			set := "config.agent.limits.deadline=" + text + ",terminationGracePeriodSeconds="
			cfg, err := config.Parse([]byte("limits: {deadline: "+text+"}\n"), config.Agent)
			if err != nil || cfg.Limits.Deadline.Seconds() != 2 {
				t.Fatalf("the program reads %s, and says %v", cfg.Limits.Deadline, err)
			}
			if _, err := template(t, "--set", set+"16"); err != nil {
				t.Error(err)
			}
			if _, err := template(t, "--set", set+"15"); err == nil || !strings.Contains(err.Error(), "16 at least") {
				t.Errorf("with 15 s to end: %v, want 16 at least", err)
			}
		})
	}
}
