// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/admin/top"
	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/intercept"
)

// writeJSON writes a page as an agent does.
func writeJSON(out io.Writer, page any) int {
	if err := json.NewEncoder(out).Encode(page); err != nil {
		return 1
	}
	return 0
}

// statusPages are what the agents of TestStatus report.
func statusPages() map[string]status.Status {
	good := status.Status{State: "ready", Version: "v0.7.0", Queries: status.Queries{HitRatio: new(0.973)}}
	good.Node = &status.Node{Intercept: &status.Intercept{Leases: []intercept.LeaseStats{{Held: true}, {}}}}
	waits := status.Status{State: "not ready: the zone is not synced", Version: "v0.7.0"}
	bad := good
	bad.State = "not ready: no lease"
	bad.Problems = []status.Problem{{Where: "intercept", What: "the lease is not held", Hint: "wait"}, {}, {}}
	hostile := status.Status{State: "ready", Version: "v1\x1b[2J\u009b\u202e\nnode9  v0.7.0  yes", Problems: []status.Problem{{Where: "x", What: strings.Repeat("y", 1<<20)}}}
	return map[string]status.Status{"a": good, "b": waits, "c": bad, "d": hostile}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	starting := agentPod("e", "", 1)
	starting.Status.Phase = corev1.PodPending
	other := agentPod("not-ours", "node9", 1)
	other.OwnerReferences = nil
	old := agentPod("old", "node1", 9)
	unready := agentPod("new", "node1", 0)
	unready.Status.Conditions = nil
	s := apiServer{
		daemonSet: daemonSet(7),
		pods: []corev1.Pod{
			agentPod("f", "node5", 1), agentPod("d", "node4", 1), agentPod("c", "node3", 1), agentPod("b", "node2", 1), unready, agentPod("a", "node1", 1), old, starting, other,
		},
		run: func(pod, command string, stdout, stderr, _ io.Writer) int {
			page, known := statusPages()[pod]
			if !known || command != "/node-cache status -o json" {
				_, _ = io.WriteString(stderr, "node-cache: asking the agent: \x1b[31mno\nhint: wait\x1b[31m\nhint: more\n")
				return 1
			}
			return writeJSON(stdout, page)
		},
	}
	flag := s.start(t)
	got := command("status", flag)
	assert.Same(t, "table", `NODE      VERSION                      READY  HITS    LEASES  PROBLEMS
node1     v0.7.0                       yes    97.3 %  1/2     -
node2     v0.7.0                       no     -       -       the zone is not synced
node3     v0.7.0                       no     97.3 %  1/2     intercept: the lease is not held (2 more)
node4     v1?[2J???node9  v0.7.0  yes  yes    -       -       x: `+strings.Repeat("y", 197)+` …
node5     -                            -      -       -       no status
of pod e  -                            -      -       -       no status
`, got.Stdout)
	assert.Same(t, "errors", `node-cache: node node5: asking the agent: ?[31mno
hint: wait?[31m
node-cache: node of pod e: pod e does not run: Pending
node-cache: 1 nodes should have an agent and have none
hint: `+"`kubectl describe daemonset` shows why\n", got.Stderr)
	assert.Equal(t, "exit code", cli.ExitFailed, got.Code)
	got = command("status", flag, "-o", "json")
	var page struct {
		Nodes []struct {
			Node, Error string
			Status      *status.Status
		}
	}
	assert.NoError(t, json.Unmarshal([]byte(got.Stdout), &page))
	if n := page.Nodes; len(n) != 6 || n[2].Status.Problems[0].Hint != "wait" || n[4].Error == "" || strings.ContainsAny(got.Stdout, "\x1b\u009b\u202e") {
		t.Errorf("got %+v", page)
	}
}

func TestTop(t *testing.T) {
	t.Parallel()
	var asked atomic.Uint64
	s := apiServer{
		daemonSet: daemonSet(3),
		pods:      []corev1.Pod{agentPod("a", "node1", 1), agentPod("b", "node2", 1), agentPod("c", "node3", 1)},
		run: func(pod, _ string, stdout, stderr, _ io.Writer) int {
			if pod == "c" {
				_, _ = io.WriteString(stderr, "node-cache: the pods of the node are not known\nhint: set pods.identity\n")
				return 1
			}
			n := asked.Add(1000)
			return writeJSON(stdout, top.Page{Pods: []top.Row{
				{Namespace: "shop", Pod: "web-" + pod, Workload: "Deployment/web", Counts: top.Counts{Queries: n, Search: n}},
				{Namespace: "evil\nnode-cache: all is well", Pod: "\x1b[2J"},
			}})
		},
	}
	flag := s.start(t)
	got := command("top", flag, "--by", "workload", "--interval", "100ms")
	lines := strings.Split(got.Stdout, "\n")
	if len(lines) != 5 || !strings.HasSuffix(lines[1], "   0 %       0 %   100 %     0 %    0 %    0.0 ms         0  shop/Deployment/web") ||
		lines[2] != "      0.0       0 %       0 %     0 %     0 %    0 %    0.0 ms         0  (no pod)" || !strings.HasSuffix(lines[3], "  evil?node-cache: all is well/?[2J") {
		t.Errorf("got %+v", got)
	}
	assert.Equal(t, "errors", "node-cache: node node3: the pods of the node are not known\nhint: set pods.identity\n", got.Stderr)
	assert.Equal(t, "exit code", cli.ExitFailed, got.Code)
	got = command("top", flag, "--interval", "100ms", "--number", "2", "-o", "json")
	var page struct {
		Nodes int
		Rows  []top.Line
	}
	assert.NoError(t, json.Unmarshal([]byte(got.Stdout), &page))
	if page.Nodes != 2 || len(page.Rows) != 2 || page.Rows[0].Rates["queries"] <= 0 {
		t.Errorf("got %+v", page)
	}
}

func TestFlush(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var commands []string
	s := apiServer{
		daemonSet: daemonSet(2),
		pods:      []corev1.Pod{agentPod("new", "node1", 1), agentPod("old", "node1", 2), agentPod("broken", "node2", 1)},
		run: func(pod, command string, stdout, _, _ io.Writer) int {
			mu.Lock()
			defer mu.Unlock()
			commands = append(commands, pod+command)
			if pod == "broken" {
				return 1
			}
			return writeJSON(stdout, map[string]int{status.CacheFlushed: 3})
		},
	}
	flag := s.start(t)
	for _, tt := range []struct{ name, arguments, want string }{
		{"a name", "-- a.example.", "a.example"},
		{"a zone", "--zone=a.example.", "--zone=a.example."},
	} {
		commands = nil
		got := command("flush", flag, tt.want)
		assert.Same(t, tt.name, result{
			cli.ExitFailed, "flushed on 1 of 2 nodes: 6 entries removed\n", "node-cache: node node2: exit code 1\n",
		}, got)
		ours := slices.DeleteFunc(commands, func(c string) bool { return strings.HasPrefix(c, "broken") })
		want := "/node-cache cache flush -o json " + tt.arguments
		assert.Same(t, tt.name+": the predecessor's cache first", []string{"old" + want, "new" + want}, ours)
	}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	s := apiServer{
		daemonSet: daemonSet(1),
		pods:      []corev1.Pod{agentPod("a", "node1", 1)},
		run: func(_, _ string, stdout, stderr, _ io.Writer) int {
			_, _ = io.WriteString(stdout, "failed  \x1b[31mrules\n600µs\n")
			_, _ = io.WriteString(stderr, "late\n")
			return 3
		},
	}
	flag := s.start(t)
	assert.Same(t, "a failed check", result{3, "failed  ?[31mrules\n600µs\n", "late\n"}, command("doctor", "node1", flag))
	assert.Same(t, "another node", result{
		cli.ExitFailed, "", "node-cache: no agent on a node node2\nhint: `kubectl node-cache status` lists the nodes\n",
	}, command("doctor", "node2", flag))
}

// TestQuery passes on flags, arguments, output and exit code.
func TestQuery(t *testing.T) {
	t.Parallel()
	var ran string
	s := apiServer{
		daemonSet: daemonSet(1),
		pods:      []corev1.Pod{agentPod("a", "node1", 1)},
		run: func(_, command string, stdout, stderr, _ io.Writer) int {
			ran = command
			_, _ = io.WriteString(stdout, "a.example.\t60\tIN\tTXT\t\"\x1b[2J\u009b\"\n; NXDOMAIN\n")
			_, _ = io.WriteString(stderr, "\x1b[31mlate\n")
			return 3
		},
	}
	flag := s.start(t)
	want := result{3, "a.example.\t60\tIN\tTXT\t\"?[2J?\"\n; NXDOMAIN\n", "?[31mlate\n"}
	for _, tt := range []struct{ args, want string }{
		{"node1 a.example", "-- a.example"},
		{"node1 a.example TXT --explain -o json --server 192.0.2.1 --timeout 2s -n kube-system", "--explain=true --output=json --server=192.0.2.1 --timeout=2s -- a.example TXT"},
		{"node1 --tcp --pod 10.1.2.3 -- -x", "--pod=10.1.2.3 --tcp=true -- -x"},
	} {
		assert.Same(t, tt.args, want, command(append(strings.Fields("query "+flag), strings.Fields(tt.args)...)...))
		assert.Equal(t, tt.args, "/node-cache query "+tt.want, ran)
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	steps := []appsv1.DaemonSetStatus{
		{ObservedGeneration: 1, DesiredNumberScheduled: 2, UpdatedNumberScheduled: 2, NumberAvailable: 2}, // of the generation before
		{ObservedGeneration: 2, DesiredNumberScheduled: 2, UpdatedNumberScheduled: 1, NumberAvailable: 2},
		{ObservedGeneration: 2, DesiredNumberScheduled: 2, UpdatedNumberScheduled: 2, NumberAvailable: 2},
	}
	var asked atomic.Int64
	s := apiServer{daemonSet: func() *appsv1.DaemonSet {
		set := daemonSet(2)()
		set.Generation, set.Status = 2, steps[min(int(asked.Add(1)), len(steps))-1]
		return set
	}}
	flag := s.start(t)
	got := command("wait", flag)
	assert.Same(t, "all steps", result{0, "the DaemonSet has changed\nof 2 nodes, 1 have the current revision, 2 are ready\nof 2 nodes, 2 have the current revision, 2 are ready\n", ""}, got)
	steps = steps[:2]
	got = command("wait", flag, "--timeout", "2s")
	assert.Same(t, "timeout", result{
		cli.ExitFailed, "of 2 nodes, 1 have the current revision, 2 are ready\n",
		"node-cache: not ready within 2s: of 2 nodes, 1 have the current revision, 2 are ready\nhint: `kubectl node-cache status` shows the nodes\n",
	}, got)
}

// TestRefused has a user who may list pods, but not exec: one error, not one for each node.
func TestRefused(t *testing.T) {
	t.Parallel()
	s := apiServer{daemonSet: daemonSet(2), pods: []corev1.Pod{agentPod("a", "node1", 1), agentPod("b", "node2", 1)}}
	flag := s.start(t)
	for _, args := range []string{"status", "top", "flush a.example", "doctor node1", "query node1 a.example", "watch", "page node1"} {
		assert.Same(t, args, result{
			cli.ExitFailed, "",
			"node-cache: asking the API server: you may not\nhint: you need to get daemonsets, to list pods, and to get and create pods/exec in the namespace kube-system\n",
		}, command(append(strings.Fields(args), flag)...))
	}
	got := command("status", flag, "-n", "elsewhere")
	if got.Code != cli.ExitFailed || !strings.Contains(got.Stderr, "\nhint: set --namespace to that of the agents") {
		t.Errorf("another namespace: %+v", got)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, want string }{
		{"statsu", `unknown command "statsu" for "kubectl node-cache"; did you mean status?`},
		{"status -o yaml", `--output "yaml": not text or json`},
		{"top --by node", `--by "node": not one of pod, workload, namespace, name`},
		{"doctor", "accepts 1 arg(s), received 0"},
		{"query node1", "accepts between 2 and 3 arg(s), received 1"},
		{"query node1 a.example --timeout 0s", "--timeout 0s: not more than 0"},
		{"watch -o yaml", `--output "yaml": not text or json`},
		{"page", "accepts 1 arg(s), received 0"},
		{"flush", "flush: give exactly one of NAME and --zone"},
		{"flush a --zone b", "flush: give exactly one of NAME and --zone"},
		{"flush a..b", `"a..b": not a domain name`},
		{"wait --timeout 0s", "--timeout 0s: not more than 0"},
	} {
		got := command(strings.Fields(tt.args)...)
		if line, _, _ := strings.Cut(got.Stderr, "\n"); got.Code != cli.ExitUsage || line != "node-cache: "+tt.want {
			t.Errorf("%s: %+v, want %s", tt.args, got, tt.want)
		}
	}
}

// TestHostileAgent has nodes that send without end: what is read of them is bounded.
func TestHostileAgent(t *testing.T) {
	t.Parallel()
	endless := func(out func(stdout, stderr, status io.Writer) io.Writer, chunk string) func(string, string, io.Writer, io.Writer, io.Writer) int {
		return func(_, _ string, stdout, stderr, status io.Writer) int {
			for to := out(stdout, stderr, status); ; {
				if _, err := io.WriteString(to, chunk); err != nil {
					return 1
				}
			}
		}
	}
	chunk := strings.Repeat("x", 64<<10)
	for _, tt := range []struct {
		name string
		run  func(string, string, io.Writer, io.Writer, io.Writer) int
		want string
	}{
		{"standard output", endless(func(stdout, _, _ io.Writer) io.Writer { return stdout }, chunk), "it sent more than 4 MiB"},
		{"standard error", endless(func(_, stderr, _ io.Writer) io.Writer { return stderr }, chunk), "it sent more than 4 MiB"},
		{"status", endless(func(_, _, status io.Writer) io.Writer { return status }, chunk), "it sent more than 4 MiB"},
		{"one message", endless(func(stdout, _, _ io.Writer) io.Writer { return stdout }, strings.Repeat("x", 8<<20)), "read limit exceeded"},
		{"a status that is none", func(_, _ string, _, _, status io.Writer) int {
			_, _ = io.WriteString(status, "{")
			return 0
		}, "reading the status: "},
		{"a page that is none", func(_, _ string, stdout, _, _ io.Writer) int {
			_, _ = io.WriteString(stdout, strings.Repeat("[", 1<<20))
			return 0
		}, "reading the status: "},
		{"a page of many levels", func(_, _ string, stdout, _, _ io.Writer) int {
			_, _ = io.WriteString(stdout, `{"state":"ready","x":`+strings.Repeat("[", 9000)+strings.Repeat("]", 9000)+"}")
			return 0
		}, "reading the status: JSON with more than 16 levels"},
		{"a page of many problems", func(_, _ string, stdout, _, _ io.Writer) int {
			_, _ = io.WriteString(stdout, `{"problems":[`+strings.Repeat("{},", 1<<20)+"{}]}")
			return 0
		}, "reading the status: JSON with more than 262144 tokens"},
		{"a status of many causes", func(_, _ string, _, _, status io.Writer) int {
			_, _ = io.WriteString(status, `{"details":{"causes":[`+strings.Repeat("{},", 1<<20)+"{}]}}")
			return 0
		}, "reading the status: JSON with more than 262144 tokens"},
		{"an exit code that is none", func(_, _ string, _, _, _ io.Writer) int { return 256 }, "the status has no message"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := apiServer{daemonSet: daemonSet(1), pods: []corev1.Pod{agentPod("a", "node1", 1)}, run: tt.run}
			got := command("status", s.start(t))
			if got.Code != cli.ExitFailed || !strings.HasPrefix(got.Stderr, "node-cache: node node1: ") || !strings.Contains(got.Stderr, tt.want) || len(got.Stdout) > 1000 {
				t.Errorf("got %+v, want %s", got, tt.want)
			}
		})
	}
}

// TestHostilePods has a node that lists pods without end.
func TestHostilePods(t *testing.T) {
	t.Parallel()
	s := apiServer{daemonSet: daemonSet(1), pods: []corev1.Pod{agentPod("a", "node1", 1)}, run: func(_, _ string, stdout, _, _ io.Writer) int {
		_, _ = io.WriteString(stdout, `{"pods":[`+strings.Repeat("{},", 1<<20)+"{}]}")
		return 0
	}}
	got := command("top", s.start(t), "--interval", "100ms")
	assert.Equal(t, "errors", "node-cache: node node1: reading the pods: JSON with more than 262144 tokens\n", got.Stderr)
}

// TestReadReply reads what no server of the test sends.
func TestReadReply(t *testing.T) {
	t.Parallel()
	empty := &messages{}
	_, err := readReply(empty)
	if err == nil || empty.read != maxReply {
		t.Errorf("empty messages: %v after %d, want an error after %d", err, empty.read, maxReply)
	}
	if _, err := readReply(&messages{err: errors.New("reset")}); err == nil || err.Error() != "the connection ended: reset" {
		t.Errorf("a connection that ends without a status: %v", err)
	}
}

// messages are empty, until err.
type messages struct {
	read int
	err  error
}

func (m *messages) SetReadLimit(int64) {}

func (m *messages) ReadMessage() (int, []byte, error) {
	m.read++
	return 0, nil, m.err
}

// TestHang has an agent that does not answer: its row says so when the time is over, and the others have theirs.
func TestHang(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	s := apiServer{
		daemonSet: daemonSet(2),
		pods:      []corev1.Pod{agentPod("a", "node1", 1), agentPod("b", "node2", 1)},
		run: func(pod, _ string, stdout, _, _ io.Writer) int {
			if pod == "a" {
				<-ended
			}
			return writeJSON(stdout, statusPages()["b"])
		},
	}
	_, file, _ := strings.Cut(s.start(t), "=")
	t.Cleanup(func() { close(ended) })
	c := &cluster{kubeconfig: file, namespace: "kube-system", timeout: 500 * time.Millisecond}
	cmd := statusCommand(c)
	var stdout, stderr bytes.Buffer
	cmd.SetArgs([]string{})
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	err := cmd.ExecuteContext(t.Context())
	if code := cli.ExitError(0); !errors.As(err, &code) || code != cli.ExitFailed || !strings.HasPrefix(stderr.String(), "node-cache: node node1: no answer within 500ms\n") || !strings.Contains(stdout.String(), "\nnode2  v0.7.0") {
		t.Errorf("got %v, %s%s", err, &stdout, &stderr)
	}
}

// TestWithStandby changes one key of a configuration and keeps all else.
func TestWithStandby(t *testing.T) {
	t.Parallel()
	const rest = "# ours\nkind: Config\ncluster: {resolver: local} # here\n"
	for _, tt := range []struct {
		name, text, off, on string // empty: refused
	}{
		{"a block", rest, "# ours\n" + standbyLine + "kind: Config\ncluster: {resolver: local} # here\n", rest},
		{"no line end", "kind: Config", standbyLine + "kind: Config", "kind: Config"},
		{"a document's begin", "---\n# x\n\nkind: Config\n", "---\n# x\n\n" + standbyLine + "kind: Config\n", "---\n# x\n\nkind: Config\n"},
		{"set by hand", "kind: Config\nstandby: false # not now\n", standbyLine + "kind: Config\n", "kind: Config\nstandby: false\n"},
		{"empty", "", standbyLine, ""},
		{"only comments", "# nothing\n", "# nothing\n" + standbyLine, "# nothing\n"},
		{"flow style", "{kind: Config}", "", "{kind: Config}"},
		{"two documents", "kind: Config\n---\nkind: Config\n", "", ""},
		{"not YAML", "a: [", "", ""},
		{"a key within a text", "kind: Config\nx: |\n  a\nstandby: true\n", standbyLine + "kind: Config\nx: |\n  a\n", "kind: Config\nx: |\n  a\nstandby: false\n"},
		{"quoted key", "kind: Config\n\"standby\": true\n", "", ""},
	} {
		off, err := withStandby(tt.text, true)
		if off != tt.off || (err == nil) != (tt.off != "") {
			t.Errorf("%s, off: %q, %v, want %q", tt.name, off, err, tt.off)
		}
		from := tt.text
		if off != "" {
			if again, err := withStandby(off, true); again != off || err != nil {
				t.Errorf("%s, off twice: %q, %v", tt.name, again, err)
			}
			if tt.name != "set by hand" && tt.name != "a key within a text" {
				from = off
			}
		}
		on, err := withStandby(from, false)
		if err == nil != (tt.on != "" || tt.text == "") || err == nil && on != tt.on {
			t.Errorf("%s, on: %q, %v, want %q", tt.name, on, err, tt.on)
		}
	}
}

// TestOffAndOn has two agents follow the ConfigMap. Without a fallback, off changes nothing.
func TestOffAndOn(t *testing.T) {
	t.Parallel()
	agents := func() *appsv1.DaemonSet {
		set := daemonSet(2)()
		set.Spec.Template.Spec = corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: agentName, Args: []string{"agent", "--config", "/etc/node-cache/node-cache.yaml"},
				VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/node-cache"}},
			}},
			Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "node-cache"},
			}}}},
		}
		return set
	}
	var asked atomic.Int32
	fallback, broken, everywhere := []netip.AddrPort{netip.MustParseAddrPort("10.244.0.7:53")}, intercept.FallbackWorks, false
	mode, from := "link-local", "central"
	s := apiServer{daemonSet: agents, pods: []corev1.Pod{agentPod("a", "node1", 1), agentPod("b", "node2", 1)}, config: "kind: Config\n", conflicts: 1}
	s.run = func(pod, _ string, stdout, _, _ io.Writer) int {
		page := status.Status{State: "ready", Node: &status.Node{Intercept: &status.Intercept{Mode: mode, From: from, Fallback: fallback}}}
		late := pod == "b" && asked.Add(1)%3 != 0 // it follows later than the other
		page.Node.Intercept.Standby = strings.Contains(s.configuration(), "standby: true") != late
		page.Node.Intercept.Leases = []intercept.LeaseStats{{Held: !page.Node.Intercept.Standby}}
		if pod == "b" || everywhere {
			page.Node.Intercept.Leases[0].Fallback, page.Node.Intercept.Leases[0].FallbackWhy = broken, "1 of 1 endpoints fail: 10.244.0.7:53: no reply within 2s"
		}
		return writeJSON(stdout, page)
	}
	flag := s.start(t)
	got := command("off", flag, "--timeout", "20s")
	assert.Same(t, "off", result{cli.ExitOK, "configmap kube-system/node-cache: standby: true\n2 of 2 agents are in standby: the fallback answers\n", ""}, got)
	assert.Equal(t, "configuration", standbyLine+"kind: Config\n", s.configuration())
	got = command("on", flag, "--timeout", "20s")
	assert.Same(t, "on", result{cli.ExitOK, "configmap kube-system/node-cache: standby: false\n2 of 2 agents answer\n", ""}, got)
	assert.Equal(t, "configuration", "kind: Config\n", s.configuration())
	broken = intercept.FallbackBroken
	got = command("off", flag, "--timeout", "20s")
	assert.Same(t, "off with a broken fallback on one node", result{
		cli.ExitOK, "configmap kube-system/node-cache: standby: true\n2 of 2 agents are in standby: the fallback answers\n",
		"node-cache: 1 of 2 agents report a broken fallback, so queries of their pods fail, or some of them: node2: 1 of 1 endpoints fail: 10.244.0.7:53: no reply within 2s\n",
	}, got)
	assert.Equal(t, "on", cli.ExitOK, command("on", flag, "--timeout", "20s").Code)
	everywhere = true
	got = command("off", flag, "--timeout", "20s")
	if want := "2 of 2 agents report a broken fallback, so queries of their pods fail, or some of them: node1, node2: 1 of 1 endpoints fail: 10.244.0.7:53: no reply within 2s\nhint: "; got.Code != cli.ExitFailed || !strings.Contains(got.Stderr, want) || s.configuration() != "kind: Config\n" {
		t.Errorf("with a broken fallback on all nodes: %+v, want %q", got, want)
	}
	fallback = nil
	for _, excluded := range []bool{false, true} { // link-local, and transparent where no data plane serves the Service
		if excluded {
			mode = "transparent"
		}
		got = command("off", flag, "--timeout", "20s")
		if got.Code != cli.ExitFailed || !strings.Contains(got.Stderr, "2 agents know no fallback, so their pods would have no DNS: node1, node2\nhint: ") || s.configuration() != "kind: Config\n" {
			t.Errorf("without a fallback: %+v", got)
		}
	}
}

// TestOffAndOnStaged has agents whose configuration is part of their pods: off makes the ConfigMap of their --standby, on deletes it.
func TestOffAndOnStaged(t *testing.T) {
	t.Parallel()
	text, mounted := "kind: Config\n", "standby"
	agents := func() *appsv1.DaemonSet {
		set := daemonSet(1)()
		set.Spec.Template.Annotations = map[string]string{stagedAnnotation: text}
		set.Spec.Template.Spec = corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: agentName, Args: []string{"agent", "--config", "/etc/node-cache/node-cache.yaml", "--standby", "/etc/node-cache/standby"},
				VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/node-cache"}},
			}},
			Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{DownwardAPI: &corev1.DownwardAPIProjection{}},
				{ConfigMap: &corev1.ConfigMapProjection{
					LocalObjectReference: corev1.LocalObjectReference{Name: "node-cache-standby"}, Items: []corev1.KeyToPath{{Key: "standby", Path: mounted}},
				}},
			}}}}},
		}
		return set
	}
	s := apiServer{daemonSet: agents, pods: []corev1.Pod{agentPod("a", "node1", 1)}}
	s.run = func(_, _ string, stdout, _, _ io.Writer) int {
		page := status.Status{State: "ready", Node: &status.Node{Intercept: &status.Intercept{Mode: "transparent"}}}
		page.Node.Intercept.Standby = s.standby() == "true"
		page.Node.Intercept.Leases = []intercept.LeaseStats{{Held: !page.Node.Intercept.Standby}}
		return writeJSON(stdout, page)
	}
	flag := s.start(t)
	off := result{cli.ExitOK, "configmap kube-system/node-cache-standby: standby: true\n1 of 1 agents are in standby: the fallback answers\n", ""}
	on := result{cli.ExitOK, "configmap kube-system/node-cache-standby: standby: false\n1 of 1 agents answer\n", ""}
	for _, tt := range []struct {
		command string
		want    result
	}{{"off", off}, {"off", off}, {"on", on}, {"on", on}} {
		assert.Same(t, tt.command, tt.want, command(tt.command, flag, "--timeout", "20s"))
	}
	text = "standby: true\n"
	if got := command("on", flag, "--timeout", "20s"); got.Code != cli.ExitFailed || !strings.Contains(got.Stderr, "the configuration in the agents' pods has standby: true\nhint: ") {
		t.Errorf("on, with a configuration that has standby: %+v", got)
	}
	text, mounted = "kind: Config\n", "other"
	if got := command("off", flag, "--timeout", "20s"); got.Code != cli.ExitFailed || !strings.Contains(got.Stderr, "no ConfigMap is mounted as /etc/node-cache/standby") || s.standby() != "" {
		t.Errorf("off, without the ConfigMap: %+v", got)
	}
}
