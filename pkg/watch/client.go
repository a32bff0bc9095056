// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// clients ask the API server for the few kinds that are watched. The whole clientset would link every other kind too.
type clients struct {
	core, discovery rest.Interface
	http            *http.Client
	requests        *atomic.Uint64 // sent
}

// newClients reads the credentials and opens nothing.
func newClients(kubeconfig, userAgent string, maxList int64, l *connTracker) (*clients, error) {
	cfg, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	c := &clients{requests: new(atomic.Uint64)}
	cfg.UserAgent = userAgent
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	cfg.QPS = -1 // each feed has a limit of its own, which knows what it asks for
	cfg.WarningHandlerWithContext = rest.NoWarnings{}
	cfg.Dial = l.dialContext
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return countedTripper{next, c.requests} })
	if c.http, err = rest.HTTPClientFor(cfg); err != nil {
		return nil, fmt.Errorf("making a client of the API server: %w", err)
	}
	c.http.Transport = cancelTripper{boundedTripper{c.http.Transport, maxList}, new(atomic.Int64)}
	codecs := boundedCodecs{serializer.NewCodecFactory(newScheme()).WithoutConversion()}
	if c.core, err = newClient(cfg, c.http, codecs, "/api", corev1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	if c.discovery, err = newClient(cfg, c.http, codecs, "/apis", discoveryv1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	return c, nil
}

func newClient(base *rest.Config, hc *http.Client, codecs runtime.NegotiatedSerializer, path string, gv schema.GroupVersion) (rest.Interface, error) {
	cfg := rest.CopyConfig(base)
	cfg.APIPath = path
	cfg.GroupVersion = &gv
	cfg.NegotiatedSerializer = codecs
	c, err := rest.RESTClientForConfigAndClient(cfg, hc)
	if err != nil {
		return nil, fmt.Errorf("making a client of %s: %w", gv, err)
	}
	return c, nil
}

// restConfig reads a kubeconfig, or without one the service account of the pod.
func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("no kubeconfig is named, and this is no pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
		}
		if err != nil {
			return nil, fmt.Errorf("reading the pod's service account: %w", err)
		}
		return cfg, nil
	}
	if err := checkKubeconfig(kubeconfig); err != nil {
		return nil, fmt.Errorf("reading kubeconfig %s: %w", kubeconfig, err)
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %s: %w", kubeconfig, err)
	}
	return cfg, nil
}

// maxKubeconfig is the size of the largest kubeconfig that is read.
const maxKubeconfig = 1 << 20

// checkKubeconfig refuses a file whose reading may never end: it is read while reloads wait.
func checkKubeconfig(path string) error {
	_, err := filewatch.ReadFile(path, maxKubeconfig)
	return withoutPath(err)
}

// newScheme knows what is watched, and what the server says besides.
func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypes(corev1.SchemeGroupVersion,
		&corev1.Service{}, &corev1.ServiceList{},
		&corev1.Namespace{}, &corev1.NamespaceList{},
		&corev1.Pod{}, &corev1.PodList{},
		&corev1.Node{})
	metav1.AddToGroupVersion(s, corev1.SchemeGroupVersion)
	s.AddKnownTypes(discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{})
	metav1.AddToGroupVersion(s, discoveryv1.SchemeGroupVersion)
	return s
}

// A countedTripper counts the requests that are sent.
type countedTripper struct {
	next  http.RoundTripper
	count *atomic.Uint64
}

// RoundTrip implements [http.RoundTripper].
func (t countedTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	t.count.Add(1)
	return t.next.RoundTrip(req)
}

// WrappedRoundTripper is how client-go finds what is below.
func (t countedTripper) WrappedRoundTripper() http.RoundTripper { return t.next }
