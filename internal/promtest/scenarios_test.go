// SPDX-License-Identifier: Apache-2.0

package promtest

import (
	"cmp"
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

// clusterPrefix is how every description begins: with the cluster, where series or Prometheus have the label.
const clusterPrefix = "{{ with or $labels.cluster $externalLabels.cluster }}Cluster {{ . }}: {{ end }}"

// scenario is what testdata/alerts.yaml has of an alert.
type scenario struct {
	Fires    map[string]string `json:"fires"`
	Want     map[string]string `json:"want"`
	Text     string            `json:"text"` // the description, where that asks Prometheus
	Quiet    map[string]string `json:"quiet"`
	Also     []scenario        `json:"also"`     // of these each has one of the two at least
	Clusters []scenario        `json:"clusters"` // in place of all the above where there are two clusters
}

// TestAlertsFire has promtool evaluate each alert over series that make it fire and over such that do not.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	testRules(t, func(s *scenario, a *Alert) []any {
		var tests []any
		for _, one := range s.all() {
			tests = append(tests, one.tests(a)...)
		}
		if s.Text != "" { // a Prometheus that names its cluster to others only: its own series have no such label
			e := s.expected(a, "")
			e.Annotations["description"] = "Cluster north: " + s.Text
			external := unitTest(a.Name+" with an external label", s.Fires, at(a, e))
			external["external_labels"] = map[string]string{"cluster": "north"}
			tests = append(tests, external)
		}
		return tests
	})
}

// TestAlertsByCluster has promtool evaluate each alert over two clusters whose nodes have the same names. Only one of them fails, and
// then both.
func TestAlertsByCluster(t *testing.T) {
	t.Parallel()
	testRules(t, func(s *scenario, a *Alert) []any {
		list := s.Clusters
		if len(list) == 0 {
			list = s.all()
		}
		var tests []any
		for _, failing := range list {
			if len(failing.Fires) == 0 {
				continue
			}
			west := failing.expected(a, "west")
			if a.Labels["severity"] == "critical" && west.Labels["node"] != "" {
				t.Errorf("%s is critical once for each node: %v", a.Name, west.Labels)
			}
			both := inCluster(failing.Fires, "west")
			maps.Copy(both, inCluster(failing.Fires, "east"))
			tests = append(tests, unitTest(a.Name+" of two clusters", both, at(a, failing.expected(a, "east"), west)))
			for _, healthy := range list {
				if len(healthy.Quiet) == 0 {
					continue
				}
				series := inCluster(failing.Fires, "west")
				maps.Copy(series, inCluster(healthy.Quiet, "east"))
				tests = append(tests, unitTest(a.Name+" of one of two clusters", series, at(a, west)))
			}
		}
		return tests
	})
}

// testRules has promtool run the tests that testsOf returns for each alert.
func testRules(t *testing.T, testsOf func(*scenario, *Alert) []any) {
	t.Helper()
	promtool := proctest.FindProgram(t, "promtool", "prometheus")
	var scenarios map[string]scenario
	assert.NoError(t, yaml.UnmarshalStrict([]byte(mustRead(t, "testdata/alerts.yaml")), &scenarios))
	rules, err := readRules(root)
	assert.NoError(t, err)
	folder, args := t.TempDir(), []string{"test", "rules"}
	for _, a := range mustAlerts(t) {
		s, ok := scenarios[a.Name]
		if !ok || len(s.Fires) == 0 || len(s.Quiet) == 0 {
			t.Errorf("testdata/alerts.yaml: %s has no series that make it fire, or none that do not", a.Name)
			continue
		}
		delete(scenarios, a.Name)
		if strings.Contains(a.Annotations["description"], "| query") && s.Text == "" {
			t.Errorf("testdata/alerts.yaml: %s has no text, and its description asks Prometheus", a.Name)
		}
		// A file for each: promtool evaluates every rule of a file for every test of it.
		proctest.WriteFile(t, filepath.Join(folder, a.Name+"-rule.yaml"), asJSON(t, s.alone(&a, rules)))
		args = append(args, a.Name+".yaml")
		proctest.WriteFile(t, filepath.Join(folder, a.Name+".yaml"), asJSON(t, map[string]any{
			"rule_files": []string{a.Name + "-rule.yaml"}, "evaluation_interval": "1m", "tests": testsOf(&s, &a),
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

// alone is a file of the recordings and one alert. Of its texts it has the description, and of that the beginning alone if the
// scenario has no text of it.
func (s *scenario) alone(a *Alert, rules *groups) groups {
	alone := *a
	alone.Annotations = map[string]string{"description": clusterPrefix + anyText}
	if s.Text != "" {
		alone.Annotations["description"] = a.Annotations["description"]
	}
	return groups{Groups: []group{rules.Groups[0], {Name: "one", Rules: []Alert{alone}}}}
}

// anyText stands for a description that a scenario does not have.
const anyText = "It fires."

// all are the scenario and those that it has besides.
func (s *scenario) all() []scenario {
	return append([]scenario{*s}, s.Also...)
}

// expected is the alert that the series of a cluster make fire; without a name they have no label for one.
func (s *scenario) expected(a *Alert, cluster string) expected {
	e := expected{Labels: maps.Clone(a.Labels), Annotations: map[string]string{"description": cmp.Or(s.Text, anyText)}}
	maps.Copy(e.Labels, s.Want)
	if cluster != "" {
		e.Labels["cluster"] = cluster
		e.Annotations["description"] = "Cluster " + cluster + ": " + e.Annotations["description"]
	}
	return e
}

// inCluster gives the series the label of a cluster.
func inCluster(series map[string]string, cluster string) map[string]string {
	labelled := map[string]string{}
	for key, values := range series {
		labelled[strings.Replace(key, "{", `{cluster="`+cluster+`",`, 1)] = values
	}
	return labelled
}

// late is when an alert fires.
func late(a *Alert) time.Duration { return time.Duration(a.For) + 40*time.Minute }

// at expects these alerts at that time, and none at the start.
func at(a *Alert, alerts ...expected) []expectation {
	list := []expectation{{EvalTime: minutes(late(a)), Alert: a.Name, Expect: alerts}}
	if a.For > 0 {
		list = append(list, expectation{EvalTime: "0m", Alert: a.Name})
	}
	return list
}

// tests are promtool's for the scenario.
func (s *scenario) tests(a *Alert) []any {
	var list []any
	if len(s.Fires) > 0 {
		list = append(list, unitTest(a.Name+" fires", s.Fires, at(a, s.expected(a, ""))))
	}
	if len(s.Quiet) > 0 {
		quiet := []expectation{{EvalTime: minutes(late(a)), Alert: a.Name}}
		for when := 4 * time.Minute; when < late(a) && when < 2*time.Hour; when += 4 * time.Minute {
			quiet = append(quiet, expectation{EvalTime: minutes(when), Alert: a.Name})
		}
		list = append(list, unitTest(a.Name+" does not fire", s.Quiet, quiet))
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
	Labels      map[string]string `json:"exp_labels"`
	Annotations map[string]string `json:"exp_annotations"`
}

func minutes(d time.Duration) string { return strings.TrimSuffix(d.String(), "0s") }

func unitTest(name string, series map[string]string, expect []expectation) map[string]any {
	var input []map[string]string
	for _, key := range slices.Sorted(maps.Keys(series)) {
		input = append(input, map[string]string{"series": key, "values": series[key]})
	}
	return map[string]any{"name": name, "interval": "1m", "input_series": input, "alert_rule_test": expect}
}
