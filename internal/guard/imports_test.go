// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// layer says what a package may import besides the standard library.
type layer struct {
	folder string
	allow  []string // import paths, each with what lies below it
}

// leaves are the packages that import nothing but the listed paths and those that help everywhere.
func leaves() []layer {
	const wire, rules = modulePath + "/pkg/wire", modulePath + "/pkg/intercept/rules"
	const mmsg, remote, listen = modulePath + "/pkg/mmsg", modulePath + "/pkg/remote", modulePath + "/pkg/listen"
	return []layer{
		{folder: "pkg/wire"},
		{folder: "pkg/cache", allow: []string{wire, "golang.org/x/sys"}},
		{folder: "pkg/mmsg", allow: []string{"golang.org/x/sys"}},
		{folder: "pkg/server", allow: []string{wire, mmsg, listen, "golang.org/x/sys", "golang.org/x/sync", "golang.org/x/time/rate"}},
		{folder: "pkg/certificate", allow: []string{modulePath + "/pkg/filewatch"}},
		{folder: "pkg/resolve", allow: []string{wire, modulePath + "/pkg/cache", modulePath + "/pkg/dnstap", modulePath + "/pkg/pods", modulePath + "/pkg/names/zone", modulePath + "/pkg/names/skydns", modulePath + "/pkg/names/localdata", modulePath + "/pkg/names/blocklist", modulePath + "/pkg/names/tsig", "github.com/dchest/siphash"}},
		{folder: "pkg/names/notify", allow: []string{modulePath + "/pkg/names/tsig", modulePath + "/pkg/names/zone", "github.com/miekg/dns"}},
		{folder: "pkg/dso", allow: []string{wire}},
		{folder: "pkg/names/push", allow: []string{wire, modulePath + "/pkg/dso", modulePath + "/pkg/names/zone"}},
		{folder: "pkg/names/tsig", allow: []string{wire, modulePath + "/pkg/filewatch", "github.com/miekg/dns", "golang.org/x/time/rate"}},
		{folder: "pkg/filewatch", allow: []string{"github.com/fsnotify/fsnotify"}},
		{folder: "pkg/names/localdata", allow: []string{wire, modulePath + "/pkg/filewatch", "github.com/miekg/dns"}},
		{folder: "pkg/names/blocklist", allow: []string{wire, modulePath + "/pkg/filewatch", "github.com/miekg/dns"}},
		{folder: "pkg/names/skydns", allow: []string{wire, "github.com/miekg/dns"}},
		{folder: "pkg/names/etcd", allow: []string{remote, modulePath + "/pkg/names/skydns", "go.etcd.io/etcd", "go.uber.org/zap", "google.golang.org/grpc"}},
		{folder: "pkg/names/zone", allow: []string{wire}},
		{folder: "pkg/dnstap", allow: []string{wire, "github.com/farsightsec/golang-framestream", "google.golang.org/protobuf"}},
		{folder: "pkg/pods", allow: []string{wire, "github.com/miekg/dns"}},
		{folder: "pkg/config", allow: []string{listen, modulePath + "/pkg/filewatch", modulePath + "/pkg/names/tsig", "go.yaml.in/yaml", "github.com/miekg/dns", "k8s.io/apimachinery/pkg/labels"}},
		{folder: "pkg/convert", allow: []string{modulePath + "/pkg/config", "github.com/coredns/caddy/caddyfile", "github.com/miekg/dns", "go.yaml.in/yaml"}},
		{folder: "pkg/retry"},
		{folder: "pkg/panics"},
		{folder: "pkg/hint"},
		{folder: "pkg/listen", allow: []string{"golang.org/x/sys"}},
		{folder: "pkg/plain"},
		{folder: "pkg/remote"},
		{folder: "pkg/admin/top", allow: []string{modulePath + "/pkg/plain"}},
		{folder: "pkg/cli", allow: []string{modulePath + "/pkg/plain", modulePath + "/pkg/admin/top", "github.com/miekg/dns", "github.com/spf13/cobra", "github.com/spf13/pflag"}},
		{folder: "pkg/upstream", allow: []string{wire, mmsg, remote, modulePath + "/pkg/dnstap", modulePath + "/pkg/filewatch", "github.com/miekg/dns", "golang.org/x/net", "golang.org/x/sync", "golang.org/x/sys/unix", "golang.org/x/time/rate"}},
		{folder: "pkg/watch", allow: []string{remote, modulePath + "/pkg/filewatch", modulePath + "/pkg/pods", modulePath + "/pkg/names/zone", "k8s.io", "sigs.k8s.io", "github.com/go-logr/logr", "go.yaml.in/yaml/v3", "golang.org/x/time/rate", "google.golang.org/protobuf/encoding/protowire"}},
		{folder: "pkg/unixsock", allow: []string{"golang.org/x/sys"}},
		{folder: "pkg/admin", allow: []string{listen, modulePath + "/pkg/plain", modulePath + "/pkg/unixsock", "golang.org/x/sys"}},
		{folder: "pkg/handover", allow: []string{remote, modulePath + "/pkg/unixsock", "golang.org/x/sys"}},
		{folder: "pkg/healthcheck", allow: []string{"github.com/miekg/dns", "golang.org/x/sys"}},
		{folder: "pkg/intercept/rules"},
		{folder: "pkg/netif", allow: []string{"github.com/vishvananda/netlink", "golang.org/x/sys", "golang.org/x/time/rate"}},
		{folder: "pkg/sockdiag", allow: []string{"github.com/vishvananda/netlink", "golang.org/x/sys"}},
		{folder: "pkg/intercept/nftables", allow: []string{rules, "github.com/google/nftables", "github.com/mdlayher/netlink", "golang.org/x/sys"}},
		{folder: "pkg/iptables", allow: []string{rules, modulePath + "/pkg/intercept/dataplane", "github.com/coreos/go-iptables", "github.com/mdlayher/netlink", "github.com/vishvananda/netlink", "github.com/vishvananda/netns", "golang.org/x/sys"}},
		{folder: "pkg/intercept", allow: []string{rules, "github.com/miekg/dns", "golang.org/x/sys"}},
		{folder: "pkg/intercept/dataplane", allow: []string{"github.com/cilium/ebpf", "github.com/google/nftables", "github.com/mdlayher/netlink", "github.com/vishvananda/netlink", "golang.org/x/sys"}},
		{folder: "pkg/configsource", allow: []string{remote, modulePath + "/pkg/config", modulePath + "/pkg/convert", modulePath + "/pkg/filewatch", modulePath + "/pkg/watch", "golang.org/x/time/rate", "k8s.io/api", "k8s.io/apimachinery"}},
		{folder: "pkg/capabilities", allow: []string{"kernel.org/pub/linux/libs/security/libcap/cap", "golang.org/x/sys"}},
	}
}

// restrictedImport is a dependency that only some packages may know.
type restrictedImport struct {
	imported string
	owners   []string // folders, each with what lies below it
	why      string
}

func restrictedImports() []restrictedImport {
	return []restrictedImport{
		{
			imported: "github.com/prometheus/client_golang", owners: []string{"pkg/admin/metrics"},
			why: "packages count in a Stats struct, pkg/admin/metrics names the series",
		},
		{
			imported: "k8s.io/client-go", owners: []string{"pkg/watch", "pkg/agent", "cmd/kubectl-node_cache", "internal/kubetest", "internal/kubenode", "test/policies", "test/kube-network-policies", "test/kube-network-policies0.8"},
			why: "one package of the agent talks to Kubernetes",
		},
		{
			imported: "os/exec", owners: []string{"pkg/iptables", "bench", "internal/kubetest", "internal/kubenode", "internal/proctest", "internal/nodetest", "internal/play", "hack/image", "cmd/kubectl-node_cache"},
			why: "the agent runs no programs but iptables, and the kubectl plugin a browser",
		},
		{
			imported: modulePath + "/pkg/agent", owners: []string{"pkg/agent", "cmd", "test"},
			why: "imports point down, and the agent is the top",
		},
		{
			imported: modulePath + "/internal/assert", owners: []string{"internal/assert"},
			why: "it is for tests, and has a flag of theirs",
		},
		{
			imported: modulePath + "/cmd", owners: []string{"cmd"},
			why: "the command line is a shell around packages",
		},
	}
}

func TestLeafImports(t *testing.T) {
	t.Parallel()
	everywhere := []string{modulePath + "/pkg/retry", modulePath + "/pkg/panics", modulePath + "/pkg/hint"}
	all := goFiles(t)
	for _, l := range leaves() {
		seen := 0
		for _, f := range all {
			if f.test || f.folder() != l.folder {
				continue
			}
			seen++
			for _, imported := range f.imports() {
				if !standard(imported) && !within(imported, everywhere) && !within(imported, l.allow) {
					t.Errorf("%s: imports %s, and %s may not", f.name, imported, l.folder)
				}
			}
		}
		if seen == 0 {
			t.Errorf("%s: no such package; leaves names one that moved", l.folder)
		}
	}
}

func TestRestrictedImports(t *testing.T) {
	t.Parallel()
	all := goFiles(t)
	for _, s := range restrictedImports() {
		for _, f := range all {
			if f.test || within(f.folder(), s.owners) {
				continue
			}
			for _, imported := range f.imports() {
				if within(imported, []string{s.imported}) {
					t.Errorf("%s: imports %s: %s", f.name, imported, s.why)
				}
			}
		}
	}
}

// standard reports whether the import path is the standard library's: only there has the first element no dot.
func standard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// within reports whether a slash-separated path is one of the given ones or lies below one.
func within(name string, above []string) bool {
	return slices.ContainsFunc(above, func(top string) bool {
		return name == top || strings.HasPrefix(name, top+"/")
	})
}

// TestRequiredImports holds the packages that node-cache is built on in use.
func TestRequiredImports(t *testing.T) {
	t.Parallel()
	for _, required := range []string{
		"github.com/miekg/dns", "github.com/vishvananda/netlink", "github.com/coreos/go-iptables",
		"k8s.io/client-go", "github.com/prometheus/client_golang", "sigs.k8s.io/yaml",
	} {
		used := slices.ContainsFunc(goFiles(t), func(f goFile) bool {
			return !f.test && strings.HasPrefix(f.name, "pkg/") && slices.ContainsFunc(f.imports(), func(i string) bool {
				return i == required || strings.HasPrefix(i, required+"/")
			})
		})
		if !used {
			t.Errorf("no package imports %s", required)
		}
	}
}

// TestMap holds the packages in the layers of docs/architecture.md: each has a line there, and imports its own layer and those below.
func TestMap(t *testing.T) {
	t.Parallel()
	_, text, _ := strings.Cut(string(content(t, "docs/architecture.md")), "\n## Packages\n")
	text, _, _ = strings.Cut(text, "\n## ")
	layers, layer := map[string]int{}, 0
	named := regexp.MustCompile("`([a-z/]+)`")
	for line := range strings.Lines(text) {
		switch names, _, isItem := strings.Cut(line, ": "); {
		case strings.HasPrefix(line, "**"):
			layer++
		case strings.HasPrefix(line, "- ") && isItem:
			for _, m := range named.FindAllStringSubmatch(names, -1) {
				layers["pkg/"+m[1]] = layer
			}
		}
	}
	seen := map[string]bool{}
	for _, f := range goFiles(t) {
		folder := f.folder()
		if f.test || f.generated || !strings.HasPrefix(folder, "pkg/") || strings.HasSuffix(folder, "test") {
			continue
		}
		seen[folder] = true
		for _, imported := range f.imports() {
			below, ours := strings.CutPrefix(imported, modulePath+"/")
			if ours && layers[below] < layers[folder] {
				t.Errorf("%s imports %s, which docs/architecture.md has in a layer above", f.name, below)
			}
		}
	}
	for folder := range seen {
		if layers[folder] == 0 {
			t.Errorf("%s: docs/architecture.md has no line for it", folder)
		}
	}
	for folder := range layers {
		if !seen[folder] {
			t.Errorf("%s: docs/architecture.md has a line, and there is no such package", folder)
		}
	}
}
