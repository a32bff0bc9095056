// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"golang.org/x/sync/errgroup"
)

// loadWorkers is how many objects are on their way at once. More do not make the API server faster.
const loadWorkers = 64

// Apply writes objects for a test: [Cluster.Load] with the test's context.
func Apply(tb testing.TB, c *Cluster, objects ...runtime.Object) {
	tb.Helper()
	if err := c.Load(tb.Context(), objects...); err != nil {
		tb.Fatalf("applying objects: %v", err)
	}
}

// Load creates objects, or replaces those that exist, many at once: namespaces and nodes first, the others in no
// order. An object in a namespace names it. A pod keeps the status it is given. Load changes none of its arguments.
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
	if _, isPod := t.object.(*corev1.Pod); isPod && err == nil {
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
