// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"strings"
	"testing"

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
