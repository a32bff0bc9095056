// SPDX-License-Identifier: Apache-2.0

package promtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/prometheus/common/model"
)

// A Result is what Prometheus answered to a query.
type Result struct {
	Query
	Series model.Vector
}

// answer is what Prometheus' HTTP API wraps everything in.
type answer struct {
	Status   string          `json:"status"`
	Error    string          `json:"error"`
	Warnings []string        `json:"warnings"`
	Data     json.RawMessage `json:"data"`
}

// Evaluate asks the Prometheus at the URL base, as http://127.0.0.1:9090, every query once. The error has all those that it
// refused or warned of; the results are of the others, in their order.
func Evaluate(ctx context.Context, base string, queries []Query) ([]Result, error) {
	var results []Result
	var problems []error
	for _, q := range queries {
		series, err := evaluate(ctx, base, q.Expr)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", q.Where, err))
			continue
		}
		results = append(results, Result{Query: q, Series: series})
	}
	return results, errors.Join(problems...)
}

func evaluate(ctx context.Context, base, expr string) (model.Vector, error) {
	var data struct {
		Result model.Vector `json:"result"`
	}
	err := get(ctx, base+"/api/v1/query?"+url.Values{"query": {expr}}.Encode(), &data)
	return data.Result, err
}

// CheckRules asks a Prometheus that has read RuleFile whether it could evaluate every alert of it and render every text.
// It is to be asked after the first evaluation; pending says how many alerts have had none.
func CheckRules(ctx context.Context, base string) (pending int, err error) {
	var data struct {
		Groups []struct {
			Rules []struct {
				Name      string `json:"name"`
				Health    string `json:"health"`
				LastError string `json:"lastError"`
			} `json:"rules"`
		} `json:"groups"`
	}
	if err := get(ctx, base+"/api/v1/rules?type=alert", &data); err != nil {
		return 0, err
	}
	var problems []error
	for _, g := range data.Groups {
		for _, r := range g.Rules {
			switch r.Health {
			case "ok":
			case "unknown":
				pending++
			default:
				problems = append(problems, fmt.Errorf("%s is %s: %s", r.Name, r.Health, r.LastError))
			}
		}
	}
	return pending, errors.Join(problems...)
}

// An Active is an alert that is pending or firing.
type Active struct {
	State       string            `json:"state"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// ActiveAlerts asks a Prometheus for its alerts.
func ActiveAlerts(ctx context.Context, base string) ([]Active, error) {
	var data struct {
		Alerts []Active `json:"alerts"`
	}
	err := get(ctx, base+"/api/v1/alerts", &data)
	return data.Alerts, err
}

// get reads one answer of the API.
func get(ctx context.Context, address string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return fmt.Errorf("asking Prometheus: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("asking Prometheus: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	var a answer
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		return fmt.Errorf("reading Prometheus' answer (%s): %w", response.Status, err)
	}
	if a.Status != "success" {
		return fmt.Errorf("asking Prometheus: %s", a.Error)
	}
	if len(a.Warnings) > 0 {
		return fmt.Errorf("asking Prometheus: warning: %s", strings.Join(a.Warnings, "; "))
	}
	return json.Unmarshal(a.Data, into)
}
