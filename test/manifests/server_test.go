// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
	all := append(sources(t), source{"every value", everyValue(t)})
	c := kubetest.Start(t, kubetest.Options{})
	createNamespaces(t, c)
	kubectl := func(t *testing.T, input []byte, args ...string) {
		t.Helper()
		args = append([]string{"kubectl", "--kubeconfig", c.Kubeconfig(kubetest.Admin)}, args...)
		if _, err := run(t.Context(), input, program(t, "kube"), args...); err != nil {
			t.Error(err)
		}
	}
	kubectl(t, nil, append([]string{"create", "-f", "testdata/podmonitoring.yaml", "-f", "testdata/localredirectpolicy.yaml", "-f", "testdata/networkpolicies.yaml"}, operatorDefinitions(t)...)...)
	kubectl(t, nil, "wait", "--for=condition=Established", "--timeout=60s", "customresourcedefinitions", "--all")
	t.Run("a LimitRange", func(t *testing.T) {
		t.Parallel()
		checkLimitRange(t, c)
	})
	t.Run("network policies", func(t *testing.T) {
		t.Parallel()
		checkNetworkPolicies(t, c)
	})
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

// checkLimitRange has a namespace give a CPU limit to containers without one, which daemonset/README.md warns of, and shows that
// what it advises keeps the agents' own.
func checkLimitRange(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type:    corev1.LimitTypeContainer,
		Default: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}, Max: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
	}}}}
	if _, err := c.Client().CoreV1().LimitRanges(limited).Create(t.Context(), limits, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for set, want := range map[string]string{"resources.limits.cpu=": "500m", "resources.limits.cpu=2": "2"} {
		for _, w := range workloads(t, objects(t, chart(t, "--set", set))) {
			if w.name != "node-cache" {
				continue
			}
			w.spec.ServiceAccountName = "" // which is not there
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: w.name}, Spec: w.spec}
			made, err := c.Client().CoreV1().Pods(limited).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				t.Errorf("--set %s: %v", set, err)
				continue
			}
			if got := made.Spec.Containers[0].Resources.Limits.Cpu().String(); got != want {
				t.Errorf("--set %s: a CPU limit of %s, want %s", set, got, want)
			}
		}
	}
}

// checkNetworkPolicies applies the templates as they are, which must change nothing, and for a namespace.
func checkNetworkPolicies(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "network-policies/*"))
	must(t, err)
	for _, path := range files {
		text, err := os.ReadFile(path) // a kustomization has no placeholder, and is no object
		must(t, err)
		for namespace, want := range map[string]bool{"NAMESPACE": false, restricted: true} {
			want = want || !bytes.Contains(text, []byte("NAMESPACE")) // it is for the whole cluster
			filled := bytes.ReplaceAll(text, []byte("NAMESPACE"), []byte(namespace))
			_, err := run(t.Context(), filled, program(t, "kube"), "kubectl", "--kubeconfig", c.Kubeconfig(kubetest.Admin), "apply", "--dry-run=server", "--validate=strict", "-f", "-")
			if (err == nil) != want {
				t.Errorf("%s for namespace %s: accepted: %t, want %t: %v", path, namespace, err == nil, want, err)
			}
		}
		isolates := !bytes.Contains(text, []byte("enableDefaultDeny: {ingress: false}"))
		if strings.HasSuffix(path, "kube-dns.yaml") && isolates && !bytes.Contains(text, []byte("port: 9153")) {
			t.Errorf("%s denies Prometheus the metrics of CoreDNS", path)
		}
	}
}

// The namespaces for pods, named after the Pod Security Standard that they enforce.
const (
	restricted = "restricted"
	privileged = "privileged"
	limited    = "limited" // as privileged, and with a LimitRange
)

func createNamespaces(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	for name, level := range map[string]string{restricted: restricted, privileged: privileged, limited: privileged} {
		labels := map[string]string{"pod-security.kubernetes.io/enforce": level}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
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
	must(t, err)
	var module struct{ Dir, Sum string }
	must(t, json.Unmarshal(out, &module))
	if module.Sum != operatorSum {
		t.Fatalf("%s has sum %s, want %s", operatorModule, module.Sum, operatorSum)
	}
	var args []string
	for _, kind := range []string{"podmonitors", "servicemonitors", "prometheusrules"} {
		args = append(args, "-f", filepath.Join(module.Dir, operatorFolder, "monitoring.coreos.com_"+kind+".yaml"))
	}
	return args
}
