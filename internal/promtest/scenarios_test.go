// SPDX-License-Identifier: Apache-2.0

package promtest

import (
	"encoding/json"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// scenario is what testdata/alerts.yaml has of an alert.
type scenario struct {
	Fires map[string]string `json:"fires"`
	Want  map[string]string `json:"want"`
	Quiet map[string]string `json:"quiet"`
	Also  []scenario        `json:"also"` // of these each has one of the two at least
}

// TestAlertsFire has promtool evaluate each alert over series that make it fire and over such that do not.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	promtool := proctest.FindProgram(t, "promtool", "prometheus")
	var scenarios map[string]scenario
	assert.NoError(t, yaml.UnmarshalStrict([]byte(mustRead(t, "testdata/alerts.yaml")), &scenarios))
	folder, args := t.TempDir(), []string{"test", "rules"}
	for _, a := range mustAlerts(t) {
		s, ok := scenarios[a.Name]
		if !ok || len(s.Fires) == 0 || len(s.Quiet) == 0 {
			t.Errorf("testdata/alerts.yaml: %s has no series that make it fire, or none that do not", a.Name)
			continue
		}
		delete(scenarios, a.Name)
		// A file for each: promtool evaluates every rule of a file for every test of it.
		proctest.WriteFile(t, filepath.Join(folder, a.Name+"-rule.yaml"), asJSON(t, withoutAnnotations(&a)))
		args = append(args, a.Name+".yaml")
		proctest.WriteFile(t, filepath.Join(folder, a.Name+".yaml"), asJSON(t, map[string]any{
			"rule_files": []string{a.Name + "-rule.yaml"}, "evaluation_interval": "1m", "tests": s.tests(&a),
		}))
	}
	for name := range scenarios {
		t.Errorf("testdata/alerts.yaml: there is no alert %s", name)
	}
	command := exec.CommandContext(t.Context(), promtool, args...)
	command.Dir = folder
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("promtool test rules: %v\n%s", err, out)
	}
}

// withoutAnnotations is a file of one alert without its texts, which promtool would otherwise expect in the test.
func withoutAnnotations(a *Alert) groups {
	alone := *a
	alone.Annotations = nil
	return groups{Groups: []group{{Name: "one", Rules: []Alert{alone}}}}
}

// tests are promtool's for the scenario.
func (s *scenario) tests(a *Alert) []any {
	labels := maps.Clone(a.Labels)
	maps.Copy(labels, s.Want)
	late := time.Duration(a.For) + 40*time.Minute
	var list []any
	if len(s.Fires) > 0 {
		fires := []expectation{{EvalTime: minutes(late), Alert: a.Name, Expect: []expected{{Labels: labels}}}}
		if a.For > 0 {
			fires = append(fires, expectation{EvalTime: "0m", Alert: a.Name})
		}
		list = append(list, unitTest(a.Name+" fires", s.Fires, fires))
	}
	if len(s.Quiet) > 0 {
		quiet := []expectation{{EvalTime: minutes(late), Alert: a.Name}}
		for when := 4 * time.Minute; when < late && late < 2*time.Hour; when += 4 * time.Minute {
			quiet = append(quiet, expectation{EvalTime: minutes(when), Alert: a.Name})
		}
		list = append(list, unitTest(a.Name+" does not fire", s.Quiet, quiet))
	}
	for i := range s.Also {
		list = append(list, s.Also[i].tests(a)...)
	}
	return list
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	assert.NoError(t, err)
	return string(data)
}

// expectation and expected are promtool's.
type expectation struct {
	EvalTime string     `json:"eval_time"`
	Alert    string     `json:"alertname"`
	Expect   []expected `json:"exp_alerts"`
}

type expected struct {
	Labels map[string]string `json:"exp_labels"`
}

func minutes(d time.Duration) string { return strings.TrimSuffix(d.String(), "0s") }

func unitTest(name string, series map[string]string, expect []expectation) any {
	var input []map[string]string
	for _, key := range slices.Sorted(maps.Keys(series)) {
		input = append(input, map[string]string{"series": key, "values": series[key]})
	}
	return map[string]any{"name": name, "interval": "1m", "input_series": input, "alert_rule_test": expect}
}
