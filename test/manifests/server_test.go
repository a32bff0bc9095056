// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/kubetest"
)

// The Prometheus operator's module, whose folder of examples has the definitions of its objects.
const (
	operatorModule = "github.com/prometheus-operator/prometheus-operator@v0.92.0"
	operatorSum    = "h1:tAbsod3+9sQsxDeAvLP27dAe9terToht5M+YdDwLGP0="
	operatorFolder = "example/prometheus-operator-crd"
)

// TestServerAccepts shows everything to a real API server: each rendering as `kubectl apply` sends it, without its being
// kept, and the pods that it would make. A field that the server does not know is an error.
func TestServerAccepts(t *testing.T) {
	t.Parallel()
	all := sources(t)
	c := kubetest.Start(t, kubetest.Options{})
	createNamespaces(t, c)
	kubectl := func(t *testing.T, input []byte, args ...string) {
		t.Helper()
		args = append([]string{"kubectl", "--kubeconfig", c.Kubeconfig(kubetest.Admin)}, args...)
		if _, err := run(t.Context(), input, program(t, "kube"), args...); err != nil {
			t.Error(err)
		}
	}
	kubectl(t, nil, append([]string{"create"}, operatorDefinitions(t)...)...)
	kubectl(t, nil, "wait", "--for=condition=Established", "--timeout=60s", "customresourcedefinitions", "--all")
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			kubectl(t, s.text, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
			for _, w := range workloads(t, objects(t, s.text)) {
				checkAdmission(t, c, w)
			}
		})
	}
}

// The namespaces for pods, each named after the Pod Security Standard that it enforces.
const (
	restricted = "restricted"
	privileged = "privileged"
)

func createNamespaces(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	for _, level := range []string{restricted, privileged} {
		labels := map[string]string{"pod-security.kubernetes.io/enforce": level}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: level, Labels: labels}}
		if _, err := c.Client().CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// checkAdmission shows a pod to the server where the strictest of the Pod Security Standards is enforced. Agents, and what
// cleans up after them, must be refused there for the node's network, and taken where none is.
func checkAdmission(t *testing.T, c *kubetest.Cluster, w workload) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: w.name}, Spec: w.spec}
	options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
	create := func(namespace string) error {
		_, err := c.Client().CoreV1().Pods(namespace).Create(t.Context(), pod, options)
		return err
	}
	err := create(restricted)
	if !w.spec.HostNetwork {
		if err != nil {
			t.Errorf("%s as a pod: %v", w.name, err)
		}
		return
	}
	if err == nil || !strings.Contains(err.Error(), "host namespaces (hostNetwork=true)") {
		t.Errorf("%s as a pod where pods may have nothing of the node: %v", w.name, err)
	}
	if err := create(privileged); err != nil {
		t.Errorf("%s as a pod: %v", w.name, err)
	}
}

// operatorDefinitions gives kubectl arguments for the definitions of what monitoring has.
func operatorDefinitions(t *testing.T) []string {
	t.Helper()
	out, err := run(t.Context(), nil, "go", "mod", "download", "-json", operatorModule)
	if err != nil {
		t.Fatal(err)
	}
	var module struct{ Dir, Sum string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	if module.Sum != operatorSum {
		t.Fatalf("%s has sum %s, want %s", operatorModule, module.Sum, operatorSum)
	}
	var args []string
	for _, kind := range []string{"podmonitors", "prometheusrules"} {
		args = append(args, "-f", filepath.Join(module.Dir, operatorFolder, "monitoring.coreos.com_"+kind+".yaml"))
	}
	return args
}
