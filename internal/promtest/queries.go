// SPDX-License-Identifier: Apache-2.0

package promtest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"sigs.k8s.io/yaml"
)

// A Query is one PromQL expression.
type Query struct {
	Where string // the alert's name, or the panel's title
	Expr  string // without Grafana's variables
}

// An Alert is one rule of prometheusrule.yaml.
type Alert struct {
	Name        string            `json:"alert,omitempty"`
	Record      string            `json:"record,omitempty"` // of a rule that is no alert
	Expr        string            `json:"expr"`
	For         model.Duration    `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// group is a group of rules as in the file.
type group struct {
	Name  string  `json:"name"`
	Rules []Alert `json:"rules"`
}

// groups is what Prometheus reads, and the spec of a PrometheusRule.
type groups struct {
	Groups []group `json:"groups"`
}

// Alerts reads the alerts in their order. root is the top of the repository.
func Alerts(root string) ([]Alert, error) {
	all, err := readRules(root)
	if err != nil {
		return nil, err
	}
	var alerts []Alert
	for _, g := range all.Groups {
		alerts = append(alerts, g.Rules...)
	}
	return slices.DeleteFunc(alerts, func(a Alert) bool { return a.Record != "" }), nil
}

// RuleFile returns the alerts as a file that Prometheus reads.
func RuleFile(root string) ([]byte, error) {
	all, err := readRules(root)
	if err != nil {
		return nil, err
	}
	return yaml.Marshal(all)
}

func readRules(root string) (*groups, error) {
	data, err := os.ReadFile(filepath.Join(root, "daemonset", "monitoring", "prometheusrule.yaml"))
	if err != nil {
		return nil, fmt.Errorf("reading the alerts: %w", err)
	}
	var object struct {
		Spec groups `json:"spec"`
	}
	if err := yaml.Unmarshal(data, &object); err != nil {
		return nil, fmt.Errorf("reading the alerts: %w", err)
	}
	return &object.Spec, nil
}

// panel is a panel of a Grafana dashboard, or a row with panels.
type panel struct {
	Title   string   `json:"title"`
	Targets []target `json:"targets"`
	Panels  []panel  `json:"panels"`
}

// target is one query of a panel.
type target struct {
	Expr   string `json:"expr"`
	Legend string `json:"legendFormat"`
}

// Dashboard reads the queries of the Grafana dashboard, those of its variables too.
func Dashboard(root string) ([]Query, error) {
	data, err := os.ReadFile(filepath.Join(root, "daemonset", "monitoring", "dashboard.json"))
	if err != nil {
		return nil, fmt.Errorf("reading the dashboard: %w", err)
	}
	var board struct {
		Panels     []panel `json:"panels"`
		Templating struct {
			List []struct {
				Name  string `json:"name"`
				Query any    `json:"query"`
			} `json:"list"`
		} `json:"templating"`
	}
	if err := json.Unmarshal(data, &board); err != nil {
		return nil, fmt.Errorf("reading the dashboard: %w", err)
	}
	var all []Query
	for _, v := range board.Templating.List {
		text, _ := v.Query.(string)
		if inner, found := strings.CutPrefix(text, "label_values("); found {
			expr := inner[:strings.LastIndex(inner, ",")]
			all = append(all, Query{Where: "variable " + v.Name, Expr: plain(expr)})
		}
	}
	return append(all, panelQueries(board.Panels)...), nil
}

func panelQueries(panels []panel) []Query {
	var all []Query
	for _, p := range panels {
		for _, t := range p.Targets {
			all = append(all, Query{Where: "panel " + p.Title, Expr: plain(t.Expr)})
		}
		all = append(all, panelQueries(p.Panels)...)
	}
	return all
}

// plain puts values in the place of Grafana's variables.
func plain(expr string) string {
	return strings.NewReplacer(
		"$__rate_interval", "1m", "$__range", "1h", "$__interval", "1m",
		"$node", ".+", "$job", "node-cache", "$cluster", ".*",
	).Replace(expr)
}

// Queries returns everything that is asked of Prometheus: rules, panels and variables.
func Queries(root string) ([]Query, error) {
	rules, err := readRules(root)
	if err != nil {
		return nil, err
	}
	all, err := Dashboard(root)
	if err != nil {
		return nil, err
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			all = append(all, Query{Where: "rule " + r.Name + r.Record, Expr: r.Expr})
		}
	}
	return all, nil
}
