// SPDX-License-Identifier: Apache-2.0

package kubetest_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// limit bounds every wait for the cluster.
const limit = 30 * time.Second

func TestMain(m *testing.M) {
	// Once for all tests, so that no test's time holds a compilation.
	for _, name := range []string{"etcd", "coredns", "kube", "containerd", "containerd/shim", "helm"} {
		if _, err := kubetest.Program(context.Background(), name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func TestWatchHealsOverRestarts(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		end  func(*kubetest.Cluster)
	}{
		{name: "killed", end: (*kubetest.Cluster).KillAPIServer},
		{name: "stopped", end: (*kubetest.Cluster).StopAPIServer},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := kubetest.Start(t, kubetest.Options{})
			has := services(t, c.Config(kubetest.Admin))
			kubetest.Apply(t, c, kubetest.Namespace("shop"), service("before"))
			proctest.Eventually(t, limit, "the service from before is seen", func() bool { return has("before") })

			tt.end(c)
			if got := c.APIServerPID(); got != 0 {
				t.Errorf("the API server runs as process %d after its end", got)
			}
			if _, err := c.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil {
				t.Error("the API server answers after its end")
			}
			if err := c.StartAPIServer(t.Context()); err != nil {
				t.Fatal(err)
			}
			kubetest.Apply(t, c, service("after"))
			proctest.Eventually(t, limit, "the service from after is seen", func() bool { return has("after") })
			if !has("before") {
				t.Error("the service from before is gone")
			}
		})
	}
}

func TestControllersMakeSlices(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t, kubetest.Options{Controllers: true})
	set := service("db")
	set.Spec.ClusterIP, set.Spec.Selector = corev1.ClusterIPNone, map[string]string{"app": "db"}
	set.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	both := corev1.IPFamilyPolicyRequireDualStack
	set.Spec.IPFamilyPolicy = &both
	kubetest.Apply(t, c, kubetest.Namespace("shop"), kubetest.Node("node-1", "zone-a"), set, pod(0), pod(1))

	want := []string{
		"10.1.0.1 db-0 node-1 zone-a ready=true", "10.1.0.2 db-1 node-1 zone-a ready=true",
		"fd00::1 db-0 node-1 zone-a ready=true", "fd00::2 db-1 node-1 zone-a ready=true",
	}
	awaitEndpoints(t, c, "both pods in both families", want)

	late := pod(1)
	late.Status.Conditions[0].Status = corev1.ConditionFalse
	kubetest.Apply(t, c, late) // replaces the status
	want[1] = strings.Replace(want[1], "true", "false", 1)
	want[3] = strings.Replace(want[3], "true", "false", 1)
	awaitEndpoints(t, c, "one pod is not ready", want)

	if err := c.Client().CoreV1().Services("shop").Delete(t.Context(), "db", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitEndpoints(t, c, "no slices without the service", nil)
}

// awaitEndpoints waits until the endpoints of shop/db are those.
func awaitEndpoints(t *testing.T, c *kubetest.Cluster, what string, want []string) {
	t.Helper()
	var got []string
	proctest.Eventually(t, limit, what, func() bool {
		slices, err := c.Client().DiscoveryV1().EndpointSlices("shop").List(t.Context(),
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=db," + corev1.IsHeadlessService})
		if err != nil {
			t.Fatal(err)
		}
		got = endpoints(slices.Items)
		return cmp.Equal(want, got)
	}, func() string { return cmp.Diff(want, got) })
}

// endpoints describes every endpoint in a line.
func endpoints(list []discoveryv1.EndpointSlice) []string {
	var lines []string
	for _, s := range list {
		for _, e := range s.Endpoints {
			lines = append(lines, fmt.Sprintf("%s %s %s %s ready=%t", e.Addresses[0], *e.Hostname, *e.NodeName, *e.Zone, *e.Conditions.Ready))
		}
	}
	slices.Sort(lines)
	return lines
}

func TestUsersHaveTheRightsThatAreGranted(t *testing.T) {
	t.Parallel()
	const account = "system:serviceaccount:kube-system:node-cache"
	c := kubetest.Start(t, kubetest.Options{Users: []string{account}})
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig(account))
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	if _, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("without a role: got %v, want forbidden", err)
	}
	kubetest.Apply(t, c,
		&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "reader"},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list"}}},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "reader"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: "node-cache"}},
		})
	proctest.Eventually(t, limit, "the permission is granted", func() bool {
		_, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
	if _, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a resource that was not granted: got %v, want forbidden", err)
	}
	if _, err := c.KubeconfigAt("unknown", c.Address()); err == nil {
		t.Error("a kubeconfig for an unknown user was written")
	}
}

func TestAudit(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t, kubetest.Options{Audit: true})
	config := c.Config(kubetest.Admin)
	config.UserAgent = "probe/1"
	has := services(t, config)
	kubetest.Apply(t, c, kubetest.Namespace("shop"), service("web"))
	proctest.Eventually(t, limit, "the service is seen", func() bool { return has("web") })

	requests, err := c.Audit()
	if err != nil {
		t.Fatal(err)
	}
	requests = slices.DeleteFunc(requests, func(r kubetest.Request) bool { return r.Agent != "probe" })
	// An informer asks for the list as the beginning of its watch.
	want := []kubetest.Tally{{Agent: "probe", Verb: "watch", Resource: "services", Count: 1}}
	if diff := cmp.Diff(want, kubetest.Count(requests)); diff != "" {
		t.Errorf("the informer's requests (-want +got):\n%s", diff)
	}
	for _, r := range requests {
		if r.User != kubetest.Admin || r.Code != 200 || r.Time.IsZero() || !strings.HasPrefix(r.URI, "/api/v1/services?") {
			t.Errorf("request: got %+v, want one for services by the admin that was answered", r)
		}
	}
}

func TestPreload(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t, kubetest.Options{Preload: kubetest.Size{Services: 30, Headless: 4, EndpointsPer: 150}})
	list, err := c.Client().CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	addresses := map[string]bool{}
	slices, err := c.Client().DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{LabelSelector: corev1.IsHeadlessService})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			addresses[e.Addresses[0]] = true
		}
	}
	want := []int{30 + 4 + 1, 4 * 2, 4 * 150} // with default/kubernetes
	if diff := cmp.Diff(want, []int{len(list.Items), len(slices.Items), len(addresses)}); diff != "" {
		t.Errorf("services, slices and addresses (-want +got):\n%s", diff)
	}
}

// services follows the services of namespace shop and returns a function that reports whether one is known.
func services(t *testing.T, config *rest.Config) func(name string) bool {
	t.Helper()
	factory := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0)
	lister := factory.Core().V1().Services().Lister()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
	})
	factory.StartWithContext(ctx)
	for kind, synced := range factory.WaitForCacheSyncWithContext(ctx).Synced {
		if !synced {
			t.Fatalf("%s: not synced", kind)
		}
	}
	return func(name string) bool {
		_, err := lister.Services("shop").Get(name)
		return err == nil
	}
}

// service is one of namespace shop, with one port.
func service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "sql", Port: 5432}}},
	}
}

// pod is member n of the set shop/db.
func pod(n int) *corev1.Pod {
	name := fmt.Sprintf("db-%d", n)
	return kubetest.Pod{
		Namespace: "shop", Name: name, Labels: map[string]string{"app": "db"}, Node: "node-1", Hostname: name, Subdomain: "db",
		IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(1 + n)}), netip.MustParseAddr(fmt.Sprintf("fd00::%d", 1+n))},
	}.Object()
}
