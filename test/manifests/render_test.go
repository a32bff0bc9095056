// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// folder is what is tested, seen from here.
const folder = "../../daemonset"

// namespace is where everything goes.
const namespace = "kube-system"

// A rendering is one way to ask for objects, by kustomize and by the chart.
type rendering struct {
	name       string
	overlay    string   // folder below daemonset
	components []string // folders below daemonset/components
	beside     []string // more folders below daemonset
	staged     bool     // with the transformers of daemonset/staged
	values     []string // arguments of helm template
}

// renderings are all that the pages list.
func renderings() []rendering {
	preset := func(name string) []string {
		return []string{"-f", filepath.Join(folder, "chart/presets", name+".yaml")}
	}
	return []rendering{
		{name: "base", overlay: "base", values: []string{}},
		{name: "central", overlay: "overlays/central", values: preset("central")},
		{
			name: "central over TLS", overlay: "overlays/central", components: []string{"tls", "tls-agents"},
			values: append(preset("central"), "--set", "resolver.tls.secret=node-cache-resolver-tls,resolver.tls.ca=node-cache-resolver-ca"),
		},
		{name: "transparent", overlay: "overlays/transparent", values: preset("transparent")},
		{name: "cilium", overlay: "overlays/cilium", values: preset("cilium")},
		{name: "dual-stack", overlay: "overlays/dual-stack", values: preset("dual-stack")},
		{name: "ipv6", overlay: "overlays/ipv6", values: preset("ipv6")},
		{name: "large-cluster", overlay: "overlays/large-cluster", values: preset("large-cluster")},
		{name: "iptables", overlay: "base", components: []string{"iptables"}, values: []string{"--set", "image.variant=iptables"}},
		{name: "config-map", overlay: "base", components: []string{"config-map"}, values: []string{"--set", "config.watch=api"}},
		{name: "staged", overlay: "base", staged: true, values: []string{"--set", "config.staged=true"}},
		{name: "kernel", overlay: "base", components: []string{"kernel"}, values: []string{"--set", "config.agent.kernel.hits=auto"}},
		{name: "opt-in", overlay: "base", components: []string{"opt-in"}, values: []string{"--set", "optIn=true"}},
		{name: "opt-in with IPv6 only", overlay: "overlays/ipv6", components: []string{"opt-in"}, values: append(preset("ipv6"), "--set", "optIn=true")},
		{name: "opt-in with both families", overlay: "overlays/dual-stack", components: []string{"opt-in"}, values: append(preset("dual-stack"), "--set", "optIn=true")},
		{name: "kube-dns", overlay: "base", components: []string{"kube-dns"}, values: []string{"--set", "config.kubeDNS=kube-dns"}},
		{
			name: "monitoring", overlay: "base", components: []string{"metrics"}, beside: []string{"monitoring"},
			values: []string{"--set", "monitoring.enabled=true,monitoring.address=0.0.0.0:9253"},
		},
		{
			name: "monitoring over IPv6", overlay: "overlays/ipv6", components: []string{"metrics-ipv6"}, beside: []string{"monitoring"},
			values: append(preset("ipv6"), "--set", "monitoring.enabled=true,monitoring.address=[::]:9253"),
		},
		{
			name: "metrics-secure", overlay: "base", components: []string{"metrics-secure"}, beside: []string{"monitoring"},
			values: []string{"--set", "monitoring.enabled=true"},
		},
		{
			name: "everything", overlay: "overlays/central", components: []string{"iptables", "config-map", "kernel", "kube-dns", "metrics"}, beside: []string{"monitoring"},
			values: append(preset("central"), "--set", "image.variant=iptables,config.watch=api,config.kubeDNS=kube-dns,monitoring.enabled=true,monitoring.address=0.0.0.0:9253,config.agent.kernel.hits=auto"),
		},
	}
}

// program gives the path of a program of ours, built if it is not there.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := kubetest.Program(t.Context(), name)
	must(t, err)
	return path
}

// run gives what a program writes to its output, and as an error what it writes beside it.
func run(ctx context.Context, input []byte, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &complaint
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+os.TempDir(), "KUBECACHEDIR="+os.TempDir())
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("running %s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, complaint.String())
	}
	return out.Bytes(), nil
}

// byKustomize renders as a user would.
func (r rendering) byKustomize(t *testing.T) []byte {
	t.Helper()
	target := filepath.Join(folder, r.overlay)
	if len(r.components)+len(r.beside) > 0 || r.staged {
		target = r.kustomization(t)
	}
	return kustomize(t, target)
}

// kustomization is one that a user writes to put folders together. Paths in it are relative, as they must be.
func (r rendering) kustomization(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs(folder)
	must(t, err)
	if root, err = filepath.Rel(dir, root); err != nil {
		t.Fatal(err)
	}
	text := "resources:\n"
	for _, name := range append([]string{r.overlay}, r.beside...) {
		text += fmt.Sprintf("- %s\n", filepath.Join(root, name))
	}
	text += "components:\n"
	for _, name := range r.components {
		text += fmt.Sprintf("- %s\n", filepath.Join(root, "components", name))
	}
	if r.staged {
		text += fmt.Sprintf("transformers:\n- %s\n", filepath.Join(root, "staged"))
	}
	proctest.WriteFile(t, filepath.Join(dir, "kustomization.yaml"), text)
	return dir
}

// kustomize renders a folder.
func kustomize(t *testing.T, target string) []byte {
	t.Helper()
	out, err := run(t.Context(), nil, program(t, "kube"), "kubectl", "kustomize", target)
	must(t, err)
	return out
}

// chart renders the chart with arguments such as -f FILE and --set KEY=VALUE.
func chart(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := template(t, args...)
	must(t, err)
	return out
}

func template(t *testing.T, args ...string) ([]byte, error) {
	t.Helper()
	args = append([]string{"template", "node-cache", filepath.Join(folder, "chart"), "--namespace", namespace}, args...)
	return run(t.Context(), nil, program(t, "helm"), args...)
}

// objects reads a stream of YAML documents. Empty ones do not count.
func objects(t *testing.T, text []byte) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var o unstructured.Unstructured
		switch err := decoder.Decode(&o.Object); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatalf("reading what was rendered: %v", err)
		case len(o.Object) > 0:
			all = append(all, &o)
		}
	}
}

// as gives an object its own type. A field that the type does not have is an error.
func as[T any](t *testing.T, o *unstructured.Unstructured) *T {
	t.Helper()
	var typed T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &typed, true); err != nil {
		t.Fatalf("%s: %v", id(o), err)
	}
	return &typed
}

// all gives the objects of a kind, typed.
func all[T any](t *testing.T, list []*unstructured.Unstructured, kind string) []*T {
	t.Helper()
	var found []*T
	for _, o := range list {
		if o.GetKind() == kind {
			found = append(found, as[T](t, o))
		}
	}
	return found
}

// id names an object.
func id(o *unstructured.Unstructured) string {
	return o.GetKind() + " " + strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
}

// A source is one rendering made by one of the two.
type source struct {
	name string
	text []byte
}

// once guards cached, which is all that is rendered: it takes seconds, and many tests want it.
var (
	once   sync.Once
	cached []source
)

// sources are all renderings by both, beside what only kustomize has.
func sources(t *testing.T) []source {
	t.Helper()
	once.Do(func() {
		list := []source{
			{"uninstall", kustomize(t, filepath.Join(folder, "uninstall"))},
			{"uninstall-iptables", kustomize(t, filepath.Join(folder, "uninstall-iptables"))},
		}
		for _, r := range renderings() {
			list = append(list, source{r.name + byKustomize, r.byKustomize(t)}, source{r.name + byHelm, chart(t, r.values...)})
		}
		cached = list
	})
	if len(cached) == 0 {
		t.Fatal("nothing was rendered, as another test says")
	}
	return slices.Clone(cached)
}

// What the names of a rendering's two sources end in.
const (
	byKustomize = " by kustomize"
	byHelm      = " by helm"
)

// rendered gives one of the sources.
func rendered(t *testing.T, name string) []byte {
	t.Helper()
	all := sources(t)
	i := slices.IndexFunc(all, func(s source) bool { return s.name == name })
	if i < 0 {
		t.Fatalf("nothing is called %q", name)
	}
	return all[i].text
}
