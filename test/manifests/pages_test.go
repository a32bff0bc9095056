// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/nodecache/node-cache/internal/proctest"
)

// yamlBlocks returns the YAML blocks of a page, without the indentation of a list around them.
func yamlBlocks(t *testing.T, page string) []string {
	t.Helper()
	var blocks []string
	for _, m := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(content(t, page)), -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// TestPagesFromCheckout renders the kustomizations that pages show, from this checkout: none needs a release.
func TestPagesFromCheckout(t *testing.T) {
	t.Parallel()
	rendered := 0
	for _, page := range []string{"daemonset/README.md", "docs/install.md", "docs/migrating.md", "docs/staged.md"} {
		for _, block := range yamlBlocks(t, page) {
			if !strings.HasPrefix(strings.TrimPrefix(block, "# kustomization.yaml\n"), "resources:") {
				continue
			}
			rendered++
			dir := t.TempDir()
			checkout, err := filepath.Abs(root)
			must(t, err)
			checkout, err = filepath.Rel(dir, checkout)
			must(t, err)
			block = regexp.MustCompile(`(\.\./)?\bdaemonset/`).ReplaceAllString(block, checkout+"/daemonset/")
			proctest.WriteFile(t, filepath.Join(dir, "kustomization.yaml"), block)
			proctest.WriteFile(t, filepath.Join(dir, "node-cache.yaml"), "admin: {socket: /run/pod/admin.sock}\n")
			proctest.WriteFile(t, filepath.Join(dir, "config.yaml"), "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: node-cache, namespace: kube-system, labels: {own: config}}\n")
			agents := podTemplates(t, objects(t, kustomize(t, dir)))["node-cache"].Spec.Containers
			if strings.Contains(block, "images:") && !strings.HasPrefix(agents[0].Image, "registry.example/node-cache:v") {
				t.Errorf("%s: image %s, want that of the page", page, agents[0].Image)
			}
		}
	}
	if rendered != 5 {
		t.Errorf("%d kustomizations, want 5", rendered)
	}
}

// TestGitOpsPage renders what Argo CD and Flux would, of the page's examples.
func TestGitOpsPage(t *testing.T) {
	t.Parallel()
	blocks := yamlBlocks(t, "docs/gitops.md")
	var app struct {
		Spec struct {
			Source struct {
				Path           string `json:"path"`
				TargetRevision string `json:"targetRevision"`
				Helm           struct {
					ValueFiles   []string       `json:"valueFiles"`
					ValuesObject map[string]any `json:"valuesObject"`
				} `json:"helm"`
			} `json:"source"`
		} `json:"spec"`
	}
	must(t, yaml.Unmarshal([]byte(blocks[0]), &app))
	source := app.Spec.Source
	values, err := yaml.Marshal(source.Helm.ValuesObject)
	must(t, err)
	text := chart(t, "-f", filepath.Join(root, source.Path, source.Helm.ValueFiles[0]), "-f", valuesFile(t, string(values)))
	if image := podTemplates(t, objects(t, text))["node-cache"].Spec.Containers[0].Image; !strings.HasPrefix(image, "registry.example/node-cache:v") {
		t.Errorf("Argo CD installs image %s", image)
	}
	repository, kustomization, _ := strings.Cut(blocks[1], "---\n")
	var flux struct {
		Spec struct {
			Path   string           `json:"path"`
			Images []map[string]any `json:"images"`
			Ref    struct {
				Branch string `json:"branch"`
			} `json:"ref"`
		} `json:"spec"`
	}
	must(t, yaml.Unmarshal([]byte(repository), &flux))
	same(t, "branches", [2]string{"main", "main"}, [2]string{source.TargetRevision, flux.Spec.Ref.Branch})
	must(t, yaml.Unmarshal([]byte(kustomization), &flux))
	overlay := strings.TrimPrefix(flux.Spec.Path, "./daemonset/")
	dir := rendering{overlay: overlay}.kustomization(t)
	images, err := yaml.Marshal(map[string]any{"images": flux.Spec.Images})
	must(t, err)
	path := filepath.Join(dir, "kustomization.yaml")
	proctest.WriteFile(t, path, string(readFile(t, path))+string(images))
	if image := podTemplates(t, objects(t, kustomize(t, dir)))["node-cache"].Spec.Containers[0].Image; !strings.HasPrefix(image, "registry.example/node-cache:v") {
		t.Errorf("Flux installs image %s", image)
	}
}
