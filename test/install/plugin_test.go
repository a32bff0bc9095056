// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/proctest"
)

// plugin returns a function that makes a command line of the kubectl plugin, which kubectl finds on PATH.
func (b *harness) plugin(t *testing.T) func(args string) *exec.Cmd {
	t.Helper()
	folder := t.TempDir()
	b.runShell(t, "tar -C "+folder+" -xf "+filepath.Join(images, "kubectl-node_cache-linux-"+runtime.GOARCH+".tar.gz"))
	return func(args string) *exec.Cmd {
		return b.Shell(t.Context(), folder, "PATH=$PATH:"+folder+" kubectl node-cache "+args)
	}
}

// output runs a command of the plugin.
func output(t *testing.T, cmd *exec.Cmd) (string, error) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	t.Logf("$ %s\n%s%v", cmd.Args[len(cmd.Args)-1], out, err)
	return string(out), err
}

// testPlugin runs the kubectl plugin. The agents know the pods of their nodes.
func (b *harness) testPlugin(t *testing.T) {
	t.Helper()
	plugin := b.plugin(t)
	b.startClients(t, "plugin")
	for _, step := range []struct{ args, want string }{
		{"wait --timeout 3m", `(?m)^of 2 nodes, 2 have the current revision, 2 are ready$`},
		{"status", `(?m)^NODE +VERSION +READY +HITS +LEASES +PROBLEMS\nnode1 +\S+ +yes +[0-9.]+ % +1/1 .*\nnode2 +\S+ +yes +[0-9.]+ % +1/1 .*\n$`},
		{"top --by namespace", `(?m)^ +[1-9][0-9]*\.[0-9].*  default$`},
		{"flush www.example.com", `^flushed on 2 of 2 nodes: [1-9][0-9]* entries removed\n$`},
		{"doctor node2", ` 0 failed`},
	} {
		b.eventually(t, "kubectl node-cache "+step.args, func() bool {
			out, err := output(t, plugin(step.args))
			return err == nil && regexp.MustCompile(step.want).MatchString(out)
		})
	}
	signal := func(name string) {
		if _, err := b.Nodes[1].Output(t.Context(), "sh", "-c", "kill -"+name+" $(pidof node-cache)"); err != nil {
			t.Fatal(err)
		}
	}
	signal("STOP")
	out, err := output(t, plugin("status"))
	signal("CONT")
	if err == nil || !strings.Contains(out, "\nnode1 ") || !strings.Contains(out, "\nnode-cache: node node2: no answer within ") {
		t.Errorf("with a stopped agent: %v", err)
	}
}

// testPluginStreams asks single agents, watches both, and opens the page of one, until Ctrl-C and until its pod ends. Then no process
// of the plugin is left in the agents' containers.
func (b *harness) testPluginStreams(t *testing.T) {
	t.Helper()
	plugin := b.plugin(t)
	out, err := output(t, plugin("query node1 kubernetes.default.svc.cluster.local --explain"))
	if err != nil || !strings.Contains(out, "\tIN\tA\t10.96.0.1\n") || !regexp.MustCompile("source="+b.source()).MatchString(out) {
		t.Errorf("query: %v", err)
	}
	code := (*exec.ExitError)(nil)
	out, err = output(t, plugin("query node2 nothing.default.svc.cluster.local AAAA --explain -o json"))
	if !errors.As(err, &code) || code.ExitCode() != 3 || b.overlay == "base" && !strings.Contains(out, `"denied": "no_service"`) {
		t.Errorf("query for a name that does not exist: %v", err)
	}

	watch := b.begin(t, plugin("watch --name kubernetes.default.svc.cluster.local"))
	for _, node := range b.Nodes {
		seen := make(chan bool, 1)
		go func() {
			seen <- watch.find(`^` + node.Name + `  \d\d:\d\d:\d\d\.\d{3}  NOERROR  ` + b.source() + ` .* kubernetes\.default\.svc\.cluster\.local\.  `)
		}()
		b.eventually(t, "watch shows a query of "+node.Name, func() bool {
			_, _ = output(t, plugin("query "+node.Name+" kubernetes.default.svc.cluster.local"))
			select {
			case found := <-seen:
				return found
			default:
				return false
			}
		})
	}
	b.interruptPlugin(t)
	if err := watch.Wait(); err != nil {
		t.Errorf("watch after Ctrl-C: %v: %s", err, &watch.stderr)
	}
	b.awaitNoRelay(t)

	page := b.begin(t, plugin("page node2 --no-browser"))
	at, err := page.lines.ReadString('\n')
	if at = strings.TrimSpace(at); err != nil {
		t.Fatalf("page: %v: %s", err, &page.stderr)
	}
	for _, tt := range []struct{ url, want string }{{at, "node2"}, {at + "page.js", "use strict"}, {at + "cache/top", "{"}} {
		if code, body := b.get(t, tt.url); code != http.StatusOK || !strings.Contains(body, tt.want) {
			t.Errorf("%s: %d, %s", tt.url, code, body)
		}
	}
	if code, body := b.get(t, at[:len(at)-2]+"/"); code != http.StatusForbidden {
		t.Errorf("with another secret: %d, %s", code, body)
	}
	b.kubectl(t, "-n", "kube-system", "delete", "pod", b.agents(t)[1].Name)
	if err := page.Wait(); !errors.As(err, &code) || code.ExitCode() != 1 || !strings.Contains(page.stderr.String(), "node-cache: node node2: ") || !strings.Contains(page.stderr.String(), "\nhint: run the command again ") {
		t.Errorf("page after the end of the pod: %v: %s", err, &page.stderr)
	}
	b.awaitAgentsReady(t)

	page = b.begin(t, plugin("page node2 --no-browser"))
	if _, err := page.lines.ReadString('\n'); err != nil {
		t.Fatalf("page: %v: %s", err, &page.stderr)
	}
	relays, err := b.relays(t)
	if err != nil {
		t.Error(err)
	}
	proctest.Figure(t, "the page of a node takes a process in the agent's container of %s", relays)
	b.interruptPlugin(t)
	if err := page.Wait(); err != nil {
		t.Errorf("page after Ctrl-C: %v: %s", err, &page.stderr)
	}
	b.awaitNoRelay(t)
}

// A running is a command of the plugin that runs until it is interrupted.
type running struct {
	*exec.Cmd

	lines  *bufio.Reader // of standard output
	stderr bytes.Buffer
}

func (b *harness) begin(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	r := &running{Cmd: cmd}
	cmd.Stderr = &r.stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.lines = bufio.NewReader(stdout)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

// find reads lines until one matches, and reports whether one does.
func (r *running) find(pattern string) bool {
	for want := regexp.MustCompile(pattern); ; {
		line, err := r.lines.ReadString('\n')
		if want.MatchString(line) || err != nil {
			return err == nil
		}
	}
}

// interruptPlugin does what Ctrl-C does.
func (b *harness) interruptPlugin(t *testing.T) {
	t.Helper()
	if _, err := b.Control.Output(t.Context(), "sh", "-c", "kill -INT $(pidof kubectl-node_cache)"); err != nil {
		t.Fatal(err)
	}
}

// relays returns the memory that the relay on node2 takes for itself.
func (b *harness) relays(t *testing.T) (string, error) {
	t.Helper()
	out, err := b.Nodes[1].Output(t.Context(), "sh", "-c", "grep RssAnon /proc/$(pgrep -f '^/node-cache relay$')/status")
	return strings.Join(strings.Fields(strings.TrimPrefix(out, "RssAnon:")), " "), err
}

func (b *harness) awaitNoRelay(t *testing.T) {
	t.Helper()
	for _, n := range b.Nodes {
		b.eventually(t, "no relay is left on "+n.Name, func() bool {
			out, _ := n.Output(t.Context(), "pgrep", "-fc", "^/node-cache relay$")
			return strings.TrimSpace(out) == "0"
		})
	}
}

// get requests a page from the control machine.
func (b *harness) get(t *testing.T, url string) (int, string) {
	t.Helper()
	reply, err := b.http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reply.Body.Close() }()
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply.StatusCode, string(body)
}
