// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
)

// examples is the folder that `make run` runs with.
const examples = "../../examples"

// startExamples runs an agent with a copy of the example's configuration and objects, on other ports. It returns the folder of
// the objects too.
func startExamples(t *testing.T) (n *node, folder string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(examples)); err != nil {
		t.Fatal(err)
	}
	n = &node{settings: settings{addr: proctest.FreeAddr(t), admin: proctest.FreeAddr(t)}, config: filepath.Join(dir, "node-cache.yaml")}
	text := readFile(t, n.config)
	for old, now := range map[string]string{
		"port: 1053":       fmt.Sprintf("port: %d", n.settings.addr.Port()),
		"/etc/resolv.conf": startUpstream(t).String(),
	} {
		if strings.Count(text, old) != 1 {
			t.Fatalf("the example's configuration does not have %q once:\n%s", old, text)
		}
		text = strings.Replace(text, old, now, 1)
	}
	proctest.WriteFile(t, n.config, text+fmt.Sprintf("admin: {address: %q}\n", n.settings.admin))
	n.Process = proctest.Start(t, "node-cache agent", exec.Command(nodeCache, "agent", "--config", n.config))
	t.Cleanup(func() { n.stop(t) })
	n.awaitReady(t)
	return n, filepath.Join(dir, "cluster")
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestExamples types what the example's README says, and compares what it says comes of it.
func TestExamples(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("dig"); err != nil {
		t.Skipf("dig is not installed, Debian package bind9-dnsutils: %v", err)
	}
	n, folder := startExamples(t)
	if s := n.status(t); len(s.Problems) > 0 {
		t.Errorf("/status names problems with the examples: %+v", s.Problems)
	}
	asked := 0
	for _, c := range consoleOf(readFile(t, filepath.Join(examples, "README.md"))) {
		program, rest, _ := strings.Cut(c.command, " ")
		if program != "dig" {
			continue
		}
		asked++
		rest = strings.Replace(rest, "-p 1053", fmt.Sprintf("-p %d", n.settings.addr.Port()), 1)
		out, err := exec.CommandContext(t.Context(), "dig", strings.Fields(rest)...).Output()
		if err != nil {
			t.Errorf("%s: %v\n%s", c.command, err, out)
			continue
		}
		got := slices.Sorted(strings.Lines(string(out)))
		if diff := cmp.Diff(slices.Sorted(strings.Lines(c.output)), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.command, diff)
		}
	}
	if asked < 10 {
		t.Errorf("the README asks %d questions, want all kinds", asked)
	}
	n.editShop(t, filepath.Join(folder, "shop.yaml"))
}

// console is a command and its output, as a README shows them.
type console struct{ command, output string }

// consoleOf finds the commands in blocks of type console.
func consoleOf(text string) (list []console) {
	inside := false
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "```"):
			inside = strings.HasPrefix(line, "```console")
		case !inside:
		case strings.HasPrefix(line, "$ "):
			list = append(list, console{command: strings.TrimSpace(line[2:])})
		case len(list) > 0:
			list[len(list)-1].output += line
		}
	}
	return list
}

// editShop edits the file as the README proposes, in place as sed does not and in one step as it does.
func (n *node) editShop(t *testing.T, file string) {
	t.Helper()
	text := readFile(t, file)
	const edits = 20
	var took times
	for i := range edits {
		address := fmt.Sprintf("10.96.10.%d", 1+(i+1)%edits) // the one that it has in the end
		changed := strings.ReplaceAll(text, "10.96.10.1", address)
		if i%2 == 1 {
			if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
		} else {
			proctest.WriteFile(t, file, changed)
		}
		edited := time.Now()
		n.awaitAnswer(t, webName, "NOERROR "+address)
		took.add(time.Since(edited))
	}
	t.Logf("%d edits of a file: right after %s", edits, took.spread())
	took.expectInTime(t)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	n.awaitAnswer(t, webName, "NXDOMAIN")
	proctest.WriteFile(t, file, text)
	n.awaitAnswer(t, webName, "NOERROR 10.96.10.1")
}

// TestManifestProblems breaks files beside good ones.
func TestManifestProblems(t *testing.T) {
	t.Parallel()
	n, folder := startExamples(t)
	held := startLoad(t, n.settings.addr, inTurn(
		expectedQuery{"db.shop.svc.cluster.local.", dns.TypeA, []string{"NOERROR 10.244.1.10 10.244.2.10 10.244.3.10"}},
		expectedQuery{webName, dns.TypeA, []string{"NOERROR 10.96.10.1"}},
	))
	for name, text := range map[string]string{
		"garbage.yaml": "{ this is : [ no YAML\n",
		"mixed.yaml": `apiVersion: v1
kind: Service
metadata: {name: good, namespace: shop}
spec: {clusterIP: 10.96.20.1}
---
apiVersion: v1
kind: Service
metadata: {name: bad, namespace: shop}
spec: {clusterIP: 10.96.20.300}
---
apiVersion: v1
kind: Service
metadata: {name: good-too, namespace: shop}
spec: {clusterIP: 10.96.20.2}
`,
		"binary.yaml": "\x00\xff\xfe",
	} {
		proctest.WriteFile(t, filepath.Join(folder, name), text)
	}
	// A slip in a file that was good takes nothing away.
	shop := readFile(t, filepath.Join(folder, "shop.yaml"))
	proctest.WriteFile(t, filepath.Join(folder, "shop.yaml"), strings.ReplaceAll(shop, "10.96.10.1", "10.96.10.x"))
	n.awaitAnswer(t, "good.shop.svc.cluster.local.", "NOERROR 10.96.20.1")
	n.awaitAnswer(t, "good-too.shop.svc.cluster.local.", "NOERROR 10.96.20.2")
	n.expect(t, expectedAnswer{"bad.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN"})
	files := map[string]int{"garbage.yaml": 1, "mixed.yaml": 2, "binary.yaml": 1, "shop.yaml": 2}
	proctest.Eventually(t, limit, "each broken file is named", func() bool { return len(n.problemFiles(t)) == len(files) },
		func() string { return fmt.Sprintf("named are %v", n.problemFiles(t)) })
	if diff := cmp.Diff(files, n.problemFiles(t)); diff != "" {
		t.Errorf("files and documents with problems (-want +got):\n%s", diff)
	}
	if s := n.status(t); len(s.Problems) != 1 || s.Problems[0].Where != "cluster.manifests" {
		t.Errorf("/status names the problems %+v, want that there are some with the manifests", s.Problems)
	}
	for file := range files { // what it wrote is on its way through a pipe
		proctest.Eventually(t, limit, "the log names "+file, func() bool { return strings.Contains(n.Stderr.String(), file) })
	}
	if !n.ready() {
		t.Error("not ready with problems in some files")
	}
	for _, name := range []string{"garbage.yaml", "mixed.yaml", "binary.yaml"} {
		if err := os.Remove(filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	proctest.WriteFile(t, filepath.Join(folder, "shop.yaml"), shop)
	proctest.Eventually(t, limit, "no problem is left", func() bool { return len(n.status(t).Problems) == 0 })
	n.awaitAnswer(t, "good.shop.svc.cluster.local.", "NXDOMAIN")
	held.end(t)
}

// problemFiles gives the document of each file that has a problem.
func (n *node) problemFiles(t *testing.T) map[string]int {
	t.Helper()
	files := map[string]int{}
	for _, p := range n.status(t).Cluster.ManifestProblems {
		files[p.File] = p.Document
	}
	return files
}
