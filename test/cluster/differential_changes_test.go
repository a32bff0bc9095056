// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// changes are objects that take the place of others, or are new.
func changes() []runtime.Object {
	ready := kubetest.Pod{Namespace: "shop", Name: "half-1", Labels: app("half"), IPs: addrs("10.1.2.2"), Node: "node-b"}
	failing := kubetest.Pod{
		Namespace: "shop", Name: "db-1", Labels: app("db"), IPs: addrs("10.1.0.2", "fd00:1::2"), Node: "node-a",
		Hostname: "db-1", Subdomain: "db", NotReady: true,
	}
	return []runtime.Object{
		kubetest.Namespace("late"),
		newService("late", "web", at("10.96.5.1"), ports("http:80")),
		newService("shop", "one-number", headless(corev1.IPv4Protocol), ports("sql:5432"), selects("db")), // had an address
		newService("shop", "vacant", at("10.96.5.2"), ports("http:80"), selects("podless")),               // was headless
		newService("shop", "to-other", at("10.96.5.3"), ports("http:80"), selects("web")),                 // was an alias
		newService("shop", "signal", aliasOf("web.shop.svc.cluster.local")),                               // had an address
		newService("shop", "web6", at("fd00:10:96::501", "10.96.5.4"), ports("other:81"), selects("db")),  // had others
		newService("shop", "to-web", aliasOf("db.shop.svc.cluster.local")),
		newService("shop", "self", aliasOf("web.shop.svc.cluster.local")),
		newService("shop", "half", headless(corev1.IPv4Protocol), ports("sql:5432"), selects("half"), markedUnready),
		newSlice("mixed", "hand-3", slicePorts("other:5433"), endpoint("10.2.1.1", named("first"))), // was of another service
		newSlice("zones", "zones-2", slicePorts("sql:5432"), endpoint("10.2.3.8", in("zone-b")), endpoint("10.2.3.1", in("zone-b"))),
		ready.Object(), failing.Object(),
	}
}

// removedServices are those that are deleted. Some come back as something else.
func removedServices() []string { return []string{"one-number", "vacant", "web6", "db6", "plain"} }

// leavingPod is the address, as a label, of the pod that is deleted and stays: no kubelet confirms its end.
const leavingPod = "10-1-4-1"

// removedNamespaces are deleted: one goes, and one stays on its way out.
func removedNamespaces() (gone, stuck string) { return "any", "other" }

// change changes the cluster and returns what it holds then. It waits until the controllers are done.
func change(t *testing.T, c *kubetest.Cluster, objects []runtime.Object) []runtime.Object {
	t.Helper()
	gone, stuck := removedNamespaces()
	for _, name := range []string{gone, stuck} {
		assert.NoError(t, c.Client().CoreV1().Namespaces().Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	left := slices.DeleteFunc(slices.Clone(objects), func(o runtime.Object) bool { return isRemoved(o) || isReplaced(o) })
	for _, name := range removedServices() {
		assert.NoError(t, c.Client().CoreV1().Services("shop").Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	assert.NoError(t, c.Client().CoreV1().Pods("shop").Delete(t.Context(), "loner", metav1.DeleteOptions{}))
	assert.NoError(t, c.Client().DiscoveryV1().EndpointSlices("shop").Delete(t.Context(), "hand-2", metav1.DeleteOptions{}))
	kubetest.Apply(t, c, changes()...)
	after := slices.Concat(left, changes())
	waitForSlices(t, c, after)
	proctest.Eventually(t, limit, "the namespaces are empty", func() bool {
		_, err := c.Client().CoreV1().Namespaces().Get(t.Context(), gone, metav1.GetOptions{})
		services := listServices(t, c, stuck)
		return apierrors.IsNotFound(err) && slices.Equal(services, []string{"stuck"})
	})
	return after
}

func listServices(t *testing.T, c *kubetest.Cluster, namespace string) []string {
	t.Helper()
	list, err := c.Client().CoreV1().Services(namespace).List(t.Context(), metav1.ListOptions{})
	assert.NoError(t, err)
	var names []string
	for _, s := range list.Items {
		names = append(names, s.Name)
	}
	return names
}

// isRemoved reports whether the object does not outlive the change.
func isRemoved(o runtime.Object) bool {
	object, err := meta.Accessor(o)
	if err != nil {
		panic(err) // no object of an API
	}
	gone, stuck := removedNamespaces()
	_, isService := o.(*corev1.Service)
	switch space, name := object.GetNamespace(), object.GetName(); {
	case space == gone, space == "" && name == gone:
		return true
	case space == stuck:
		return name != "stuck"
	default:
		return space == "shop" && (isService && slices.Contains(removedServices(), name) || name == "hand-2")
	}
}

// isReplaced reports whether the changes hold another object in place of this one.
func isReplaced(o runtime.Object) bool {
	return slices.ContainsFunc(changes(), func(other runtime.Object) bool { return identity(o) == identity(other) })
}

func identity(o runtime.Object) string {
	object, err := meta.Accessor(o)
	if err != nil {
		panic(err) // no object of an API
	}
	return fmt.Sprintf("%T %s/%s", o, object.GetNamespace(), object.GetName())
}

// sentinels are written last: a server that knows all of them knows everything from before, for it learns each kind in
// the order of the changes.
func sentinels() []runtime.Object {
	return []runtime.Object{
		kubetest.Namespace("sentinel"),
		newService("shop", "sentinel", headless(corev1.IPv4Protocol), ports("sql:5432")),
		newSlice("sentinel", "sentinel-1", slicePorts("sql:5432"), endpoint("10.2.9.9", named("sentinel"))),
		kubetest.Pod{Namespace: "shop", Name: "sentinel", Node: "node-a", IPs: addrs("10.1.9.9")}.Object(),
	}
}

// waitForSentinels waits until both servers know the sentinels.
func (p serverPair) waitForSentinels(t *testing.T) {
	t.Helper()
	way := &transports()[0]
	for _, server := range []*client{{server: p.coredns}, {server: p.nodeCache}} {
		defer server.close()
		for _, q := range []struct {
			name string
			want int
		}{
			{name: "sentinel.shop.svc." + domain, want: 1},
			{name: "sentinel.svc." + domain},
		} {
			proctest.Eventually(t, limit, q.name, func() bool {
				v, err := server.ask(q.name, dns.TypeA, way, attempts)
				assert.NoError(t, err)
				return v.msg.Rcode == dns.RcodeSuccess && len(v.msg.Answer) == q.want
			})
		}
	}
}

// waitForSlices waits until the controller has made the slices of all services with a selector.
func waitForSlices(t *testing.T, c *kubetest.Cluster, objects []runtime.Object) {
	t.Helper()
	want := map[string]int{}
	ours := map[string]bool{} // services without a selector, whose slices no controller takes away
	for _, o := range objects {
		s, ok := o.(*corev1.Service)
		if !ok {
			continue
		}
		if s.Spec.Selector == nil {
			ours[s.Namespace+"/"+s.Name] = true
			continue
		}
		all, ready := endpointsOf(s, objects)
		want[s.Namespace+"/"+s.Name] = all
		want[s.Namespace+"/"+s.Name+" ready"] = ready
	}
	var got map[string]int
	// The controller retries a Service after 1, 2, 4 s and so on while its own cache is behind.
	proctest.Eventually(t, 3*limit, "the endpoint slices are made", func() bool {
		list, err := c.Client().DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{
			LabelSelector: discoveryv1.LabelManagedBy + "=endpointslice-controller.k8s.io",
		})
		assert.NoError(t, err)
		got = map[string]int{}
		for _, s := range list.Items {
			service := s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
			if ours[service] {
				continue
			}
			got[service] += len(s.Endpoints)
			got[service+" ready"] += 0
			for _, e := range s.Endpoints {
				if *e.Conditions.Ready {
					got[service+" ready"]++
				}
			}
		}
		return maps.Equal(want, got)
	}, func() string { return cmp.Diff(want, got) })
}

// endpointsOf counts the endpoints that the controller makes for the service: one per pod and family.
func endpointsOf(s *corev1.Service, objects []runtime.Object) (all, ready int) {
	for _, o := range objects {
		p, ok := o.(*corev1.Pod)
		if !ok || p.Namespace != s.Namespace || p.Labels["app"] != s.Spec.Selector["app"] || p.Status.Phase != corev1.PodRunning {
			continue
		}
		for _, ip := range p.Status.PodIPs {
			if !slices.Contains(s.Spec.IPFamilies, familyOf(ip.IP)) {
				continue
			}
			all++
			if p.Status.Conditions[0].Status == corev1.ConditionTrue || s.Spec.PublishNotReadyAddresses {
				ready++
			}
		}
	}
	return all, ready
}
