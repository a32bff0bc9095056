// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/netip"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Namespace returns a namespace.
func Namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// Node returns a node in a zone. The EndpointSlice controller leaves out pods whose node does not exist.
func Node(name, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone, corev1.LabelHostname: name},
	}}
}

// A Pod describes a pod that runs on a node. To delete one, set a grace period of 0: no kubelet confirms its end.
type Pod struct {
	Namespace, Name string
	Labels          map[string]string // what selectors match
	Node            string
	IPs             []netip.Addr // of one family or of both, the first family first; none while the pod starts
	Ports           []corev1.ContainerPort
	Hostname        string // with Subdomain, the pod has a name of its own below the headless service Subdomain
	Subdomain       string
	NotReady        bool
}

// Object returns the pod with the status that a kubelet would give it, for [Apply].
func (p Pod) Object() *corev1.Pod {
	ready := corev1.ConditionTrue
	if p.NotReady {
		ready = corev1.ConditionFalse
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels},
		Spec: corev1.PodSpec{
			NodeName: p.Node, Hostname: p.Hostname, Subdomain: p.Subdomain,
			Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1", Ports: p.Ports}},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
		},
	}
	for i, ip := range p.IPs {
		if i == 0 {
			pod.Status.PodIP = ip.String()
		}
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip.String()})
	}
	return pod
}

// The shape of a large cluster.
const (
	largeNamespaces = 20
	largeZones      = 3
	podsPerNode     = 100
	sliceSize       = 100 // what the EndpointSlice controller puts into a slice
)

// Large returns the objects of a large cluster: services with a ClusterIP, headless services, and the EndpointSlices
// of the latter with endpointsPer endpoints each, 100 to a slice, as the EndpointSlice controller writes them.
// Large(10_000, 1_000, 100) is 11,000 services and 100,000 endpoints in 1,000 slices.
//
// Service i is cluster-i or headless-i in namespace large-(i mod 20). The endpoints of headless services with an
// even i have hostnames, headless-i-0 and so on, as those of a StatefulSet. Without selectors, no controller
// touches them.
func Large(services, headless, endpointsPer int) []runtime.Object {
	objects := make([]runtime.Object, 0, largeNamespaces+services+headless*(1+endpointsPer/sliceSize))
	for i := range largeNamespaces {
		objects = append(objects, Namespace(largeNamespace(i)))
	}
	for i := range services {
		objects = append(objects, largeService(fmt.Sprintf("cluster-%d", i), i, ""))
	}
	for i := range headless {
		s := largeService(fmt.Sprintf("headless-%d", i), i, corev1.ClusterIPNone)
		objects = append(objects, s)
		for from := 0; from < endpointsPer; from += sliceSize {
			objects = append(objects, Slice(s, i*endpointsPer, from, min(from+sliceSize, endpointsPer), i%2 == 0))
		}
	}
	return objects
}

func largeNamespace(i int) string { return fmt.Sprintf("large-%d", i%largeNamespaces) }

func largeService(name string, i int, clusterIP string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: largeNamespace(i), Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.ServiceSpec{
			ClusterIP: clusterIP,
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP},
				{Name: "metrics", Port: 9090, Protocol: corev1.ProtocolTCP},
			},
		},
	}
}

// Slice holds the endpoints from to to of a service, whose first endpoint is number first of the cluster: it has the
// address 10.128.0.0 plus that number. The endpoints are ready, and named after the service if they have hostnames.
func Slice(s *corev1.Service, first, from, to int, hostnames bool) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: fmt.Sprintf("%s-%d", s.Name, from/sliceSize),
			Labels: map[string]string{
				"app": s.Name, discoveryv1.LabelServiceName: s.Name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if s.Spec.ClusterIP == corev1.ClusterIPNone {
		slice.Labels[corev1.IsHeadlessService] = ""
	}
	for _, p := range s.Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol})
	}
	yes, no := true, false
	for n := from; n < to; n++ {
		number := first + n
		name := fmt.Sprintf("%s-%d", s.Name, n)
		node, zone := fmt.Sprintf("node-%d", number/podsPerNode), fmt.Sprintf("zone-%d", number/podsPerNode%largeZones)
		e := discoveryv1.Endpoint{
			Addresses:  []string{EndpointAddr(number).String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			NodeName:   &node, Zone: &zone,
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: s.Namespace, Name: name, UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", number)),
			},
		}
		if hostnames {
			e.Hostname = &name
		}
		slice.Endpoints = append(slice.Endpoints, e)
	}
	return slice
}

// EndpointAddr is the address of an endpoint of [Slice]: 10.128.0.0 and up, which no service has.
func EndpointAddr(number int) netip.Addr {
	var ip [4]byte
	binary.BigEndian.PutUint32(ip[:], 10<<24|128<<16+uint32(number))
	return netip.AddrFrom4(ip)
}

// loadWorkers is the number of concurrent requests. More do not raise the throughput of the API server.
const loadWorkers = 64

// Apply writes objects for a test: [Cluster.Load] with the test's context.
func Apply(tb testing.TB, c *Cluster, objects ...runtime.Object) {
	tb.Helper()
	if err := c.Load(tb.Context(), objects...); err != nil {
		tb.Fatalf("applying objects: %v", err)
	}
}

// Load creates objects, or replaces those that exist, many at once: namespaces and nodes first, the others in no
// order. An object in a namespace names it. A pod and a load balancer keep the status that they are given. Load changes none of its arguments.
func (c *Cluster) Load(ctx context.Context, objects ...runtime.Object) error {
	var before, after []runtime.Object
	for _, o := range objects {
		switch o.(type) {
		case *corev1.Namespace, *corev1.Node:
			before = append(before, o)
		default:
			after = append(after, o)
		}
	}
	client, err := rest.HTTPClientFor(c.config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	l := loader{config: c.config, client: client, resources: map[schema.GroupVersion]*rest.RESTClient{}}
	for _, batch := range [][]runtime.Object{before, after} {
		if err := l.load(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// A loader writes objects of any kind that client-go knows.
type loader struct {
	config    *rest.Config
	client    *http.Client
	resources map[schema.GroupVersion]*rest.RESTClient // written between batches only
}

// load writes objects with bounded parallelism and ends with the first error.
func (l *loader) load(ctx context.Context, objects []runtime.Object) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(loadWorkers)
	targets := make([]target, 0, len(objects))
	for _, o := range objects {
		t, err := l.target(o)
		if err != nil {
			return err
		}
		targets = append(targets, t)
	}
	for _, t := range targets {
		group.Go(func() error { return t.put(ctx) })
	}
	return group.Wait()
}

// target says where an object goes.
func (l *loader) target(o runtime.Object) (target, error) {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return target{}, fmt.Errorf("naming the kind of an object: %w", err)
	}
	object, err := meta.Accessor(o)
	if err != nil {
		return target{}, fmt.Errorf("naming an object: %w", err)
	}
	resource, _ := meta.UnsafeGuessKindToResource(kinds[0])
	client, ok := l.resources[kinds[0].GroupVersion()]
	if !ok {
		if client, err = l.clientFor(kinds[0].GroupVersion()); err != nil {
			return target{}, err
		}
		l.resources[kinds[0].GroupVersion()] = client
	}
	return target{
		object: o, client: client, resource: resource.Resource,
		namespace: object.GetNamespace(), name: object.GetName(),
	}, nil
}

func (l *loader) clientFor(gv schema.GroupVersion) (*rest.RESTClient, error) {
	config := rest.CopyConfig(l.config)
	config.GroupVersion, config.APIPath = &gv, "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientForConfigAndClient(config, l.client)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", gv, err)
	}
	return client, nil
}

// A target is an object and its place at the API server.
type target struct {
	object          runtime.Object
	client          *rest.RESTClient
	resource        string // as in URLs: services
	namespace, name string // namespace is empty for objects outside of namespaces
}

// put creates the object or replaces what is there.
func (t target) put(ctx context.Context) error {
	err := t.request(t.client.Post()).Body(t.object).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		err = t.request(t.client.Put()).Name(t.name).Body(t.object).Do(ctx).Error()
	}
	// Status is left out of the object itself where it is a subresource.
	_, hasStatus := t.object.(*corev1.Pod)
	if s, ok := t.object.(*corev1.Service); ok {
		hasStatus = len(s.Status.LoadBalancer.Ingress) > 0
	}
	if hasStatus && err == nil {
		err = t.request(t.client.Put()).Name(t.name).SubResource("status").Body(t.object).Do(ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("writing %s %s/%s: %w", t.resource, t.namespace, t.name, err)
	}
	return nil
}

func (t target) request(r *rest.Request) *rest.Request {
	return r.NamespaceIfScoped(t.namespace, t.namespace != "").Resource(t.resource)
}
