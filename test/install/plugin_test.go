// SPDX-License-Identifier: Apache-2.0

package install

import (
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// testPlugin runs the kubectl plugin, as kubectl finds it on PATH. The agents know the pods of their nodes.
func (b *harness) testPlugin(t *testing.T) {
	t.Helper()
	folder := t.TempDir()
	b.runShell(t, "tar -C "+folder+" -xf "+filepath.Join(images, "kubectl-node_cache-linux-"+runtime.GOARCH+".tar.gz"))
	plugin := func(args string) (string, error) {
		out, err := b.Shell(t.Context(), folder, "PATH=$PATH:"+folder+" kubectl node-cache "+args).CombinedOutput()
		t.Logf("$ kubectl node-cache %s\n%s%v", args, out, err)
		return string(out), err
	}
	b.startClients(t, "plugin")
	for _, step := range []struct{ args, want string }{
		{"wait --timeout 3m", `(?m)^of 2 nodes, 2 have the current revision, 2 are ready$`},
		{"status", `(?m)^NODE +VERSION +READY +HITS +LEASES +PROBLEMS\nnode1 +\S+ +yes +[0-9.]+ % +1/1 .*\nnode2 +\S+ +yes +[0-9.]+ % +1/1 .*\n$`},
		{"top --by namespace", `(?m)^ +[1-9][0-9]*\.[0-9].*  default$`},
		{"flush www.example.com", `^flushed on 2 of 2 nodes: [1-9][0-9]* entries removed\n$`},
		{"doctor node2", ` 0 failed`},
	} {
		b.eventually(t, "kubectl node-cache "+step.args, func() bool {
			out, err := plugin(step.args)
			return err == nil && regexp.MustCompile(step.want).MatchString(out)
		})
	}
	signal := func(name string) {
		if _, err := b.Nodes[1].Output(t.Context(), "sh", "-c", "kill -"+name+" $(pidof node-cache)"); err != nil {
			t.Fatal(err)
		}
	}
	signal("STOP")
	out, err := plugin("status")
	signal("CONT")
	if err == nil || !strings.Contains(out, "\nnode1 ") || !strings.Contains(out, "\nnode-cache: node node2: no answer within ") {
		t.Errorf("with a stopped agent: %v", err)
	}
}
