// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
)

// names are what clients ask for by turns: one of the cluster and one of the Internet.
const names = "kubernetes.default.svc.cluster.local,www.example.com"

// A client is a pod that asks all the time, over UDP and TCP.
type client struct {
	harness *harness
	pod     corev1.Pod
	name    string
}

// A tally is what has become of a client's queries over one transport.
type tally struct {
	Answered, Lost, Wrong int
	Slowest               float64 // seconds
	Failures              []string
}

// counts are a client's.
type counts struct{ UDP, TCP, Flood tally }

func (c counts) String() string {
	text := func(name string, t tally) string {
		return fmt.Sprintf("%s %d answered, %d lost, %d wrong, slowest %.0f ms", name, t.Answered, t.Lost, t.Wrong, 1000*t.Slowest)
	}
	all := text("UDP", c.UDP) + "; " + text("TCP", c.TCP)
	if c.Flood.Answered+c.Flood.Lost > 0 {
		all += "; " + text("flood", c.Flood)
	}
	return all
}

func (t *tally) add(o tally) {
	t.Answered, t.Lost, t.Wrong = t.Answered+o.Answered, t.Lost+o.Lost, t.Wrong+o.Wrong
	t.Slowest = max(t.Slowest, o.Slowest)
	t.Failures = append(t.Failures, o.Failures...)
}

// clientPod wants name, node, the program's arguments, and its CPU limit. Its DNS is what the kubelet gives it. Without a CPU
// request a busy machine gives it no processor for seconds, and CoreDNS closes a session that brings no query within three.
const clientPod = `apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: client}}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 0
  containers:
  - {name: client, image: "` + kubenode.BusyboxImage + `", command: [%[3]s],
     resources: {requests: {cpu: 200m}, limits: {cpu: %[4]s}},
     readinessProbe: {httpGet: {port: 8080, path: /counts}, periodSeconds: 1}}
---
`

// cpuLimit of a client. Two pods that flood without a limit keep tasks outside of their control groups from running for up to
// three seconds, as traces of the scheduler show, so suites beside this one fail. A soak runs nothing beside it.
func cpuLimit() string { return proctest.OrdinaryOrSoak("300m", "2") }

// every is the time between two queries of a client. Four clients of each of two clusters that ask every 10 ms take half a processor,
// and their agents a quarter.
func every() string { return proctest.OrdinaryOrSoak("50ms", "10ms") }

// startClients starts a client on each node, with more arguments for it, and ends them with the test.
func (b *harness) startClients(t *testing.T, name string, args ...string) []client {
	t.Helper()
	var quoted []string
	for _, arg := range append([]string{"/bin/pod", "ask", "-every=" + every(), "-names=" + names}, args...) {
		quoted = append(quoted, strconv.Quote(arg))
	}
	var manifest strings.Builder
	for _, n := range b.Nodes {
		fmt.Fprintf(&manifest, clientPod, name+"-"+n.Name, n.Name, strings.Join(quoted, ", "), cpuLimit())
	}
	b.kubectlInput(t, manifest.String(), "apply", "-f", "-")
	t.Cleanup(func() {
		for _, n := range b.Nodes {
			_, _ = b.Kubectl(context.WithoutCancel(t.Context()), "", "delete", "pod", name+"-"+n.Name, "--ignore-not-found", "--wait=false")
		}
	})
	var all []client
	for _, n := range b.Nodes {
		b.kubectl(t, "wait", "--for=condition=Ready", "--timeout=90s", "pod/"+name+"-"+n.Name)
		for _, pod := range b.pods(t, "default", "app=client") {
			if pod.Name == name+"-"+n.Name {
				all = append(all, client{harness: b, pod: pod, name: pod.Name})
			}
		}
	}
	resetCounts(t, all)
	return all
}

// resetCounts has clients count from nought.
func resetCounts(t *testing.T, clients []client) {
	t.Helper()
	takeCounts(t, clients)
}

// takeCounts sums up what clients have counted, and has them begin anew.
func takeCounts(t *testing.T, clients []client) counts {
	t.Helper()
	var sum counts
	for _, c := range clients {
		status, text := c.harness.httpDo(t, http.MethodPost, "http://"+net.JoinHostPort(c.pod.Status.PodIP, "8080")+"/counts")
		var one counts
		if err := json.Unmarshal([]byte(text), &one); err != nil || status != http.StatusOK {
			t.Fatalf("the counts of %s: %d, %v: %s", c.name, status, err, text)
		}
		sum.UDP.add(one.UDP)
		sum.TCP.add(one.TCP)
		sum.Flood.add(one.Flood)
	}
	return sum
}

// measure lets clients ask for some time and tells what became of the queries.
func measure(t *testing.T, clients []client, during time.Duration, what string) counts {
	t.Helper()
	resetCounts(t, clients)
	time.Sleep(during)
	got := takeCounts(t, clients)
	proctest.Figure(t, "%s: %s", what, got)
	return got
}

// expectNoLoss fails the test when a query of a transport was not answered well. Beside other suites an agent may get no processor for as
// long as its lease, and sessions with the fallback are reset then: docs/node.md. So an ordinary run allows one TCP query in 20 to fail
// with its session. A soak runs nothing beside it and allows none, nor does TestHandOver of suite node in any run.
func expectNoLoss(t *testing.T, transports map[string]tally) {
	t.Helper()
	for name, got := range transports {
		allowed := 0
		if name == "TCP" && !proctest.Soak() && !slices.ContainsFunc(got.Failures, func(f string) bool { return !strings.Contains(f, "connection reset") && !strings.HasSuffix(f, ": EOF") }) {
			allowed = got.Answered / 20
		}
		if got.Lost > allowed || got.Wrong > 0 || got.Answered == 0 {
			t.Errorf("%s: %d answered, %d lost, %d wrong\n%s", name, got.Answered, got.Lost, got.Wrong, strings.Join(got.Failures, "\n"))
		}
	}
}

// exec runs a program in the client's pod.
func (c client) exec(t *testing.T, argv ...string) string {
	t.Helper()
	return c.harness.kubectl(t, append([]string{"exec", c.name, "--"}, argv...)...)
}
