// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestConformance runs the specs of Kubernetes' own end-to-end suite about DNS, with node-cache installed in four ways.
func TestConformance(t *testing.T) {
	if !proctest.Soak() {
		t.Skip("runs each spec four times: make soak")
	}
	program, err := kubetest.Program(t.Context(), "kube/conformance")
	if err != nil {
		t.Fatal(err)
	}
	b := newHarness(t, kubenode.Options{ProxyMode: "iptables", Images: specImages(t, program)})
	const serial = `\[Serial\]` // about the ConfigMap of the cluster's DNS, so about CoreDNS where that runs
	for _, s := range []struct {
		name, skip string
		install    func(*testing.T)
	}{
		{"link-local", serial, func(t *testing.T) {
			t.Helper()
			b.kubectl(t, "apply", "-k", repository+"/daemonset/base")
			b.setDNS(t, "169.254.20.10")
		}},
		{"transparent", serial, func(t *testing.T) {
			t.Helper()
			b.kubectl(t, "apply", "-k", repository+"/daemonset/overlays/transparent")
			b.setDNS(t, kubenode.DNSService)
		}},
		{"central resolver", serial, func(t *testing.T) {
			t.Helper()
			b.kubectl(t, "apply", "-k", repository+"/daemonset/overlays/central")
			b.setDNS(t, "169.254.20.10")
		}},
		{"without CoreDNS", "", func(t *testing.T) {
			t.Helper()
			b.kubectl(t, "apply", "-k", kustomization(t, "daemonset/overlays/central", "daemonset/components/kube-dns"))
			b.setDNS(t, "169.254.20.10")
			// The resolvers become the pods of Service kube-dns. By its label, specs find them.
			b.kubectl(t, "-n", "kube-system", "delete", "deployment/coredns", "configmap/coredns")
			b.kubectl(t, "-n", "kube-system", "patch", "deployment/node-cache-resolver",
				"--patch", `{"spec": {"template": {"metadata": {"labels": {"k8s-app": "kube-dns"}}}}}`)
		}},
	} {
		if t.Failed() {
			return
		}
		t.Run(s.name, func(t *testing.T) {
			s.install(t)
			b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
			if strings.Contains(b.kubectl(t, "-n", "kube-system", "get", "deployments", "-o", "name"), "node-cache-resolver") {
				b.kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/node-cache-resolver", "--timeout=2m")
			}
			b.awaitAgentsReady(t)
			b.runSpecs(t, program, s.skip)
		})
	}
}

// runSpecs runs the specs about DNS but those that match skip, and reports each as a test.
func (b *harness) runSpecs(t *testing.T, program, skip string) {
	t.Helper()
	dir := t.TempDir()
	args := []string{program, "--kubeconfig=" + b.Kubeconfig(), "--provider=skeleton", `--ginkgo.focus=\[sig-network\] (DNS|\[Feature:PerformanceDNS\])`, "--ginkgo.json-report=report.json"}
	if skip != "" {
		args = append(args, "--ginkgo.skip="+skip)
	}
	out, err := b.Shell(t.Context(), dir, "'"+strings.Join(args, "' '")+"'").CombinedOutput()
	var reports []struct {
		SpecReports []struct {
			ContainerHierarchyTexts    []string
			LeafNodeText, State        string
			RunTime                    time.Duration
			Failure                    struct{ Message string }
			CapturedGinkgoWriterOutput string
		}
	}
	text, readErr := os.ReadFile(filepath.Join(dir, "report.json"))
	if readErr != nil {
		t.Fatalf("%v, %v\n%s", err, readErr, out)
	}
	if err := json.Unmarshal(text, &reports); err != nil {
		t.Fatal(err)
	}
	passed := 0
	for _, report := range reports {
		for _, spec := range report.SpecReports {
			if spec.State == "skipped" || spec.LeafNodeText == "" {
				continue
			}
			name := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
			t.Run(name, func(t *testing.T) {
				if spec.State != "passed" {
					t.Errorf("%s: %s\n%s", spec.State, spec.Failure.Message, spec.CapturedGinkgoWriterOutput)
					return
				}
				passed++
				proctest.Figure(t, "passed after %s", spec.RunTime.Round(time.Second))
			})
		}
	}
	if passed == 0 {
		t.Errorf("no spec passed: %v\n%s", err, out)
	}
	asked := 0 // of the agents, in place of the fallback
	for _, pod := range b.agents(t) {
		var s struct{ Queries struct{ Total int } }
		b.status(t, pod, &s)
		asked += s.Queries.Total
	}
	proctest.Figure(t, "%d specs passed; the agents got %d queries", passed, asked)
	if asked < 10*passed {
		t.Errorf("the agents got %d queries", asked)
	}
}

// specImages makes the images that the specs' pods use, under the names that they use. Both have dig and getent of Debian.
func specImages(t *testing.T, program string) []string {
	t.Helper()
	files := map[string]string{"bin/busybox": "/bin/busybox", "etc/nsswitch.conf": "/etc/nsswitch.conf"}
	for _, applet := range []string{"sh", "seq", "sleep", "cat", "hostname", "nc"} {
		files["bin/"+applet] = "-> busybox"
	}
	for _, name := range []string{"dig", "getent"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		files["bin/"+name] = path
		libraries, err := exec.CommandContext(t.Context(), "ldd", path).Output()
		if err != nil {
			t.Fatalf("ldd %s: %v", path, err)
		}
		for _, path := range regexp.MustCompile(`/\S+`).FindAllString(string(libraries), -1) {
			files[strings.TrimPrefix(path, "/")] = path
		}
	}
	for path, module := range map[string]string{"agnhost": "kube/agnhost", "coredns": "coredns"} {
		var err error
		if files[path], err = kubetest.Program(t.Context(), module); err != nil {
			t.Fatal(err)
		}
	}
	names, err := exec.CommandContext(t.Context(), program, "images").Output()
	if err != nil {
		t.Fatal(err)
	}
	var archives []string
	for name := range strings.FieldsSeq(string(names)) {
		archives = append(archives, filepath.Join(t.TempDir(), "image.tar"))
		image := kubenode.Image{Name: name, Files: files, Entrypoint: []string{"/agnhost"}}
		if err := image.Archive(archives[len(archives)-1]); err != nil {
			t.Fatal(err)
		}
	}
	return archives
}
