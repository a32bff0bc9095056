// SPDX-License-Identifier: Apache-2.0

package promtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// root is the top of the repository, seen from this package.
const root = "../.."

func TestAlertAnnotations(t *testing.T) {
	t.Parallel()
	for _, a := range mustAlerts(t) {
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
			t.Errorf("%s: severity %q", a.Name, a.Labels["severity"])
		}
		page := "https://github.com/nodecache/node-cache/blob/main/docs/runbooks/" + a.Name + ".md"
		assert.Equal(t, a.Name+": runbook_url", page, a.Annotations["runbook_url"])
		for _, key := range []string{"summary", "description"} {
			if !strings.HasSuffix(a.Annotations[key], ".") {
				t.Errorf("%s: %s is %q, want a sentence", a.Name, key, a.Annotations[key])
			}
		}
		if !strings.HasPrefix(a.Annotations["description"], clusterPrefix) {
			t.Errorf("%s: the description does not begin with the cluster: want %s", a.Name, clusterPrefix)
		}
		if !clusterWide(a.Name) && !regexp.MustCompile(`\$labels\.(node|instance)|label "node"`).MatchString(a.Annotations["description"]) {
			t.Errorf("%s: the description does not name the node", a.Name)
		}
	}
}

// clusterWide reports alerts that are about no node.
func clusterWide(alert string) bool {
	return alert == "NodeCacheAbsent" || alert == "NodeCacheUpdateStuck"
}

// TestRulesByCluster asks every rule, and every query of a text, to keep the nodes of clusters apart that have the same names.
func TestRulesByCluster(t *testing.T) {
	t.Parallel()
	rules, err := readRules(root)
	assert.NoError(t, err)
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			for _, p := range mixed(r.Expr) {
				t.Errorf("%s%s: %s", r.Name, r.Record, p)
			}
			for key, text := range r.Annotations {
				for _, p := range mixed(text) {
					t.Errorf("%s: %s: %s", r.Name, key, p)
				}
				for _, m := range regexp.MustCompile(`nodecache_[a-z_]+|\bup\b`).FindAllStringIndex(text, -1) {
					if rest := text[m[1]:]; !strings.HasPrefix(rest, "{cluster=%q,") && !strings.HasSuffix(text[:m[0]], "and on (cluster, job, node) ") {
						t.Errorf("%s: %s: asks for %s of every cluster", r.Name, key, text[m[0]:m[1]])
					}
				}
			}
		}
	}
}

// mixed says where an expression puts series of several clusters together. "on ()" stands where clusters do not matter.
func mixed(expr string) []string {
	var list []string
	for _, m := range regexp.MustCompile(`\b(sum|avg|min|max|count|group|by|on|without|ignoring)\s*\(([^)]*)\)`).FindAllStringSubmatch(expr, -1) {
		names := strings.Split(strings.ReplaceAll(m[2], " ", ""), ",")
		if !slices.Contains([]string{"by", "on"}, m[1]) || m[0] != "on ()" && !slices.Contains(names, "cluster") {
			list = append(list, m[0]+" mixes clusters: "+expr)
		}
	}
	return list
}

// TestRunbooks asks for a page for each alert, with its parts, and for no other pages.
func TestRunbooks(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob(filepath.Join(root, "docs", "runbooks", "*.md"))
	assert.NoError(t, err)
	named := map[string]bool{}
	index := mustRead(t, filepath.Join(root, "docs", "runbooks", "README.md"))
	for _, page := range pages {
		named[strings.TrimSuffix(filepath.Base(page), ".md")] = true
	}
	delete(named, "README")
	for _, a := range mustAlerts(t) {
		if !named[a.Name] {
			t.Errorf("%s has no page", a.Name)
			continue
		}
		delete(named, a.Name)
		if !strings.Contains(index, "("+a.Name+".md)") {
			t.Errorf("docs/runbooks/README.md does not list %s", a.Name)
		}
		text := mustRead(t, filepath.Join(root, "docs", "runbooks", a.Name+".md"))
		if !strings.HasPrefix(text, "# "+a.Name+"\n") {
			t.Errorf("%s.md: want the alert's name as its title", a.Name)
		}
		if !strings.Contains(text, "\n```console\n") && !strings.Contains(text, "](README.md#diagnosis)") {
			t.Errorf("%s.md has nothing to check", a.Name)
		}
		if !strings.Contains(text, "\n- ") {
			t.Errorf("%s.md has no fix", a.Name)
		}
	}
	for name := range named {
		t.Errorf("docs/runbooks/%s.md is about no alert", name)
	}
}

// TestRunbookNames looks for metrics and configuration keys that a page names and that do not exist.
func TestRunbookNames(t *testing.T) {
	t.Parallel()
	known := mustFamilies(t)
	configuration := mustRead(t, filepath.Join(root, "docs", "configuration.md"))
	pages, err := filepath.Glob(filepath.Join(root, "docs", "runbooks", "*.md"))
	assert.NoError(t, err)
	keys := 0
	for _, page := range pages {
		text := mustRead(t, page)
		for _, m := range regexp.MustCompile("`([^`\n]*nodecache_[^`\n]*)`").FindAllStringSubmatch(text, -1) {
			for _, p := range problems(m[1], known) {
				t.Errorf("%s: %s: %s", filepath.Base(page), p, m[1])
			}
		}
		for _, m := range regexp.MustCompile("`((?:listen|cluster|hosts|interface|intercept|cache|snapshot|handover|limits|admin)\\.[a-zA-Z.]+)`").FindAllStringSubmatch(text, -1) {
			keys++
			if !strings.Contains(configuration, "\n- `"+m[1]+"`") && m[1] != "snapshot.lastError" { // of /status
				t.Errorf("%s: %s is no key of the configuration", filepath.Base(page), m[1])
			}
		}
	}
	if keys == 0 {
		t.Error("the pages name no key: they are not found any more")
	}
}

// TestNames compares the names in every query with the list of the agent's metrics.
func TestNames(t *testing.T) {
	t.Parallel()
	known := mustFamilies(t)
	queries, err := Queries(root)
	assert.NoError(t, err)
	for _, q := range queries {
		for _, p := range problems(q.Expr, known) {
			t.Errorf("%s: %s: %s", q.Where, p, q.Expr)
		}
	}
}

// TestProblems shows that the comparison finds what is wrong.
func TestProblems(t *testing.T) {
	t.Parallel()
	known := map[string]family{
		"up":                 {},
		"nodecache_a":        {labels: map[string][]string{"state": {"good", "bad"}, "zone": nil}},
		"nodecache_b_bucket": {labels: map[string][]string{"le": nil}},
	}
	tests := []struct {
		name string
		expr string
		want []string
	}{
		{name: "all there", expr: `sum by (node, zone) (rate(nodecache_a{state=~"good|bad",zone="x"}[5m])) / 2 > bool 0.5 and on (node) up == 1`},
		{name: "a histogram", expr: `histogram_quantile(0.9, sum by (le) (rate(nodecache_b_bucket[1m])))`},
		{name: "no such metric", expr: `rate(nodecache_c[5m]) > 1`, want: []string{"no such metric: nodecache_c"}},
		{name: "without braces behind an operator", expr: `up / nodecache_c`, want: []string{"no such metric: nodecache_c"}},
		{name: "no such label", expr: `nodecache_a{kind="x"}`, want: []string{"nodecache_a has no label kind"}},
		{name: "no such value", expr: `nodecache_a{state="ugly"}`, want: []string{`state is never "ugly" in nodecache_a`}},
		{name: "one value of several", expr: `nodecache_a{state=~"good|ugly"}`, want: []string{`state is never "ugly" in nodecache_a`}},
		{name: "no such label to group by", expr: `sum by (kind) (nodecache_a)`, want: []string{"no metric of it has the label kind"}},
		{name: "no metric", expr: `vector(1)`, want: []string{"names no metric"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := problems(test.expr, known); !slices.Equal(got, test.want) {
				t.Errorf("%s: problems %q, want %q", test.expr, got, test.want)
			}
		})
	}
}

// TestPromtoolCheck has promtool read the alerts with their texts.
func TestPromtoolCheck(t *testing.T) {
	t.Parallel()
	promtool := proctest.FindProgram(t, "promtool", "prometheus")
	rules, err := RuleFile(root)
	assert.NoError(t, err)
	file := proctest.WriteFile(t, filepath.Join(t.TempDir(), "rules.yaml"), string(rules))
	if out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", "--lint=all", "--lint-fatal", file).CombinedOutput(); err != nil {
		t.Errorf("promtool check rules: %v\n%s", err, out)
	}
}

// TestScrapeExample has the example of docs/metrics.md set the labels that the alerts and the dashboard select and group by.
func TestScrapeExample(t *testing.T) {
	t.Parallel()
	_, text, _ := strings.Cut(mustRead(t, filepath.Join(root, "docs", "metrics.md")), "\n```yaml\n")
	text, _, _ = strings.Cut(text, "\n```\n")
	var config struct {
		Jobs []struct {
			Name    string `json:"job_name"`
			Relabel []struct {
				Target string `json:"target_label"`
			} `json:"relabel_configs"`
		} `json:"scrape_configs"`
	}
	assert.NoError(t, yaml.Unmarshal([]byte(text), &config))
	if len(config.Jobs) != 1 || config.Jobs[0].Name != "node-cache" {
		t.Fatalf("not a job node-cache: %s", text)
	}
	for _, r := range config.Jobs[0].Relabel {
		if r.Target == "node" {
			return
		}
	}
	t.Errorf("the targets have no label node: %s", text)
}

func mustAlerts(t *testing.T) []Alert {
	t.Helper()
	alerts, err := Alerts(root)
	assert.NoError(t, err)
	if len(alerts) == 0 {
		t.Fatal("there are no alerts")
	}
	return alerts
}

func mustFamilies(t *testing.T) map[string]family {
	t.Helper()
	known, err := families(root)
	assert.NoError(t, err)
	if len(known) < 100 {
		t.Fatalf("docs/metrics.md has %d series names: its lists are not understood", len(known))
	}
	return known
}

func mustRead(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	assert.NoError(t, err)
	return string(data)
}
