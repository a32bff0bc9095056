// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
)

// repository is the project's folder, where a user runs what the README says.
const repository = "../.."

// limit is how long most things may take at most, on a machine that is busy.
const limit = 90 * time.Second

// A harness is a cluster of two nodes that know the agent's image.
type harness struct {
	*kubenode.Cluster
	http     *http.Client     // from the control machine
	programs []ebpf.ProgramID // of agents, as of the last awaitKernelHits on each node
	overlay  string           // what the steps of TestInstall install, a folder below daemonset
}

func newHarness(t *testing.T, o kubenode.Options) *harness {
	t.Helper()
	if why := kubenode.Missing(); why != "" {
		t.Skip(why)
	}
	archive, err := image()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if !o.Registry {
		o.Images = append(o.Images, archive)
	}
	b := &harness{Cluster: kubenode.Start(t, o), overlay: "base"}
	transport := &http.Transport{DialContext: b.Control.Dial, DisableKeepAlives: true}
	b.http = &http.Client{Transport: transport, Timeout: time.Minute}
	proctest.Figure(t, "two nodes with CoreDNS after %s, kube-proxy in mode %s", since(began), o.ProxyMode)
	return b
}

// runShell runs a command as a user would, in the repository, and returns what it wrote.
func (b *harness) runShell(t *testing.T, command string, env ...string) string {
	t.Helper()
	dir, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	out, err := b.Shell(t.Context(), dir, command, env...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s\n%s", command, err, out, b.state(t))
	}
	t.Logf("$ %s\n%s", command, out)
	return string(out)
}

// kubectl runs kubectl and returns what it wrote.
func (b *harness) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return b.kubectlInput(t, "", args...)
}

// kubectlInput runs kubectl with stdin.
func (b *harness) kubectlInput(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, err := b.Kubectl(t.Context(), stdin, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, b.state(t))
	}
	return out
}

// kustomization makes one of a user's own, a folder of the repository with components, and returns its folder.
func kustomization(t *testing.T, resource string, components ...string) string {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(dir, root)
	if err != nil {
		t.Fatal(err)
	}
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [" + filepath.Join(relative, resource) + "]\ncomponents:\n"
	for _, component := range components {
		text += "- " + filepath.Join(relative, component) + "\n"
	}
	proctest.WriteFile(t, filepath.Join(dir, "kustomization.yaml"), text)
	return dir
}

// manifests makes a kustomization of the overlay with components, and returns its folder.
func (b *harness) manifests(t *testing.T, components ...string) string {
	t.Helper()
	return kustomization(t, "daemonset/"+b.overlay, components...)
}

// source is a pattern of what --explain and watch say of an answer of the cluster's names: agents with the zone do not ask for them.
func (b *harness) source() string {
	if b.overlay == "base" {
		return "zone"
	}
	return "(cache|upstream)"
}

// state is what the cluster says of its pods, for a test that has failed.
func (b *harness) state(t *testing.T) string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var text strings.Builder
	for _, command := range []string{
		"get pods -A -o wide", "get events -A --sort-by=.lastTimestamp",
		"-n kube-system logs -l app.kubernetes.io/name=node-cache --tail=40 --prefix",
		"-n kube-system logs -l app.kubernetes.io/name=node-cache-resolver --tail=40 --prefix",
		"-n kube-system logs -l app.kubernetes.io/name=node-cache-cleanup --tail=40 --prefix --all-containers",
	} {
		out, err := b.Kubectl(ctx, "", strings.Fields(command)...)
		text.WriteString("--- kubectl " + command + " ---\n" + out)
		if err != nil {
			text.WriteString(err.Error() + "\n")
		}
	}
	return text.String()
}

// eventually is [proctest.Eventually] with the test's limit. A failure shows the cluster's state.
func (b *harness) eventually(t *testing.T, what string, condition func() bool) time.Duration {
	t.Helper()
	return proctest.Eventually(t, limit, what, condition, func() string { return b.state(t) })
}

// agents are the pods of the DaemonSet, by node.
func (b *harness) agents(t *testing.T) []corev1.Pod {
	t.Helper()
	return b.pods(t, "kube-system", "app.kubernetes.io/name=node-cache")
}

func (b *harness) pods(t *testing.T, namespace, selector string) []corev1.Pod {
	t.Helper()
	list, err := b.Client().CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(x, y corev1.Pod) int { return strings.Compare(x.Spec.NodeName, y.Spec.NodeName) })
	return list.Items
}

// awaitAgentsReady waits until a ready agent is on each node, and fails the test if one was restarted; one that is being deleted may have
// been, by an earlier step. "kubectl rollout status" may return before: between the start of a container and its first readiness probe a
// kubelet can report the pod as ready for a moment.
func (b *harness) awaitAgentsReady(t *testing.T) {
	t.Helper()
	b.eventually(t, "a ready agent on each node", func() bool {
		var on []string
		for _, pod := range b.agents(t) {
			status := pod.Status.ContainerStatuses
			if pod.DeletionTimestamp != nil {
				continue
			}
			if len(status) == 1 && status[0].RestartCount > 0 {
				t.Fatalf("%s on %s was restarted\n%s", pod.Name, pod.Spec.NodeName, b.state(t))
			}
			if len(status) == 1 && status[0].Ready {
				on = append(on, pod.Spec.NodeName)
			}
		}
		return slices.Equal(on, []string{"node1", "node2"})
	})
}

// status is a part of an agent's /status, which its own client shows.
func (b *harness) status(t *testing.T, pod corev1.Pod, to any) {
	t.Helper()
	text := b.kubectl(t, "-n", "kube-system", "exec", pod.Name, "--", "/node-cache", "status", "--output=json")
	if err := json.Unmarshal([]byte(text), to); err != nil {
		t.Fatalf("the status of %s: %v\n%s", pod.Name, err, text)
	}
}

// httpDo asks a server of the cluster by HTTP, from the control machine.
func (b *harness) httpDo(t *testing.T, method, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := b.http.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

func since(began time.Time) time.Duration { return time.Since(began).Round(10 * time.Millisecond) }
