// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
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

// TestPlatformPagesSayWhatWasRun holds the last paragraph of each platform's page: what was run, by which test and with which version, or
// where it was read instead, with a link and a date.
func TestPlatformPagesSayWhatWasRun(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob(filepath.Join(root, "docs/platforms/*.md"))
	must(t, err)
	list := string(content(t, "docs/platforms/README.md"))
	for _, page := range pages {
		name := filepath.Base(page)
		if name == "README.md" {
			continue
		}
		if !strings.Contains(list, "]("+name+")") {
			t.Errorf("docs/platforms/README.md does not list %s", name)
		}
		if problem := statementProblem(string(readFile(t, page))); problem != "" {
			t.Errorf("docs/platforms/%s: the last paragraph %s", name, problem)
		}
	}
}

// statementProblem says what the last paragraph of a page lacks; empty: nothing.
func statementProblem(page string) string {
	paragraphs := strings.Split(strings.TrimSpace(page), "\n\n")
	last := strings.ReplaceAll(paragraphs[len(paragraphs)-1], "\n", " ")
	has := func(pattern string) bool { return regexp.MustCompile(pattern).MatchString(last) }
	switch {
	case has("^Run: "):
		if !has("`(Test[A-Z]|make |hack/)") || !has(`\d+\.\d+\.\d+`) {
			return "names no test or no version"
		}
	case has("^Not run: read in "):
		if !has(`\]\(https://`) || !has(`\b20\d\d-[01]\d-[0-3]\d\b`) {
			return "has no link or no date"
		}
	default:
		return `does not begin with "Run: " or "Not run: read in "`
	}
	return ""
}

func TestStatementProblem(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ page, want string }{
		"run":             {"# A\n\nRun: by `TestA`, with\nkubelet 1.37.2.\n", ""},
		"read":            {"# A\n\nNot run: read in [b](https://b.example/c) of\n2026-08-21.\n", ""},
		"nothing":         {"# A\n\nSet b.\n", `does not begin with "Run: " or "Not run: read in "`},
		"not the last":    {"# A\n\nRun: by `TestA`, with b 1.2.3.\n\nMore.\n", `does not begin with "Run: " or "Not run: read in "`},
		"no version":      {"Run: by `TestA`.", "names no test or no version"},
		"no test":         {"Run: with b 1.2.3.", "names no test or no version"},
		"a link, undated": {"Not run: read in [b](https://b.example/c).", "has no link or no date"},
		"a date alone":    {"Not run: read in b of 2026-08-21.", "has no link or no date"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			same(t, "the problem", tt.want, statementProblem(tt.page))
		})
	}
}

// TestPagesValues installs the examples of pages that are values of the chart. The files that they name are mounted, and there is
// memory for what they set.
func TestPagesValues(t *testing.T) {
	t.Parallel()
	for page, want := range map[string][]string{
		"docs/upstreams.md": {"/etc/corp/ca.crt"},
		"docs/blocking.md":  {"/etc/block/ads.txt"},
		"docs/memory.md":    nil,
	} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			var text string
			for _, block := range yamlBlocks(t, page) {
				if strings.HasPrefix(strings.TrimPrefix(block, "# values of the chart\n"), "config:") {
					text += block
				}
			}
			list := objects(t, chart(t, "-f", valuesFile(t, text)))
			cfg := configurations(t, list)["node-cache"]
			spec := podTemplates(t, list)["node-cache"].Spec
			checkAgreement(t, &spec, &cfg)
			files := slices.Clone(cfg.Block.Files)
			for _, f := range cfg.Forward {
				if f.CA != "" {
					files = append(files, f.CA)
				}
			}
			same(t, "files", want, files)
			for _, file := range files {
				if !slices.ContainsFunc(spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return inside(m.MountPath, file) }) {
					t.Errorf("no mount holds %s", file)
				}
			}
		})
	}
}
