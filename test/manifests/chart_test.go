// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/config"
)

// TestLint has helm look at the chart, with the values of each rendering. A warning is an error.
func TestLint(t *testing.T) {
	t.Parallel()
	for _, r := range renderings() {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"lint", "--strict", filepath.Join(folder, "chart")}, r.values...)
			if _, err := run(t.Context(), nil, program(t, "helm"), args...); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNotes reads what helm says after an installation: how to see that it works, for what was installed.
func TestNotes(t *testing.T) {
	t.Parallel()
	const kubelet = "Set clusterDNS of each node's kubelet to 169.254.20.10"
	for _, tt := range []struct {
		name      string
		values    []string
		want, not []string
	}{
		{
			name: "base", values: nil,
			want: []string{"rollout status daemonset/node-cache", "helm test node-cache -n kube-system", kubelet, "central, which is kube-system/kube-dns", "within about a minute", "daemonset/uninstall. "},
			not:  []string{"deployment/node-cache-resolver", "Pods need no change"},
		},
		{
			name: "transparent", values: []string{"-f", filepath.Join(folder, "chart/presets/transparent.yaml")},
			want: []string{"Pods need no change: the agent of their node answers queries to kube-system/kube-dns"}, not: []string{kubelet},
		},
		{
			name: "cilium", values: []string{"-f", filepath.Join(folder, "chart/presets/cilium.yaml")},
			want: []string{"listens at its pod's address", "Pods need no change: the agent of their node answers queries to kube-system/kube-dns", "Uninstall: `helm uninstall`.\n"},
			not:  []string{"Set clusterDNS", "netfilter", "daemonset/uninstall"},
		},
		{
			name: "central", values: []string{"-f", filepath.Join(folder, "chart/presets/central.yaml")},
			want: []string{kubelet, "central, which is kube-system/node-cache-resolver", "rollout status deployment/node-cache-resolver"},
		},
		{name: "iptables", values: []string{"--set", "image.variant=iptables"}, want: []string{"daemonset/uninstall-iptables. "}},
		{
			name: "without a fallback", values: []string{"--set", "config.agent.intercept.fallback=none,config.watch=api,monitoring.enabled=true"},
			want: []string{"the fallback answers: none.", "within a second"}, not: []string{"Prometheus:"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"install", "node-cache", filepath.Join(folder, "chart"), "-n", namespace, "--dry-run=client", "-o", "json"}, tt.values...)
			out, err := run(t.Context(), nil, program(t, "helm"), args...)
			must(t, err)
			var release struct{ Info struct{ Notes string } }
			must(t, json.Unmarshal(out, &release))
			notes := release.Info.Notes
			for _, want := range tt.want {
				if !strings.Contains(notes, want) {
					t.Errorf("the notes do not say %q:\n%s", want, notes)
				}
			}
			for _, not := range tt.not {
				if strings.Contains(notes, not) {
					t.Errorf("the notes say %q:\n%s", not, notes)
				}
			}
		})
	}
}

// TestMetricsComponent lays the component over every overlay. It finds the line that it replaces by the marks around it,
// whatever else is quoted, and wherever.
func TestMetricsComponent(t *testing.T) {
	t.Parallel()
	overlays, err := os.ReadDir(filepath.Join(folder, "overlays"))
	must(t, err)
	targets := []string{"base"}
	for _, o := range overlays {
		targets = append(targets, filepath.Join("overlays", o.Name()))
	}
	for _, overlay := range targets {
		t.Run(overlay, func(t *testing.T) {
			t.Parallel()
			before := configurations(t, objects(t, rendering{overlay: overlay}.byKustomize(t)))["node-cache"]
			component, want := "metrics", "0.0.0.0:9253"
			if strings.HasSuffix(overlay, "/ipv6") {
				component, want = "metrics-ipv6", "[::]:9253"
			}
			list := objects(t, rendering{overlay: overlay, components: []string{component}}.byKustomize(t))
			after := configurations(t, list)["node-cache"]
			same(t, "admin.address", want, after.Admin.Address.String())
			for _, w := range workloads(t, list) {
				if w.name == "node-cache" {
					checkProbes(t, &w.spec, &w.spec.Containers[0], &after)
				}
			}
			if after.Admin.Address = before.Admin.Address; fullConfig(t, before) != fullConfig(t, after) {
				t.Error("the component changes more than admin.address")
			}
			secured := configurations(t, objects(t, rendering{overlay: overlay, components: []string{"metrics-secure"}}.byKustomize(t)))["node-cache"]
			same(t, "admin.tls.address", "[::]:9254", secured.Admin.TLSAddress.String())
			if secured.Admin.AdminTLS = before.Admin.AdminTLS; fullConfig(t, before) != fullConfig(t, secured) {
				t.Error("component metrics-secure changes more than admin.tls")
			}
			for _, o := range list {
				if strings.HasSuffix(o.GetName(), "-metrics") {
					t.Errorf("%s would be applied", id(o))
				}
			}
		})
	}
}

// TestMetricsComponentOfOwnText lays the component over a text that a user has put in place of ours.
func TestMetricsComponentOfOwnText(t *testing.T) {
	t.Parallel()
	const agent = "clusterDomain: \"corp.example\"\nlisten: {addresses: [169.254.20.10], port: 53}\n"
	for _, tt := range []struct {
		name, text, want string // want: admin.address, or a part of the error
	}{
		{"quotes before the marks", agent + "admin:\n  # -- component metrics\n  address: 169.254.20.10:9253\n  # -- component metrics\n  socket: /run/pod/admin.sock\n", "0.0.0.0:9253"},
		{"no marks, admin at the end", agent + "admin:\n  socket: /run/pod/admin.sock\n", "0.0.0.0:9253"},
		{"no marks, another section at the end", agent + "cache:\n  size: 8Mi\n", "cache.address: unknown key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			list := objects(t, withOwnText(t, rendering{overlay: "base", components: []string{"metrics"}}, tt.text))
			for _, o := range list {
				text, is := configText(o)
				if !is || o.GetName() != "node-cache" {
					continue
				}
				cfg, err := config.Parse([]byte(text), config.Agent)
				got := cfg.Admin.Address.String()
				if err != nil {
					got = err.Error()
				}
				if !strings.Contains(got, tt.want) {
					t.Errorf("admin.address: %s, want %s, of:\n%s", got, tt.want, text)
				}
				return
			}
			t.Fatal("no ConfigMap node-cache")
		})
	}
}

// withOwnText renders with a configuration of a user's own, and the transformer roll.
func withOwnText(t *testing.T, r rendering, text string) []byte {
	t.Helper()
	dir := r.kustomization(t)
	root, err := filepath.Abs(folder)
	must(t, err)
	root, err = filepath.Rel(dir, root)
	must(t, err)
	kustomization, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	must(t, err)
	proctest.WriteFile(t, filepath.Join(dir, "node-cache.yaml"), text)
	proctest.WriteFile(t, filepath.Join(dir, "kustomization.yaml"), string(kustomization)+"transformers: ["+filepath.Join(root, "roll")+"]\n"+
		"configMapGenerator: [{name: node-cache, namespace: kube-system, behavior: replace, files: [node-cache.yaml]}]\n"+
		"generatorOptions: {disableNameSuffixHash: true}\n")
	return kustomize(t, dir)
}

// TestRestartKeys has the pods replaced for a key that needs a restart, and for no other.
func TestRestartKeys(t *testing.T) {
	t.Parallel()
	checksum := func(text []byte) string {
		return all[appsv1.DaemonSet](t, objects(t, text), "DaemonSet")[0].Spec.Template.Annotations["node-cache.io/restart-keys"]
	}
	base, before := rendering{overlay: "base"}, chart(t)
	text := ""
	for _, o := range objects(t, base.byKustomize(t)) {
		if found, is := configText(o); is {
			text = found
		}
	}
	for _, tt := range []struct {
		before, after, set string
		want               bool
	}{
		{"port: 53", "port: 54", "listen.port=54", true},
		{"interface:", "interface:\n  kind: lo", "interface.kind=lo", true},
		{"socket: /run/node-cache/", "socket: /run/node-cache/2/", "handover.socket=/run/node-cache/2/handover.sock", true},
		{"  # -- reloaded", "  lease: 5s\n  # -- reloaded", "intercept.lease=5s", true},
		{"socket: /run/pod", "hosts: [dns]\n  socket: /run/pod", "admin.hosts={dns}", true},
		{"fallback: central", "fallback: none", "intercept.fallback=none", false},
		{"size: 64Mi", "size: 65Mi", "cache.size=65Mi", false},
	} {
		t.Run(tt.set, func(t *testing.T) {
			t.Parallel()
			changed := strings.Replace(text, tt.before, tt.after, 1)
			if changed == text {
				t.Fatalf("the configuration has no %q:\n%s", tt.before, text)
			}
			if got := checksum(before) != checksum(chart(t, "--set", "config.agent."+tt.set)); got != tt.want {
				t.Errorf("the chart replaces the pods: %t, want %t", got, tt.want)
			}
			if got := checksum(base.byKustomize(t)) != checksum(withOwnText(t, base, changed)); got != tt.want {
				t.Errorf("kustomize replaces the pods: %t, want %t", got, tt.want)
			}
		})
	}
}

// TestAlertValues leaves one alert out and changes another.
func TestAlertValues(t *testing.T) {
	t.Parallel()
	const alerts = "monitoring.alerts."
	text := string(chart(t, "--set", "monitoring.enabled=true,"+alerts+"NodeCacheVersions.enabled=false,"+
		alerts+"NodeCacheSlow.threshold=0.25,"+alerts+"NodeCacheSlow.for=31m,"+alerts+"NodeCacheSlow.severity=page"))
	for part, want := range map[string]bool{
		"alert: NodeCacheVersions": false, "alert: NodeCacheDown": true, "> 0.25 # threshold": true, "> 0.5 # threshold": false, "for: 31m": true, "severity: page": true,
	} {
		if strings.Contains(text, part) != want {
			t.Errorf("the objects have %q: %t, want %t", part, !want, want)
		}
	}
}

// TestClusterLabel gives the label another name, and looks for the old one where Prometheus and Grafana would read it as a label.
func TestClusterLabel(t *testing.T) {
	t.Parallel()
	const other = "k8s_cluster_9"
	text := func(args ...string) string { // objects, because lines of YAML break elsewhere
		data, err := json.Marshal(objects(t, chart(t, append(args, "--set", "monitoring.enabled=true")...)))
		must(t, err)
		return string(data)
	}
	want, got := text(), text("--set", "monitoring.clusterLabel="+other)
	if strings.ReplaceAll(got, other, "cluster") != want {
		t.Error("more is different than the label")
	}
	label := regexp.MustCompile(`(?:[({]|, ?|[lL]abels\.)cluster[^\w:]`)
	for _, m := range label.FindAllStringIndex(got, -1) {
		t.Errorf("the old label is left: %s", got[max(0, m[0]-80):m[1]])
	}
	if have, n := strings.Count(got, other), len(label.FindAllString(want, -1)); n < 200 || have != n {
		t.Errorf("%d labels are renamed, want all %d", have, n)
	}
}

// TestNowhereInParticular takes the defaults of where pods go away by null.
func TestNowhereInParticular(t *testing.T) {
	t.Parallel()
	list := objects(t, chart(t, "--set", "resolver.enabled=true,tolerations=null,nodeSelector=null,resolver.tolerations=null,resolver.nodeSelector=null"))
	for _, w := range workloads(t, list) {
		if w.name == "node-cache-test" {
			continue // TestTestPod
		}
		if len(w.spec.Tolerations) != 0 || len(w.spec.NodeSelector) != 0 {
			t.Errorf("%s: tolerations %v and selector %v, want none", w.name, w.spec.Tolerations, w.spec.NodeSelector)
		}
	}
}

// TestTestPod has `helm test` ask from a node that has an agent: one that is on another would fail for no fault of theirs.
func TestTestPod(t *testing.T) {
	t.Parallel()
	list := objects(t, chart(t, "--set", "nodeSelector.pool=edge,affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key=arch,"+
		"affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator=Exists"))
	var agent, test *corev1.PodSpec
	for _, w := range workloads(t, list) {
		switch w.name {
		case "node-cache":
			agent = &w.spec
		case "node-cache-test":
			test = &w.spec
		}
	}
	if diff := cmp.Diff(agent.NodeSelector, test.NodeSelector); diff != "" || len(test.NodeSelector) != 2 {
		t.Errorf("nodeSelector %v (-agents +test):\n%s", test.NodeSelector, diff)
	}
	if diff := cmp.Diff(agent.Affinity, test.Affinity); diff != "" || test.Affinity == nil {
		t.Errorf("affinity (-agents +test):\n%s", diff)
	}
	// Those of the control plane, and not those of a node that is gone, which are NoExecute.
	want := []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	same(t, "tolerations", want, test.Tolerations)
}

// TestPresetsOverIPv6 lays preset ipv6 over the others, as daemonset/README.md has it.
func TestPresetsOverIPv6(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"central", "transparent", "large-cluster"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			preset := func(name string) string { return filepath.Join(folder, "chart/presets", name+".yaml") }
			list := objects(t, chart(t, "-f", preset(name), "-f", preset("ipv6"), "--set", "monitoring.enabled=true"))
			configs := configurations(t, list)
			for _, w := range workloads(t, list) {
				if cfg, has := configs[w.name]; has {
					checkAgreement(t, &w.spec, &cfg)
				}
			}
			same(t, "listen.addresses", "[fd00::10]", fmt.Sprint(configs["node-cache"].Listen.Addresses))
		})
	}
}

// TestOtherAddresses moves what pods, probes and Services have to agree about, all by the configuration alone.
func TestOtherAddresses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, set string }{
		{"only IPv6", "config.agent.listen.addresses={fd00::10},config.agent.admin.address=[fd00::10]:9253"},
		{"other ports", "resolver.enabled=true,config.agent.admin.address=169.254.20.10:9300,config.resolver.admin.address=[::]:9301"},
		{"metrics over IPv6", "monitoring.enabled=true,monitoring.address=[::]:9400"},
		{"a larger cache", "resolver.enabled=true,config.agent.cache.size=1Gi,config.resolver.cache.size=256Mi,config.agent.snapshot.size=64Mi"},
		{"metrics over both where the first is IPv6", "monitoring.enabled=true,monitoring.address=0.0.0.0:9253,config.agent.listen.addresses={fd00::10,169.254.20.10}"},
		{"metrics over IPv6 only", "monitoring.enabled=true,monitoring.address=[::]:9253,config.agent.listen.addresses={fd00::10}"},
		{"a small cache", "config.agent.snapshot.folder=,config.agent.cache.size=1Mi"},
		{"a long deadline", "resolver.enabled=true,config.agent.limits.deadline=20s,terminationGracePeriodSeconds=34,config.resolver.limits.deadline=1m"},
		{"no snapshot", "config.agent.snapshot.folder=,config.agent.cache.size=32M"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			list := objects(t, chart(t, "--set", tt.set))
			configs := configurations(t, list)
			for _, w := range workloads(t, list) {
				if cfg, has := configs[w.name]; has {
					checkAgreement(t, &w.spec, &cfg)
				}
			}
		})
	}
	list := objects(t, chart(t, "--set", "resolver.enabled=true,config.resolver.listen.port=5300"))
	for _, s := range all[corev1.Service](t, list, "Service") {
		for _, p := range s.Spec.Ports {
			if p.Port != 53 || p.TargetPort.IntValue() != 5300 {
				t.Errorf("%s leads to port %s, and the resolver listens on 5300", s.Name, p.TargetPort.String())
			}
		}
	}
}
