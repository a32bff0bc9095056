// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// everyValue are the objects of testdata/values.yaml, which a real API server accepts: TestServerAccepts.
func everyValue(t *testing.T) []byte {
	t.Helper()
	return chart(t, "-f", "testdata/values.yaml")
}

// podTemplates are the pods of the objects by their names.
func podTemplates(t *testing.T, list []*unstructured.Unstructured) map[string]corev1.PodTemplateSpec {
	t.Helper()
	found := map[string]corev1.PodTemplateSpec{}
	for _, o := range all[appsv1.DaemonSet](t, list, "DaemonSet") {
		found[o.Name] = o.Spec.Template
	}
	for _, o := range all[appsv1.Deployment](t, list, "Deployment") {
		found[o.Name] = o.Spec.Template
	}
	return found
}

// TestSecurityContext adds to what confines the containers, and compares the rest with what they have without it.
func TestSecurityContext(t *testing.T) {
	t.Parallel()
	got := podTemplates(t, objects(t, everyValue(t)))
	for name, want := range podTemplates(t, objects(t, chart(t, "--set", "resolver.enabled=true"))) {
		s := want.Spec.Containers[0].SecurityContext
		if name == "node-cache" {
			s.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"}
			s.AppArmorProfile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
		} else {
			s.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
		}
		same(t, name+": securityContext", s, got[name].Spec.Containers[0].SecurityContext)
	}
}

// TestExtraEnv adds variables behind those of the chart.
func TestExtraEnv(t *testing.T) {
	t.Parallel()
	got := podTemplates(t, objects(t, everyValue(t)))
	for name, want := range podTemplates(t, objects(t, chart(t, "--set", "resolver.enabled=true"))) {
		env := want.Spec.Containers[0].Env
		env = append(env, corev1.EnvVar{Name: "GODEBUG", Value: "netdns=go"})
		if name == "node-cache" {
			secret := &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "proxy"}, Key: "token"}
			env = append(env, corev1.EnvVar{Name: "TOKEN", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: secret}})
		}
		same(t, name+": env", env, got[name].Spec.Containers[0].Env)
	}
}

// TestServiceAccounts gives the accounts other names, which pods and bindings follow. One that exists already is not made.
func TestServiceAccounts(t *testing.T) {
	t.Parallel()
	text := everyValue(t)
	list := objects(t, text)
	for name, want := range map[string]string{"node-cache": "dns-agent", "node-cache-resolver": "dns-resolver"} {
		same(t, name+": serviceAccountName", want, podTemplates(t, list)[name].Spec.ServiceAccountName)
	}
	var subjects []string
	for _, b := range all[rbacv1.ClusterRoleBinding](t, list, "ClusterRoleBinding") {
		subjects = append(subjects, b.Name+": "+b.Subjects[0].Name)
	}
	for _, b := range all[rbacv1.RoleBinding](t, list, "RoleBinding") {
		subjects = append(subjects, b.Name+": "+b.Subjects[0].Name)
	}
	want := []string{"node-cache-resolver: dns-resolver", "node-cache-resolver: dns-resolver", "node-cache: dns-agent", "node-cache: dns-agent"}
	same(t, "subjects", want, sorted(subjects))
	accounts := all[corev1.ServiceAccount](t, list, "ServiceAccount")
	if len(accounts) != 1 || accounts[0].Name != "dns-agent" || accounts[0].Annotations["eks.amazonaws.com/role-arn"] == "" {
		t.Errorf("accounts %v, want dns-agent with its annotation", accounts)
	}
}

// TestCommon looks for the labels and annotations that all objects have, and the labels in pods. Selectors stay: they cannot change.
func TestCommon(t *testing.T) {
	t.Parallel()
	list := objects(t, everyValue(t))
	kinds := map[string]bool{}
	for _, o := range list {
		kinds[o.GetKind()] = true
		if l := o.GetLabels(); l["team"] != "dns" || l["cost-centre"] != "0042" || !strings.HasPrefix(l["app.kubernetes.io/name"], "node-cache") {
			t.Errorf("%s: labels %v", id(o), l)
		}
		if a := o.GetAnnotations(); a["owner"] != "dns@example.com" || o.GetKind() == "Pod" && a["helm.sh/hook"] != "test" {
			t.Errorf("%s: annotations %v", id(o), a)
		}
	}
	if len(kinds) < 12 {
		t.Errorf("only %d kinds: %v", len(kinds), kinds)
	}
	for name, pod := range podTemplates(t, list) {
		if pod.Labels["team"] != "dns" || pod.Labels["app.kubernetes.io/name"] != name || pod.Annotations["own"] == "" {
			t.Errorf("pods of %s: labels %v, annotations %v", name, pod.Labels, pod.Annotations)
		}
	}
	selectors := map[string]*metav1.LabelSelector{}
	for _, o := range all[appsv1.DaemonSet](t, list, "DaemonSet") {
		selectors[o.Name] = o.Spec.Selector
	}
	for _, o := range all[appsv1.Deployment](t, list, "Deployment") {
		selectors[o.Name] = o.Spec.Selector
	}
	for _, o := range all[policyv1.PodDisruptionBudget](t, list, "PodDisruptionBudget") {
		selectors[o.Name+" budget"] = o.Spec.Selector
	}
	for name, s := range selectors {
		if len(s.MatchLabels) != 1 {
			t.Errorf("%s selects by %v", name, s.MatchLabels)
		}
	}
}

// TestScrapeTargets has annotations and PodMonitoring name the port at which the agents and resolvers serve metrics, on request only.
func TestScrapeTargets(t *testing.T) {
	t.Parallel()
	list := objects(t, everyValue(t))
	ports := map[string]string{"node-cache": "9300", "node-cache-resolver": "9253"}
	for name, pod := range podTemplates(t, list) {
		want := map[string]string{
			"prometheus.io/scrape": "true", "prometheus.io/scheme": "http", "prometheus.io/port": ports[name], "prometheus.io/path": "/metrics",
		}
		for key, value := range want {
			same(t, name+": "+key, value, pod.Annotations[key])
		}
	}
	var targets []string
	for _, o := range list {
		if o.GetKind() != "PodMonitoring" {
			continue
		}
		endpoints, _, _ := unstructured.NestedSlice(o.Object, "spec", "endpoints")
		targets = append(targets, o.GetName())
		same(t, id(o)+": port", ports[o.GetName()], fmt.Sprint(endpoints[0].(map[string]any)["port"]))
	}
	same(t, "PodMonitorings", []string{"node-cache", "node-cache-resolver"}, sorted(targets))
	for _, s := range sources(t) {
		if strings.Contains(string(s.text), "prometheus.io/scrape") || strings.Contains(string(s.text), "PodMonitoring") {
			t.Errorf("%s: scrape targets without a request for them", s.name)
		}
	}
}

// TestNamesAreFixed has no value change the names by which alerts, runbooks, `kubectl node-cache` and uninstall find objects.
func TestNamesAreFixed(t *testing.T) {
	t.Parallel()
	names := func(text []byte) []string {
		var found []string
		for _, o := range objects(t, text) {
			if o.GetKind() != "ServiceAccount" && o.GetKind() != "PodMonitoring" {
				found = append(found, id(o))
			}
		}
		slices.Sort(found)
		return found
	}
	same(t, "objects", names(chart(t, "--set", "resolver.enabled=true,monitoring.enabled=true,monitoring.address=0.0.0.0:9300")), names(everyValue(t)))
}
