// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/configsource"
)

// TestSourceFlags has command lines that cannot be followed.
func TestSourceFlags(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		args string
		want string
	}{
		{"two places", "--config FILE --config-map kube-system/node-cache", "--config and --config-map exclude each other"},
		{"no namespace", "--config-map node-cache", `--config-map: "node-cache": not NAMESPACE/NAME`},
		{"too many parts", "--config-map a/b/c", `--config-map: "a/b/c": not NAMESPACE/NAME`},
		{"credentials without a ConfigMap", "--config FILE --kubeconfig FILE", "--kubeconfig is for --config-map, which is missing"},
		{"no configuration to merge into", "--kube-dns FOLDER", "--kube-dns is laid over a configuration"},
		{"no configuration that may go bad", "--last-good FOLDER", "--last-good is for a configuration that may go bad"},
	} {
		for _, program := range []string{"agent", "resolver"} {
			got := command(append([]string{program}, strings.Fields(tt.args)...)...)
			if got.Code != cli.ExitUsage || !strings.HasPrefix(got.Stderr, "node-cache: "+tt.want) || !strings.Contains(got.Stderr, "\nhint: ") {
				t.Errorf("%s: %s: %+v, want exit code %d and %q", tt.name, program, got, cli.ExitUsage, tt.want)
			}
		}
	}
}

// TestSourceCredentials has a kubeconfig that is not there, and none at all where there is no pod.
func TestSourceCredentials(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none")
	got := command("agent", "--config-map", "kube-system/node-cache", "--kubeconfig", missing)
	want := "node-cache: reading ConfigMap kube-system/node-cache: reading kubeconfig " + missing + ": no such file or directory\nhint: "
	if got.Code != cli.ExitFailed || !strings.HasPrefix(got.Stderr, want) {
		t.Errorf("%+v, want %q", got, want)
	}
}

// TestSourceOptions reads flags and the environment of a pod.
func TestSourceOptions(t *testing.T) {
	for name, value := range map[string]string{"POD_NAMESPACE": "kube-system", "POD_NAME": "node-cache-x1", "POD_UID": "0ca1", "NODE_NAME": "node-1"} {
		t.Setenv(name, value)
	}
	f := sourceFlags{configMap: "kube-system/node-cache", kubeconfig: "k", kubeDNS: "d", lastGood: "l"}
	got, err := f.source()
	must(t, err)
	want := configsource.Config{
		ConfigMap:  types.NamespacedName{Namespace: "kube-system", Name: "node-cache"},
		Kubeconfig: "k", KubeDNS: "d", LastGood: "l",
		Pod: types.NamespacedName{Namespace: "kube-system", Name: "node-cache-x1"}, PodUID: "0ca1", Node: "node-1",
	}
	same(t, "options", want, got)
}
