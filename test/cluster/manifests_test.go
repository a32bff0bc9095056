// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// TestExamples edits a file of the example, also wrongly. pkg/watch asks the questions of its README.
func TestExamples(t *testing.T) {
	t.Parallel()
	n, folder := startExamples(t)
	if s := n.status(t); len(s.Problems) > 0 {
		t.Errorf("/status names problems with the examples: %+v", s.Problems)
	}
	n.editShop(t, filepath.Join(folder, "shop.yaml"))
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
	proctest.WriteFile(t, file, strings.ReplaceAll(text, "10.96.10.1", "10.96.10.x"))
	proctest.Eventually(t, limit, "the slip is named", func() bool { return len(n.status(t).Problems) > 0 })
	s := n.status(t)
	if s.Problems[0].Where != "cluster.manifests" || len(s.Cluster.ManifestProblems) == 0 || s.Cluster.ManifestProblems[0].File != "shop.yaml" {
		t.Errorf("/status names the problems %+v and %+v", s.Problems, s.Cluster.ManifestProblems)
	}
	n.expect(t, expectedAnswer{webName, dns.TypeA, "NOERROR 10.96.10.1"})
	proctest.Eventually(t, limit, "the log names the file", func() bool { return strings.Contains(n.Stderr.String(), "shop.yaml") })
	if !n.ready() {
		t.Error("not ready with a slip in one file")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	n.awaitAnswer(t, webName, "NXDOMAIN")
	proctest.WriteFile(t, file, text)
	n.awaitAnswer(t, webName, "NOERROR 10.96.10.1")
}
