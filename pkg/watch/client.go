// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"context"
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

// clients are REST clients for the few watched kinds. The full clientset would link every other kind as well.
type clients struct {
	core, discovery rest.Interface
	imports         []rest.Interface // clients of ServiceImports, one for each API version; nil: not needed
	http            *http.Client
	server          string        // URL of the API server
	requests        atomic.Uint64 // requests sent
}

// newClients reads the credentials. It opens no connection.
func newClients(kubeconfig, kubeContext, userAgent string, maxList int64, imports bool, l *connTracker) (*clients, error) {
	cfg, err := restConfig(kubeconfig, kubeContext)
	if err != nil {
		return nil, err
	}
	c := &clients{server: cfg.Host}
	cfg.UserAgent = userAgent
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	cfg.QPS = -1 // each feed has its own limit
	cfg.WarningHandlerWithContext = rest.NoWarnings{}
	cfg.Dial = l.dialContext
	if c.http, err = boundedClient(cfg, maxList, &c.requests); err != nil {
		return nil, err
	}
	codecs := boundedCodecs{serializer.NewCodecFactory(newScheme()).WithoutConversion()}
	if c.core, err = newClient(cfg, c.http, codecs, "/api", corev1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	if c.discovery, err = newClient(cfg, c.http, codecs, "/apis", discoveryv1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	for _, version := range importVersions() {
		if !imports {
			break
		}
		client, err := newClient(cfg, c.http, codecs, "/apis", version)
		if err != nil {
			return nil, err
		}
		c.imports = append(c.imports, client)
	}
	return c, nil
}

// NodeTopology is [Watch.NodeTopology] for a process that watches nothing. It closes its connection. Of cfg it uses the credentials, the
// name of the node and the clock.
func NodeTopology(ctx context.Context, cfg Config) (zone, region string, err error) {
	conns := &connTracker{dial: newDialer().DialContext, now: cfg.Now, open: make(map[*trackedConn]struct{})}
	c, err := newClients(cfg.Kubeconfig, cfg.Context, cmp.Or(cfg.UserAgent, "node-cache"), defaultMaxList, false, conns)
	if err != nil {
		return "", "", err
	}
	defer c.http.CloseIdleConnections()
	return c.nodeTopology(ctx, cfg.NodeName)
}

func (c *clients) nodeTopology(ctx context.Context, name string) (zone, region string, err error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	var node corev1.Node
	if err := c.core.Get().Resource("nodes").Name(name).Do(ctx).Into(&node); err != nil {
		return "", "", fmt.Errorf("reading node %s: %w", name, err)
	}
	return node.Labels[corev1.LabelTopologyZone], node.Labels[corev1.LabelTopologyRegion], nil
}

// CheckKubeconfig returns why [New] would not start with a kubeconfig and the name of a context in it, which may be empty.
func CheckKubeconfig(path, kubeContext string) error {
	_, err := newClients(path, kubeContext, "", 0, false, new(connTracker))
	return err
}

// boundedClient returns an HTTP client that counts its requests in count. It bounds a list to maxList bytes, and also bounds the
// headers and the bodies of error responses.
func boundedClient(cfg *rest.Config, maxList int64, count *atomic.Uint64) (*http.Client, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(boundHeaders)
	c, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("creating a client of the API server: %w", err)
	}
	c.Transport = &tripper{next: c.Transport, most: maxList, count: count}
	return c, nil
}

func newClient(base *rest.Config, hc *http.Client, codecs runtime.NegotiatedSerializer, path string, gv schema.GroupVersion) (rest.Interface, error) {
	cfg := rest.CopyConfig(base)
	cfg.APIPath = path
	cfg.GroupVersion = &gv
	cfg.NegotiatedSerializer = codecs
	c, err := rest.RESTClientForConfigAndClient(cfg, hc)
	if err != nil {
		return nil, fmt.Errorf("creating a client of %s: %w", gv, err)
	}
	return c, nil
}

// restConfig reads a context of a kubeconfig, the current one if the name is empty, or, if the path is empty, the service
// account of the pod.
func restConfig(kubeconfig, kubeContext string) (*rest.Config, error) {
	if kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("no kubeconfig is set, and this process does not run in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
		}
		if err != nil {
			return nil, fmt.Errorf("reading the pod's service account: %w", err)
		}
		return cfg, nil
	}
	// A file that may never end, such as a pipe, is refused: reloads wait for the read.
	if _, err := filewatch.ReadFile(kubeconfig, maxKubeconfig); err != nil {
		return nil, fmt.Errorf("reading kubeconfig %s: %w", kubeconfig, withoutPath(err))
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: kubeContext}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %s: %w", kubeconfig, err)
	}
	return cfg, nil
}

// maxKubeconfig bounds the size of a kubeconfig.
const maxKubeconfig = 1 << 20

// newScheme registers the watched kinds and the server's own types, such as Status.
func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypes(corev1.SchemeGroupVersion,
		&corev1.Service{}, &corev1.ServiceList{},
		&corev1.Namespace{}, &corev1.NamespaceList{},
		&corev1.Pod{}, &corev1.PodList{},
		&corev1.Node{},
		&corev1.ConfigMap{}, &corev1.ConfigMapList{},
		&corev1.Event{})
	metav1.AddToGroupVersion(s, corev1.SchemeGroupVersion)
	s.AddKnownTypes(discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{})
	metav1.AddToGroupVersion(s, discoveryv1.SchemeGroupVersion)
	for _, version := range importVersions() {
		s.AddKnownTypeWithName(version.WithKind(importKind), &serviceImport{})
		s.AddKnownTypeWithName(version.WithKind(importKind+"List"), &serviceImportList{})
		metav1.AddToGroupVersion(s, version)
	}
	return s
}

type (
	// A Client sends requests for objects of the core group, as JSON.
	Client = rest.RESTClient

	// A Request is a request of a Client.
	Request = rest.Request
)

// NewClient returns a client of the API server for callers with few requests. The credentials come from the kubeconfig
// or, if it is empty, from the pod's service account. NewClient opens no connection. A request ends with its context.
func NewClient(kubeconfig, userAgent string) (*Client, error) {
	return NewContextClient(kubeconfig, "", userAgent)
}

// NewContextClient is NewClient with the name of a context of the kubeconfig; empty: the current one.
func NewContextClient(kubeconfig, kubeContext, userAgent string) (*Client, error) {
	cfg, err := restConfig(kubeconfig, kubeContext)
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = userAgent
	cfg.Dial = newDialer().DialContext
	hc, err := boundedClient(cfg, maxObject, new(atomic.Uint64))
	if err != nil {
		return nil, err
	}
	server, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("reading the URL of the API server: %w", err)
	}
	return ClientOver(hc, server.String())
}

// ClientOver returns a client of the API server at a URL that sends its requests through hc.
func ClientOver(hc *http.Client, server string) (*Client, error) {
	cfg := &rest.Config{Host: server, APIPath: "/api", QPS: -1, WarningHandlerWithContext: rest.NoWarnings{}}
	cfg.GroupVersion = &corev1.SchemeGroupVersion
	cfg.ContentType = runtime.ContentTypeJSON
	cfg.NegotiatedSerializer = boundedCodecs{serializer.NewCodecFactory(newScheme()).WithoutConversion()}
	c, err := rest.RESTClientForConfigAndClient(cfg, hc)
	if err != nil {
		return nil, fmt.Errorf("creating a client of %s: %w", server, err)
	}
	return c, nil
}
