// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
)

// lookupImage has a program for each resolver library, which looks up its arguments. A pod mounts /usr for Node.js, whose resolver is
// the C library's in its own threads, as Java's is.
const lookupImage = "docker.io/library/lookup:1"

// lookupClients are the command lines that look up the name that follows.
var lookupClients = [][]string{
	{"glibc"},
	{"musl"},
	{"go"},
	{"/usr/bin/node", "-e", `require("dns").lookup(process.argv[1], {all: true}, (...found) => console.log(found))`},
}

// writeLookupImage makes the image and returns its archive.
func writeLookupImage(t *testing.T) string {
	t.Helper()
	proctest.FindProgram(t, "/usr/bin/node", "nodejs")
	dir := t.TempDir()
	image := kubenode.Image{Name: lookupImage, Files: map[string]string{
		"bin/sleep": "-> busybox", "bin/busybox": "/bin/busybox", "lib": "-> usr/lib", "lib64": "-> usr/lib64",
	}}
	for libc, compiler := range map[string]string{
		"glibc": proctest.FindProgram(t, "gcc", "gcc"), "musl": proctest.FindProgram(t, "musl-gcc", "musl-tools"),
	} {
		to := filepath.Join(dir, libc)
		if out, err := exec.Command(compiler, "-static", "-O1", "-o", to, "../e2e/testdata/lookup.c").CombinedOutput(); err != nil {
			t.Fatalf("compiling for %s: %v\n%s", libc, err, out)
		}
		image.Files["bin/"+libc] = to
	}
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "go"), "./testdata/lookup")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("compiling for Go: %v\n%s", err, out)
	}
	image.Files["bin/go"] = filepath.Join(dir, "go")
	archive := filepath.Join(dir, "image.tar")
	if err := image.Archive(archive); err != nil {
		t.Fatal(err)
	}
	return archive
}

// searchPod wants a name and a label.
const searchPod = `apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: search, %[2]s}}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "` + lookupImage + `", command: [sleep, "3600"], volumeMounts: [{name: usr, mountPath: /usr, readOnly: true}]}]
  volumes: [{name: usr, hostPath: {path: /usr}}]
---
`

// searchPods are a pod whose search path the agent walks, one that has opted in, and one that asks it not to.
func searchPods() map[string]string {
	return map[string]string{"walked": `a: b`, "opted-in": `node-cache.io/dns: "on"`, "left-alone": `node-cache.io/search-path: "off"`}
}

// testSearchPath counts the queries that resolver libraries send for a name outside, as the agent counts them for each pod, with the
// resolv.conf of the kubelet, and with that of the policy.
func (b *harness) testSearchPath(t *testing.T) {
	t.Helper()
	b.kubectl(t, "apply", "-k", b.manifests(t, "daemonset/components/metrics", "daemonset/components/pods",
		"daemonset/components/pods-kubelet", "daemonset/components/opt-in"))
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=3m")
	b.runShell(t, "kubectl -n kube-system edit configmap node-cache",
		`KUBE_EDITOR=sed -i 's/^    cluster:$/    pods: {identity: api, searchPath: on}\n    cluster:/'`)
	b.awaitOptIn(t, "None", "--labels=node-cache.io/dns=on")
	var manifest strings.Builder
	for name, label := range searchPods() {
		fmt.Fprintf(&manifest, searchPod, name, label)
	}
	b.kubectlInput(t, manifest.String(), "apply", "-f", "-")
	b.kubectl(t, "wait", "--for=condition=Ready", "--timeout=90s", "pod", "-l", "app=search")
	b.eventually(t, "the agent knows the pods", func() bool { return len(b.queriesOfPods(t)) == len(searchPods()) })
	for _, lookup := range lookupClients {
		client, sent := path.Base(lookup[0]), map[string]int{}
		for pod := range searchPods() {
			before := b.queriesOfPods(t)[pod]
			out := b.kubectl(t, slices.Concat([]string{"exec", pod, "--"}, lookup, []string{"www.example.com"})...)
			if !strings.Contains(out, kubenode.InternetAddr) || !strings.Contains(out, kubenode.InternetAddr6) {
				t.Errorf("%s of %s: %s", client, pod, out)
			}
			sent[pod] = b.queriesOfPods(t)[pod] - before
		}
		proctest.Figure(t, "queries of %s for www.example.com: %d, without the walk %d", client, sent["walked"], sent["left-alone"])
		if sent["walked"] != 2 || sent["opted-in"] != 2 || sent["left-alone"] < 8 {
			t.Errorf("%s: queries %v, want 2 with the walk", client, sent)
		}
	}
	b.kubectl(t, "delete", "pod", "opted-in")
	b.removeOptIn(t)
}

// queriesOfPods returns the queries of each pod of the first node, none before the agent knows pods.
func (b *harness) queriesOfPods(t *testing.T) map[string]int {
	t.Helper()
	text, err := b.Kubectl(t.Context(), "", "-n", "kube-system", "exec", b.agents(t)[0].Name, "--", "/node-cache", "top", "-o", "json")
	if err != nil {
		return nil
	}
	var top struct {
		Pods []struct {
			Pod     string
			Queries int
		}
	}
	if err := json.Unmarshal([]byte(text), &top); err != nil {
		t.Fatalf("top: %v\n%s", err, text)
	}
	queries := map[string]int{}
	for _, p := range top.Pods {
		if _, ok := searchPods()[p.Pod]; ok {
			queries[p.Pod] = p.Queries
		}
	}
	return queries
}
