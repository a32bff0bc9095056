// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/internal/promtest"
)

// prometheusAddr is where it listens on the control machine.
const prometheusAddr = "127.0.0.1:9090"

// testMonitoring has a Prometheus find and scrape the agents, which have component metrics by now, as the PodMonitor says, and
// evaluate every alert and every query of the dashboard.
func (b *harness) testMonitoring(t *testing.T) {
	t.Helper()
	prometheus := proctest.FindProgram(t, "prometheus", "prometheus")
	b.startClients(t, "monitors")

	// Debian's Prometheus cannot ask an API server for pods.
	var pods []promtest.Pod
	for _, p := range b.agents(t) {
		pods = append(pods, promtest.Pod{Name: p.Name, Node: p.Spec.NodeName, IP: p.Status.PodIP, HostIP: p.Status.HostIP, Labels: p.Labels})
	}
	scrapes, err := promtest.PodMonitors(repository, pods)
	if err != nil {
		t.Fatal(err)
	}
	args, err := promtest.Prometheus(repository, t.TempDir(), netip.MustParseAddrPort(prometheusAddr), scrapes)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Control.Start("prometheus", slices.Insert(args, 0, prometheus)...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Control.Kill("prometheus") })
	gateway := b.startGateway(t, prometheusAddr)
	b.evaluateQueries(t, gateway)
	clients := promtest.Query{Where: "clients", Expr: `sum(nodecache_pod_queries_total{exported_namespace="default"}) > 0`}
	found, err := promtest.Evaluate(t.Context(), gateway, []promtest.Query{clients})
	if err != nil || len(found[0].Series) == 0 {
		t.Errorf("the dashboard's label for the namespace of clients: %v, %v", found, err)
	}
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
		if !strings.HasPrefix(r.Where, "rule ") {
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
	proctest.Eventually(t, limit, "no alert is about to fire", func() bool {
		if alerts, err = promtest.ActiveAlerts(t.Context(), prometheus); err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(alerts, func(a promtest.Active) bool { return a.State != "firing" })
	}, func() string { return fmt.Sprintf("%v", alerts) })
	for _, a := range alerts {
		t.Errorf("an alert for agents that do well: %v", a)
	}
	proctest.Figure(t, "%d queries evaluated, %d series; %d of the dashboard's %d have some, not: %s; no alert",
		len(results), series, shown, panels, strings.Join(empty, ", "))
	if shown == 0 {
		t.Error("the dashboard is empty")
	}
}
