// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestOptIn lets a namespace ask the agent by component opt-in, kills the agent, and lets the namespace go back. The test is the kubelet,
// whose clusterDNS is the Service.
func TestOptIn(t *testing.T) {
	t.Setenv("NODE_NAME", nodeName) // for the agent
	s := settings()[0]
	s.flags += " " + sockets
	r, _, _ := startSetting(t, s, "pods: {identity: api, searchPath: on}\n")
	for _, file := range []string{"policy.yaml", "bindings.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "daemonset", "components", "opt-in", file))
		assert.NoError(t, err)
		for one := range strings.SplitSeq(string(text), "\n---\n") {
			assert.NoError(t, r.apply(t, pathOf(objectOf(t, one)), one))
		}
	}
	const shop = "shop"
	kubetest.Apply(t, r.cluster, kubetest.Namespace(shop))
	add := func(name, label string) *pod {
		return r.addPod(t, kubetest.Pod{Namespace: shop, Name: name, Labels: map[string]string{"app": name, "node-cache.io/dns": label}})
	}
	out := []*pod{add("before", "")}
	r.target = netip.AddrPortFrom(serviceAddr, 53)
	service := r.startMeter(t, out[0])
	if _, ok := awaitAnswers(service, byFallback, time.Now(), limit); !ok {
		t.Fatalf("the Service does not answer: %s", service.Stop())
	}
	r.labelNamespace(t, shop, `"on"`, corev1.DNSNone)
	in := add("in", "")
	out = append(out, add("out", "off"))
	want := &corev1.PodDNSConfig{Nameservers: []string{agentAddr.String()}, Searches: []string{shop + ".svc.cluster.local", "svc.cluster.local", "cluster.local"}, Options: in.spec.DNSConfig.Options}
	assert.Same(t, "dnsConfig", want, in.spec.DNSConfig)

	r.target = netip.AddrPortFrom(agentAddr, 53)
	r.expectAnswers(t, in)
	l := newLookups(t, in)
	proctest.Eventually(t, limit, "the agent knows the pod, and answers for its search list of three", func() bool { return l.queries(t, "www.example.org") == 2 })
	assert.Equal(t, "queries for a name", 2, l.queries(t, "www.example.net"))

	agent, began := r.startMeter(t, in), time.Now()
	l.start(t)
	awaitSent(t, agent)
	const inFlight = 100 * time.Millisecond
	gone := time.Now()
	r.agent.Kill()
	at, ok := awaitAnswers(agent, byFallback, gone, fallbackLimit)
	if !ok {
		t.Errorf("killed: the fallback does not answer: %s", agent.Report().Between(gone, time.Now()))
	}
	r.launch(t)
	if _, ok := awaitAnswers(agent, byAgent, time.Now(), limit); !ok {
		t.Errorf("the agent is not back: %s", agent.Report())
	}
	r.awaitServing(t)
	r.labelNamespace(t, shop, "null", corev1.DNSClusterFirst)
	out = append(out, add("after", ""))
	awaitSent(t, agent)
	for _, p := range out {
		assert.Equal(t, "dnsPolicy of "+p.Name, corev1.DNSClusterFirst, p.spec.DNSPolicy)
	}
	for who, part := range map[string]nodetest.Report{
		"a pod that is out": service.Stop(), "a pod that is in": agent.Stop().Between(began, gone.Add(-inFlight)),
		"a pod that is in, since the fallback answers": agent.Report().Between(at, time.Now()),
	} {
		proctest.Figure(t, "%s: %s", who, part)
		if part.Lost() > 0 {
			t.Errorf("%s: %s", who, part)
		}
	}
	proctest.Figure(t, "killed: the fallback answers after %s: %s", ms(at.Sub(gone)), agent.Report().Between(gone.Add(-inFlight), at))
	l.stop(t)
}

// awaitSent waits until a meter has sent 600 queries more.
func awaitSent(t *testing.T, m *nodetest.Meter) {
	t.Helper()
	before := m.Report().Sent()
	proctest.Eventually(t, limit, "queries are sent", func() bool { return m.Report().Sent() >= before+600 })
}

// labelNamespace sets the label of a namespace, and waits until its new pods have the DNS policy.
func (r *rig) labelNamespace(t *testing.T, name, value string, policy corev1.DNSPolicy) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata": {"labels": {"node-cache.io/dns": %s}}}`, value)
	client := r.cluster.Client().CoreV1()
	_, err := client.Namespaces().Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	assert.NoError(t, err)
	proctest.Eventually(t, limit, "new pods have the policy "+string(policy), func() bool {
		made, err := client.Pods(name).Create(t.Context(), kubetest.Pod{Namespace: name, Name: "dry"}.Object(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && made.Spec.DNSPolicy == policy
	})
}

// lookups are those of a C library in a pod, with the resolv.conf that the kubelet would give it: an application's.
type lookups struct {
	from                *pod
	program, resolvConf string
	loop                *proctest.Process
}

func newLookups(t *testing.T, from *pod) *lookups {
	t.Helper()
	folder, config := t.TempDir(), from.spec.DNSConfig
	text := "nameserver " + strings.Join(config.Nameservers, "\nnameserver ") + "\nsearch " + strings.Join(config.Searches, " ") + "\n"
	for _, o := range config.Options {
		text += "options " + o.Name + ":" + *o.Value + "\n"
	}
	l := &lookups{from: from, program: filepath.Join(folder, "lookup"), resolvConf: proctest.WriteFile(t, filepath.Join(folder, "resolv.conf"), text)}
	out, err := exec.CommandContext(t.Context(), proctest.FindProgram(t, "gcc", "gcc"), "-o", l.program, filepath.Join("..", "e2e", "testdata", "lookup.c")).CombinedOutput()
	if err != nil {
		t.Fatalf("compiling: %v\n%s", err, out)
	}
	return l
}

// command is a shell's, of which $1 is the program.
func (l *lookups) command(ctx context.Context, script string) *exec.Cmd {
	return l.from.Command(ctx, "unshare", "--mount", "--propagation=private", "sh", "-c", `mount --bind "$2" /etc/resolv.conf && `+script, "sh", l.program, l.resolvConf)
}

// queries looks a name up, and returns how many queries the pod sends for it.
func (l *lookups) queries(t *testing.T, name string) int {
	t.Helper()
	sent := func() int {
		text, err := l.from.Output(t.Context(), "cat", "/proc/net/snmp")
		assert.NoError(t, err)
		lines := strings.Split(text[strings.Index(text, "\nUdp: ")+1:], "\n")
		n, err := strconv.Atoi(strings.Fields(lines[1])[slices.Index(strings.Fields(lines[0]), "OutDatagrams")])
		assert.NoError(t, err)
		return n
	}
	before := sent()
	out, err := l.command(t.Context(), `exec "$1" `+name).CombinedOutput()
	assert.NoError(t, err)
	l.expectAddresses(t, string(out))
	return sent() - before
}

// start looks names up until stop, as fast as they are answered.
func (l *lookups) start(t *testing.T) {
	t.Helper()
	l.loop = proctest.Start(t, "lookups", l.command(context.WithoutCancel(t.Context()), `while sleep 0.02; do "$1" www.example.org; done`))
}

func (l *lookups) stop(t *testing.T) {
	t.Helper()
	l.loop.Stop(limit)
	proctest.Figure(t, "lookups of a C library: 0 of %d fail", l.expectAddresses(t, l.loop.Stdout.String()))
}

// expectAddresses expects an address for each name that was looked up, and returns their number.
func (l *lookups) expectAddresses(t *testing.T, out string) (n int) {
	t.Helper()
	for line := range strings.Lines(out) {
		n++
		fields := strings.Fields(line)
		if len(fields) < 2 || !netipValid(fields[1]) {
			t.Errorf("a lookup fails: %s", line)
		}
	}
	if n == 0 {
		t.Error("no lookups")
	}
	return n
}

func netipValid(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}
