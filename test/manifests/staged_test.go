// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodecache/node-cache/internal/proctest"
)

// TestStaged compares the configuration in the annotation of the pods with the one in the ConfigMap, with patches and components that
// change it.
func TestStaged(t *testing.T) {
	t.Parallel()
	for name, manifest := range map[string][]byte{
		"kustomize":                  rendering{overlay: "base", staged: true}.byKustomize(t),
		"kustomize with a component": rendering{overlay: "overlays/central", components: []string{"metrics", "kernel", "iptables"}, staged: true}.byKustomize(t),
		"chart":                      chart(t, "--set", "config.staged=true,monitoring.enabled=true"),
	} {
		var want, got string
		var where []any
		for _, o := range objects(t, manifest) {
			if o.GetName() != "node-cache" {
				continue
			}
			if text, is := configText(o); is {
				want = fullConfig(t, parsed(t, o, text))
			}
			if o.GetKind() == "DaemonSet" {
				text, _, _ := unstructured.NestedString(o.Object, "spec", "template", "metadata", "annotations", "node-cache.io/config")
				got = fullConfig(t, parsed(t, o, text))
				where, _, _ = unstructured.NestedSlice(o.Object, "spec", "template", "spec", "volumes")
			}
		}
		if same(t, name+": the annotation", want, got); want == "" || strings.Contains(fmt.Sprint(where), "configMap:map[name:node-cache]") {
			t.Errorf("%s: no configuration, or it is mounted from the ConfigMap: %v", name, where)
		}
	}
}

// TestStagedRefused asks for what cannot be staged.
func TestStagedRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, values, want string }{
		{"all agents follow the ConfigMap", "config: {staged: true, watch: api}", "not with config.watch: api"},
		{"it does not fit", "config: {staged: true, agent: {requiredNames: [" + strings.Repeat("www.example.com,", 16000) + "]}}", "256 KiB of annotations"},
	} {
		values := filepath.Join(t.TempDir(), "values.yaml")
		proctest.WriteFile(t, values, tt.values)
		_, err := template(t, "-f", values)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %.300v, want %q", tt.name, err, tt.want)
		}
	}
	r := rendering{overlay: "base", components: []string{"config-map"}, staged: true}
	if out, err := run(t.Context(), nil, program(t, "kube"), "kubectl", "kustomize", r.kustomization(t)); err == nil {
		t.Errorf("kustomize stages what component config-map reads from the API:\n%.300s", out)
	}
}
