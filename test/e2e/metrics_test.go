// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// samples is one scrape of /metrics.
type samples map[string]*dto.MetricFamily

// scrape fetches and parses /metrics.
func (a *agent) scrape(t *testing.T) samples {
	t.Helper()
	code, body, err := a.get("/metrics")
	if err != nil || code != http.StatusOK {
		t.Fatalf("GET /metrics: %d %v", code, err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatalf("parsing /metrics: %v", err)
	}
	return families
}

// value sums a family's series that carry the labels, given as name and value by turns. The family must exist.
func (s samples) value(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	family, ok := s[name]
	if !ok {
		t.Errorf("/metrics has no %s", name)
		return 0
	}
	sum := 0.0
	for _, m := range family.GetMetric() {
		have := map[string]string{}
		for _, l := range m.GetLabel() {
			have[l.GetName()] = l.GetValue()
		}
		matches := true
		for i := 0; i < len(labels); i += 2 {
			matches = matches && have[labels[i]] == labels[i+1]
		}
		if matches {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// TestMetrics scrapes before and after a few queries with known fates, and expects the series to tell.
func TestMetrics(t *testing.T) {
	t.Parallel()
	a := startAgent(t, settings{to: []string{startNSD(t).addr}})
	before := a.scrape(t)
	for range 2 {
		for _, args := range [][]string{{"host.e2e.test", "A"}, {"absent.e2e.test", "A"}, {"host.e2e.test", "AAAA", "+tcp"}} {
			dig(t, a.addr, args...)
		}
	}
	writeFile(t, a.config, "cache: {sise: 1Mi}\n")
	proctest.Eventually(t, 10*time.Second, "the broken file is seen", func() bool { return a.reloads(t).refused == 1 })
	after := a.scrape(t)

	tests := []struct {
		series string
		labels []string
		want   float64 // increase
	}{
		{series: "nodecache_queries_total", want: 6},
		{series: "nodecache_queries_total", labels: []string{"proto", "tcp"}, want: 2},
		{series: "nodecache_responses_total", want: 6},
		{series: "nodecache_responses_total", labels: []string{"rcode", "NXDOMAIN"}, want: 2},
		{series: "nodecache_responses_total", labels: []string{"source", "cache"}, want: 3},
		{series: "nodecache_config_reloads_total", labels: []string{"result", "failure"}, want: 1},
		{series: "nodecache_config_reloads_total", labels: []string{"result", "success"}, want: 0},
		{series: "nodecache_config_last_reload_successful", want: -1},
	}
	for _, tt := range tests {
		got := after.value(t, tt.series, tt.labels...) - before.value(t, tt.series, tt.labels...)
		if got != tt.want {
			t.Errorf("%s%q went up by %v, want %v", tt.series, tt.labels, got, tt.want)
		}
	}
	if code, _, err := a.get("/livez"); code != http.StatusOK || err != nil {
		t.Errorf("/livez: %d %v", code, err)
	}
}
