// SPDX-License-Identifier: Apache-2.0

package promtest

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// podMonitor is the part of the Prometheus operator's object that podmonitor.yaml uses. A key that is not in it is an error:
// it would be ignored here and not by the operator.
type podMonitor struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		JobLabel            string     `json:"jobLabel"`
		PodMetricsEndpoints []endpoint `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// endpoint is a port of the pods to scrape; without a name it is the pod itself.
type endpoint struct {
	Port        string       `json:"port"`
	Path        string       `json:"path"`
	Interval    string       `json:"interval"`
	Relabelings []relabeling `json:"relabelings"`
}

// relabeling is a rule in the operator's spelling.
type relabeling struct {
	SourceLabels []string `json:"sourceLabels"`
	Regex        string   `json:"regex"`
	TargetLabel  string   `json:"targetLabel"`
	Replacement  string   `json:"replacement"`
	Action       string   `json:"action"`
}

// relabel is a rule in Prometheus' own spelling.
type relabel struct {
	SourceLabels []string `json:"source_labels,omitempty"`
	Regex        string   `json:"regex,omitempty"`
	TargetLabel  string   `json:"target_label,omitempty"`
	Replacement  string   `json:"replacement,omitempty"`
	Action       string   `json:"action,omitempty"`
}

// A Pod is what Prometheus' discovery knows of a pod in namespace kube-system.
type Pod struct {
	Name, Node, IP, HostIP string
	Labels                 map[string]string
	Ports                  map[string]uint16 // the containers' TCP ports by name
}

// PodMonitors returns scrapes of what the objects of podmonitor.yaml select of the pods, as the Prometheus operator makes
// them. Discovery is the caller's: not every Prometheus, Debian's for one, can find pods itself.
func PodMonitors(root string, pods []Pod) ([]any, error) {
	data, err := os.ReadFile(filepath.Join(root, "daemonset", "monitoring", "podmonitor.yaml"))
	if err != nil {
		return nil, fmt.Errorf("reading the PodMonitors: %w", err)
	}
	var targets, scrapes []any
	for _, p := range pods {
		targets = append(targets, p.targets()...)
	}
	for text := range strings.SplitSeq(string(data), "\n---\n") {
		var m podMonitor
		if err := yaml.UnmarshalStrict([]byte(text), &m); err != nil {
			return nil, fmt.Errorf("reading the PodMonitors: %w", err)
		}
		for _, e := range m.Spec.PodMetricsEndpoints {
			scrapes = append(scrapes, map[string]any{
				"job_name": "podMonitor/kube-system/" + m.Metadata.Name, "metrics_path": e.Path,
				"static_configs": targets, "relabel_configs": m.relabels(&e),
			})
		}
	}
	return scrapes, nil
}

// targets are those of a pod before relabeling: one for each port, or one without.
func (p *Pod) targets() []any {
	labels := map[string]string{
		"__meta_kubernetes_namespace": "kube-system", "__meta_kubernetes_pod_name": p.Name, "__meta_kubernetes_pod_ip": p.IP,
		"__meta_kubernetes_pod_host_ip": p.HostIP, "__meta_kubernetes_pod_node_name": p.Node,
		"__meta_kubernetes_pod_phase": "Running", "__meta_kubernetes_pod_container_name": "node-cache",
	}
	for name, value := range p.Labels {
		labels[podLabel(name)] = value
	}
	if len(p.Ports) == 0 {
		return []any{map[string]any{"targets": []string{p.IP}, "labels": labels}}
	}
	var all []any
	for name, port := range p.Ports {
		one := maps.Clone(labels)
		one["__meta_kubernetes_pod_container_port_name"] = name
		all = append(all, map[string]any{"targets": []string{net.JoinHostPort(p.IP, strconv.Itoa(int(port)))}, "labels": one})
	}
	return all
}

// relabels are the operator's own rules, then those of the object.
func (m *podMonitor) relabels(e *endpoint) []relabel {
	rules := []relabel{{SourceLabels: []string{"__meta_kubernetes_pod_phase"}, Regex: "(Failed|Succeeded)", Action: "drop"}}
	for name, value := range m.Spec.Selector.MatchLabels {
		rules = append(rules, relabel{SourceLabels: []string{podLabel(name)}, Regex: regexp.QuoteMeta(value), Action: "keep"})
	}
	if e.Port != "" {
		rules = append(rules, relabel{SourceLabels: []string{"__meta_kubernetes_pod_container_port_name"}, Regex: e.Port, Action: "keep"})
	}
	rules = append(rules,
		relabel{SourceLabels: []string{"__meta_kubernetes_namespace"}, TargetLabel: "namespace"},
		relabel{SourceLabels: []string{"__meta_kubernetes_pod_container_name"}, TargetLabel: "container"},
		relabel{SourceLabels: []string{"__meta_kubernetes_pod_name"}, TargetLabel: "pod"},
		relabel{TargetLabel: "job", Replacement: "kube-system/" + m.Metadata.Name},
		relabel{SourceLabels: []string{podLabel(m.Spec.JobLabel)}, Regex: "(.+)", TargetLabel: "job", Replacement: "$1"},
		relabel{TargetLabel: "endpoint", Replacement: e.Port},
	)
	for _, r := range e.Relabelings {
		rules = append(rules, relabel(r))
	}
	return rules
}

// podLabel is what Prometheus calls a label of a pod.
func podLabel(name string) string {
	return "__meta_kubernetes_pod_label_" + regexp.MustCompile(`[^a-zA-Z0-9_]`).ReplaceAllString(name, "_")
}
