// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"context"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/internal/promtest"
)

// prometheusAddr is where it listens on the control machine.
const prometheusAddr = "127.0.0.1:9090"

// testMonitoring has a Prometheus find and scrape the agents as the PodMonitor says, and evaluate every alert and every query of
// the dashboard.
func (b *harness) testMonitoring(t *testing.T) {
	t.Helper()
	prometheus := proctest.FindProgram(t, "prometheus", "prometheus")
	b.kubectl(t, "apply", "-k", kustomization(t, "daemonset/base", "daemonset/components/metrics"))
	b.kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/node-cache")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
	b.eventually(t, "the old agents are gone", func() bool { return len(b.agents(t)) == 2 })
	b.startClients(t, "monitors")

	dir := t.TempDir()
	rules, err := promtest.RuleFile(repository)
	if err != nil {
		t.Fatal(err)
	}
	proctest.WriteFile(t, filepath.Join(dir, "rules.yaml"), string(rules))
	config := proctest.WriteFile(t, filepath.Join(dir, "prometheus.yaml"), b.prometheusConfig(t))
	err = b.Control.Start(t.Context(), "prometheus", prometheus, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+prometheusAddr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Control.Kill(context.WithoutCancel(t.Context()), "prometheus") })
	b.evaluateQueries(t, b.startGateway(t, prometheusAddr))
}

// startGateway is the URL of a server that passes requests to one of the control machine.
func (b *harness) startGateway(t *testing.T, addr string) string {
	t.Helper()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: addr})
	proxy.Transport = b.http.Transport
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server.URL
}

// evaluateQueries asks a Prometheus everything.
func (b *harness) evaluateQueries(t *testing.T, prometheus string) {
	t.Helper()
	up := promtest.Query{Where: "targets", Expr: `sum(count_over_time(up{job="node-cache"}[1m])) / (count(up{job="node-cache"} == 1) == 2) > 20`}
	b.eventually(t, "both agents are scraped, ten times and more", func() bool {
		found, err := promtest.Evaluate(t.Context(), prometheus, []promtest.Query{up})
		return err == nil && len(found) == 1 && len(found[0].Series) > 0
	})
	b.eventually(t, "every alert is evaluated", func() bool {
		pending, err := promtest.CheckRules(t.Context(), prometheus)
		if err != nil {
			t.Fatal(err)
		}
		return pending == 0
	})
	queries, err := promtest.Queries(repository)
	if err != nil {
		t.Fatal(err)
	}
	results, err := promtest.Evaluate(t.Context(), prometheus, queries)
	if err != nil {
		t.Error(err)
	}
	series, panels, shown := 0, 0, 0
	var empty []string
	for _, r := range results {
		series += len(r.Series)
		if !strings.HasPrefix(r.Where, "alert ") {
			panels++
			if len(r.Series) > 0 {
				shown++
			} else {
				empty = append(empty, r.Where)
			}
		}
	}
	// A scrape that took longer than a second makes an alert pending until the next one.
	var alerts []promtest.Active
	b.eventually(t, "no alert is about to fire", func() bool {
		if alerts, err = promtest.ActiveAlerts(t.Context(), prometheus); err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(alerts, func(a promtest.Active) bool { return a.State != "firing" })
	})
	for _, a := range alerts {
		t.Errorf("an alert for agents that do well: %v", a)
	}
	proctest.Figure(t, "%d queries evaluated, %d series; %d of the dashboard's %d have some, not: %s; no alert",
		len(results), series, shown, panels, strings.Join(empty, ", "))
	if shown == 0 {
		t.Error("the dashboard is empty")
	}
}

// A relabeling as the operator has it, and as Prometheus has it.
type relabeling struct {
	SourceLabels []string `json:"sourceLabels,omitempty"`
	TargetLabel  string   `json:"targetLabel,omitempty"`
	Regex        string   `json:"regex,omitempty"`
	Replacement  string   `json:"replacement,omitempty"`
	Action       string   `json:"action,omitempty"`
}

func (r relabeling) prometheus() map[string]any {
	m := map[string]any{}
	for key, value := range map[string]string{
		"target_label": r.TargetLabel, "regex": r.Regex, "replacement": r.Replacement, "action": r.Action,
	} {
		if value != "" {
			m[key] = value
		}
	}
	if r.SourceLabels != nil {
		m["source_labels"] = r.SourceLabels
	}
	return m
}

// prometheusConfig is Prometheus' configuration: what its operator makes of the agents' PodMonitor, in seconds instead of minutes.
// Debian's Prometheus cannot ask an API server for pods, so they are listed here, with the labels it would give them.
func (b *harness) prometheusConfig(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "daemonset", "monitoring", "podmonitor.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var monitor struct {
		Spec struct {
			Selector            struct{ MatchLabels map[string]string }
			JobLabel            string
			PodMetricsEndpoints []struct {
				Path        string
				Relabelings []relabeling
			}
		}
	}
	first, _, _ := bytes.Cut(text, []byte("\n---\n"))
	if err := yaml.Unmarshal(first, &monitor); err != nil {
		t.Fatal(err)
	}
	label := func(name string) string {
		return "__meta_kubernetes_pod_label_" + strings.NewReplacer(".", "_", "/", "_", "-", "_").Replace(name)
	}
	rules := []map[string]any{relabeling{SourceLabels: []string{"__meta_kubernetes_pod_phase"}, Regex: "Failed|Succeeded", Action: "drop"}.prometheus()}
	for name, value := range monitor.Spec.Selector.MatchLabels {
		rules = append(rules, relabeling{SourceLabels: []string{label(name)}, Regex: value, Action: "keep"}.prometheus())
	}
	rules = append(rules,
		relabeling{SourceLabels: []string{"__meta_kubernetes_pod_name"}, TargetLabel: "pod"}.prometheus(),
		relabeling{SourceLabels: []string{"__meta_kubernetes_namespace"}, TargetLabel: "namespace"}.prometheus(),
		relabeling{SourceLabels: []string{label(monitor.Spec.JobLabel)}, TargetLabel: "job"}.prometheus())
	endpoint := monitor.Spec.PodMetricsEndpoints[0]
	for _, r := range endpoint.Relabelings {
		rules = append(rules, r.prometheus())
	}
	config, err := yaml.Marshal(map[string]any{
		"global":     map[string]string{"scrape_interval": "1s", "evaluation_interval": "2s"},
		"rule_files": []string{"rules.yaml"},
		"scrape_configs": []any{map[string]any{
			"job_name": "node-cache", "metrics_path": endpoint.Path, "relabel_configs": rules,
			"static_configs": b.discoveredAgents(t, label),
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(config)
}

// discoveredAgents are the agents as Prometheus' discovery has them. label names a pod's label.
func (b *harness) discoveredAgents(t *testing.T, label func(string) string) []any {
	t.Helper()
	var targets []any
	for _, pod := range b.agents(t) {
		labels := map[string]string{
			"__meta_kubernetes_namespace": pod.Namespace, "__meta_kubernetes_pod_name": pod.Name,
			"__meta_kubernetes_pod_phase": string(pod.Status.Phase), "__meta_kubernetes_pod_ip": pod.Status.PodIP,
			"__meta_kubernetes_pod_host_ip": pod.Status.HostIP, "__meta_kubernetes_pod_node_name": pod.Spec.NodeName,
		}
		for name, value := range pod.Labels {
			labels[label(name)] = value
		}
		targets = append(targets, map[string]any{"targets": []string{pod.Status.PodIP}, "labels": labels})
	}
	return targets
}
