// SPDX-License-Identifier: Apache-2.0

package promtest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/common/model"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestPrometheus has a real Prometheus scrape a real agent and evaluate every alert and every query of the dashboard.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	program := proctest.FindProgram(t, "prometheus", "prometheus")
	agent := startAgent(t)
	folder, listen := t.TempDir(), proctest.FreeAddr(t)
	pods := []Pod{
		agent.pod("node-cache-aaaaa", "node-cache"),
		agent.pod("node-cache-bbbbb", "node-cache"), // the second one of a rolling update: the same target
		agent.pod("coredns-ccccc", "coredns"),
	}
	scrapes, err := PodMonitors(root, pods)
	assert.NoError(t, err)
	args, err := Prometheus(root, folder, listen, scrapes)
	assert.NoError(t, err)
	proctest.Start(t, "prometheus", exec.CommandContext(t.Context(), program, args...))
	base := "http://" + listen.String()
	proctest.Eventually(t, time.Minute, "six scrapes", func() bool {
		agent.ask(t)
		series, err := evaluate(t.Context(), base, `count_over_time(nodecache_build_info[1m]) >= 6`)
		return err == nil && len(series) == 1
	})
	proctest.Eventually(t, time.Minute, "an evaluation of every alert", func() bool {
		pending, err := CheckRules(t.Context(), base)
		assert.NoError(t, err)
		return pending == 0
	})
	checkLabels(t, base)
	checkResults(t, base, agent.exposed(t))
	checkNoAlerts(t, base)
}

// checkLabels asks for one target with the labels that the rules and the dashboard use.
func checkLabels(t *testing.T, base string) {
	t.Helper()
	series, err := evaluate(t.Context(), base, `{__name__="up"}`)
	assert.NoError(t, err)
	want := model.Metric{"__name__": "up", "job": "node-cache", "node": "worker-1", "namespace": "kube-system"}
	if len(series) != 1 {
		t.Fatalf("%d targets, want 1: %v", len(series), series)
	}
	delete(series[0].Metric, "instance") // an address of this run
	if !maps.Equal(series[0].Metric, want) {
		t.Errorf("the target has the labels %v, want %v", series[0].Metric, want)
	}
}

// checkResults asks for every query, and for a series of those whose metrics the agent has.
func checkResults(t *testing.T, base string, exposed map[string]bool) {
	t.Helper()
	queries, err := Queries(root)
	assert.NoError(t, err)
	results, err := Evaluate(t.Context(), base, queries)
	if err != nil {
		t.Error(err)
	}
	answered := 0
	for _, r := range results {
		if len(r.Series) > 0 {
			answered++
		} else if hasSeries(r.Expr, exposed) {
			t.Errorf("%s: no series of %s", r.Where, r.Expr)
		}
	}
	proctest.Figure(t, "%d of %d queries have series of a single agent that manages no node", answered, len(queries))
}

// hasSeries reports expressions that no comparison can empty, over metrics that are all there, or recorded.
func hasSeries(expr string, exposed map[string]bool) bool {
	if regexp.MustCompile(`absent|[<>]|==|!= `).MatchString(expr) {
		return false
	}
	uses, _ := parse(expr)
	return !slices.ContainsFunc(uses, func(u use) bool { return !exposed[u.name] && !strings.HasPrefix(u.name, "node:") })
}

// checkNoAlerts asks for no alert: nothing is wrong with this agent.
func checkNoAlerts(t *testing.T, base string) {
	t.Helper()
	active, err := ActiveAlerts(t.Context(), base)
	assert.NoError(t, err)
	for _, a := range active {
		if a.State == "firing" {
			t.Errorf("%s fires: %s", a.Labels["alertname"], a.Annotations["description"])
		}
	}
}

// runningAgent is an agent that has every part but a node's.
type runningAgent struct {
	*proctest.Agent
	dns, ip string
}

// startAgent runs an agent with an upstream of the test's own.
func startAgent(t *testing.T) *runningAgent {
	t.Helper()
	folder, listen := t.TempDir(), proctest.FreeAddr(t)
	// The port is the one that podmonitor.yaml has. Loopback has addresses enough for everybody.
	admin := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 77, byte(rand.IntN(256)), byte(1 + rand.IntN(254))}), 9253)
	hosts := proctest.WriteFile(t, filepath.Join(folder, "hosts"), "192.0.2.7 printer.example\n")
	examples, err := filepath.Abs(filepath.Join(root, "examples", "cluster"))
	assert.NoError(t, err)
	config := fmt.Sprintf(`
listen: {addresses: [%s], port: %d}
forward: [{zone: ., to: ["%s"]}]
cluster: {resolver: local, manifests: %s, ranges: [10.96.0.0/12, 10.244.0.0/16]}
hosts: {files: [%s]}
templates: [{zone: made.example, types: [A], answer: ["{{ .Name }} 60 IN A 192.0.2.8"]}]
probes: [{label: outside, name: probe.example, interval: 1s}]
snapshot: {folder: %s, period: 10s}
handover: {socket: %s}
admin: {address: "%s"}
`, listen.Addr(), listen.Port(), startUpstream(t), examples, hosts, folder, filepath.Join(folder, "handover.sock"), admin)
	file := proctest.WriteFile(t, filepath.Join(folder, "node-cache.yaml"), config)
	command := exec.Command(nodeCache, "agent", "--config", file, "--last-good", t.TempDir())
	return &runningAgent{proctest.StartAgent(t, command, admin, "/readyz", nil), listen.String(), admin.Addr().String()}
}

// pod is a pod in which the agent could be.
func (a *runningAgent) pod(name, app string) Pod {
	return Pod{Name: name, Node: "worker-1", IP: a.ip, HostIP: a.ip, Labels: map[string]string{"app.kubernetes.io/name": app}}
}

// startUpstream runs a server that has every name, and returns its address.
func startUpstream(t *testing.T) string {
	t.Helper()
	return proctest.StartDNS(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if rr, err := dns.NewRR(q.Question[0].Name + " 60 IN A 192.0.2.9"); err == nil && q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{rr}
		}
		_ = w.WriteMsg(m) // a client that got none asks again
	}).String()
}

// ask has an answer made of each kind.
func (a *runningAgent) ask(t *testing.T) {
	t.Helper()
	for _, name := range []string{"web.shop.svc.cluster.local.", "printer.example.", "a.made.example.", "example.com.", fmt.Sprintf("n%d.example.", time.Now().UnixNano())} {
		if _, err := dns.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), a.dns); err != nil {
			t.Errorf("asking for %s: %v", name, err)
		}
	}
}

// exposed lists the names of the series that the agent has.
func (a *runningAgent) exposed(t *testing.T) map[string]bool {
	t.Helper()
	text, err := a.Page("/metrics")
	assert.NoError(t, err)
	names := map[string]bool{"up": true}
	for _, m := range regexp.MustCompile(`(?m)^([a-z_]+)[{ ]`).FindAllStringSubmatch(text, -1) {
		names[m[1]] = true
	}
	return names
}
