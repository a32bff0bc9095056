// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodecache/node-cache/pkg/config"
)

// TestChartMatchesKustomize compares what the two ways to install give, object by object. Some things differ, and are taken away
// here: labels that Helm's conventions ask for, the checksum of keys that need a restart, and the text of configurations, which the
// chart writes without comments and in the order of the alphabet. What Helm runs as hooks kustomize does not have.
func TestChartMatchesKustomize(t *testing.T) {
	t.Parallel()
	for _, r := range renderings() {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			want := byID(t, objects(t, rendered(t, r.name+byKustomize)))
			got := byID(t, withoutHelm(t, objects(t, rendered(t, r.name+byHelm))))
			if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
				t.Fatalf("objects (-kustomize +chart):\n%s", diff)
			}
			for name := range want {
				if diff := cmp.Diff(want[name], got[name]); diff != "" {
					t.Errorf("%s (-kustomize +chart):\n%s", name, diff)
				}
			}
		})
	}
}

// byID has objects by what they are, with configurations read and written out whole.
func byID(t *testing.T, list []*unstructured.Unstructured) map[string]any {
	t.Helper()
	known := map[string]any{}
	for _, o := range list {
		if known[id(o)] != nil {
			t.Fatalf("%s: rendered twice", id(o))
		}
		if text, is := configText(o); is {
			_ = unstructured.SetNestedField(o.Object, "read below", "data", configKey)
			known[id(o)+", as it is read"] = strings.Split(fullConfig(t, parsed(t, o, text)), "\n")
		}
		if o.GetKind() == "DaemonSet" || o.GetKind() == "Deployment" { // TestRestartKeys
			unstructured.RemoveNestedField(o.Object, "spec", "template", "metadata", "annotations")
		}
		known[id(o)] = o.Object
	}
	return known
}

// fullConfig writes a configuration out with every key.
func fullConfig(t *testing.T, cfg config.Config) string {
	t.Helper()
	text, err := config.Marshal(cfg)
	must(t, err)
	return string(text)
}

// withoutHelm takes hooks away, and the labels that Helm's objects have beside the others, which must be there.
func withoutHelm(t *testing.T, list []*unstructured.Unstructured) []*unstructured.Unstructured {
	t.Helper()
	helm := map[string]string{
		"app.kubernetes.io/instance": "node-cache", "app.kubernetes.io/managed-by": "Helm",
		"app.kubernetes.io/version": "v0.7.0", "helm.sh/chart": "node-cache-0.7.0",
	}
	var kept []*unstructured.Unstructured
	for _, o := range list {
		if o.GetAnnotations()["helm.sh/hook"] != "" {
			continue
		}
		labels := o.GetLabels()
		for key, want := range helm {
			if labels[key] != want {
				t.Errorf("%s: label %s is %q, want %q", id(o), key, labels[key], want)
			}
			delete(labels, key)
		}
		o.SetLabels(labels)
		kept = append(kept, o)
	}
	return kept
}

// configKey is the key of a ConfigMap that holds a configuration.
const configKey = "node-cache.yaml"

// configText gives the configuration in a ConfigMap.
func configText(o *unstructured.Unstructured) (string, bool) {
	text, is, _ := unstructured.NestedString(o.Object, "data", configKey)
	return text, is && o.GetKind() == "ConfigMap"
}

// TestChartHasTheFiles compares the chart's copies of files of daemonset/monitoring and component metrics-secure with them.
func TestChartHasTheFiles(t *testing.T) {
	t.Parallel()
	for _, original := range []string{
		"monitoring/podmonitor.yaml", "monitoring/prometheusrule.yaml", "monitoring/dashboard.json",
		"components/metrics-secure/secure.yaml", "components/metrics-secure/servicemonitor.yaml",
	} {
		want, err := os.ReadFile(filepath.Join(folder, original))
		must(t, err)
		path := filepath.Join(folder, "chart/monitoring", filepath.Base(original))
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil { //nolint:gosec // it is source
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		must(t, err)
		same(t, path+" is not daemonset/"+original+": go test ./test/manifests -run TestChartHasTheFiles -update", string(want), string(got))
	}
}

// parsed reads a configuration as the program does whose it is.
func parsed(t *testing.T, o *unstructured.Unstructured, text string) config.Config {
	t.Helper()
	cfg, err := config.Parse([]byte(text), roleOf(o.GetName()))
	if err != nil {
		t.Fatalf("%s: %v", id(o), err)
	}
	return cfg
}

// roleOf tells whose configuration a ConfigMap holds.
func roleOf(name string) config.Role {
	if strings.HasSuffix(name, "-resolver") {
		return config.Resolver
	}
	return config.Agent
}
