// SPDX-License-Identifier: Apache-2.0

package promtest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A family is a metric that queries may name.
type family struct {
	labels map[string][]string // values by label; nil: an open set
}

// targetLabels are what podmonitor.yaml, Prometheus and a store of several clusters give every series of a target. As targets have
// a namespace, Prometheus renames the agent's own label of that name.
func targetLabels() []string {
	return []string{"cluster", "job", "node", "instance", "namespace", "exported_namespace"}
}

// otherMetrics are metrics of others that queries may name, with their labels.
func otherMetrics() map[string][]string {
	return map[string][]string{
		"up":                              {"pod"},
		"process_start_time_seconds":      nil,
		"process_resident_memory_bytes":   nil,
		"process_cpu_seconds_total":       nil,
		"kube_node_info":                  nil,
		"node_nf_conntrack_entries":       nil,
		"node_nf_conntrack_entries_limit": nil,

		"kube_daemonset_status_desired_number_scheduled": {"daemonset"},
		"kube_daemonset_status_updated_number_scheduled": {"daemonset"},
	}
}

// families reads the lists of docs/metrics.md, which a test of pkg/admin/metrics makes from its list.
func families(root string) (map[string]family, error) {
	data, err := os.ReadFile(filepath.Join(root, "docs", "metrics.md"))
	if err != nil {
		return nil, fmt.Errorf("reading the metrics: %w", err)
	}
	all := map[string]family{}
	item := regexp.MustCompile("(?m)^(?:###|- `(nodecache_[a-z0-9_]+)`(?:\\s+\\(([^)]*)\\))?:)")
	values := map[string][]string{} // of the labels of a chapter, which stand at their first use
	for _, m := range item.FindAllStringSubmatch(string(data), -1) {
		if m[1] == "" {
			clear(values)
			continue
		}
		f := family{labels: columns(m[2])}
		for label, listed := range f.labels {
			if listed == nil {
				f.labels[label] = values[label]
			}
			values[label] = f.labels[label]
		}
		if !strings.HasSuffix(m[2], "histogram") {
			all[m[1]] = f
			continue
		}
		all[m[1]+"_sum"], all[m[1]+"_count"] = f, f
		bucket := maps.Clone(f.labels)
		bucket["le"] = nil
		all[m[1]+"_bucket"] = family{labels: bucket}
	}
	rules, err := readRules(root)
	if err != nil {
		return nil, err
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			all[r.Record] = family{}
		}
	}
	for name, labels := range otherMetrics() {
		f := family{labels: map[string][]string{}}
		for _, l := range labels {
			f.labels[l] = nil
		}
		all[name] = f
	}
	return all, nil
}

// columns reads the labels of an item, as `state`: good, bad; `zone`.
func columns(list string) map[string][]string {
	labels := map[string][]string{}
	label := regexp.MustCompile("^`([a-z_]+)`(?:: (.+))?$")
	for part := range strings.SplitSeq(strings.Join(strings.Fields(list), " "), "; ") {
		l := label.FindStringSubmatch(strings.TrimSpace(part))
		if l == nil {
			continue
		}
		labels[l[1]] = nil
		if l[2] != "" {
			labels[l[1]] = strings.Split(l[2], ", ")
		}
	}
	return labels
}

// A use is a metric as an expression names it, with the labels it asks for.
type use struct {
	name     string
	matchers []matcher
}

// A matcher is one condition between braces.
type matcher struct {
	label  string
	values []string // of a regular expression its alternatives
}

// parse finds the metrics of an expression and the labels that its operators name. Prometheus itself says whether the
// expression is well-formed; this only has to find the names in one that is.
func parse(expr string) (uses []use, labels []string) {
	braces := regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\s*\{([^}]*)\}`)
	for _, m := range braces.FindAllStringSubmatch(expr, -1) {
		uses = append(uses, use{name: m[1], matchers: conditions(m[2])})
	}
	rest := braces.ReplaceAllString(expr, " ")
	grouping := regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	for _, m := range grouping.FindAllStringSubmatch(rest, -1) {
		names := func(r rune) bool { return r == ',' || r == ' ' }
		labels = append(labels, strings.FieldsFunc(m[2], names)...)
	}
	rest = grouping.ReplaceAllString(rest, " ")
	rest = regexp.MustCompile(`"[^"]*"|\[[^\]]*\]|#.*`).ReplaceAllString(rest, " ")
	words := []string{"and", "or", "unless", "bool", "offset", "sum", "min", "max", "avg", "count"} // before a grouping that is gone now
	for _, m := range regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\()?`).FindAllStringSubmatch(rest, -1) {
		if m[2] == "" && !slices.Contains(words, m[1]) {
			uses = append(uses, use{name: m[1]})
		}
	}
	return uses, labels
}

// conditions reads what stands between braces.
func conditions(text string) []matcher {
	found := regexp.MustCompile(`([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)"`).FindAllStringSubmatch(text, -1)
	list := make([]matcher, 0, len(found))
	for _, c := range found {
		one := matcher{label: c[1], values: []string{c[3]}}
		if strings.HasSuffix(c[2], "~") {
			one.values = strings.Split(c[3], "|")
		}
		list = append(list, one)
	}
	return list
}

// problems says what an expression names that does not exist.
func problems(expr string, known map[string]family) []string {
	uses, grouped := parse(expr)
	var list []string
	if len(uses) == 0 {
		list = append(list, "names no metric")
	}
	labels := targetLabels()
	for _, u := range uses {
		f, ok := known[u.name]
		if !ok {
			list = append(list, "no such metric: "+u.name)
			continue
		}
		for name := range f.labels {
			labels = append(labels, name)
		}
		for _, m := range u.matchers {
			list = append(list, f.matcherProblems(u.name, m)...)
		}
	}
	for _, l := range grouped {
		if !slices.Contains(labels, l) {
			list = append(list, "no metric of it has the label "+l)
		}
	}
	return list
}

// matcherProblems says what is wrong with a condition on a metric of the family.
func (f *family) matcherProblems(name string, m matcher) []string {
	values, ok := f.labels[m.label]
	switch {
	case slices.Contains(targetLabels(), m.label):
		return nil
	case !ok:
		return []string{name + " has no label " + m.label}
	case values == nil:
		return nil
	}
	var list []string
	for _, v := range m.values {
		if !slices.Contains(values, v) {
			list = append(list, fmt.Sprintf("%s is never %q in %s", m.label, v, name))
		}
	}
	return list
}
