// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/watch"
)

// sameSource reports whether one source serves two configurations.
func sameSource(a, b *config.Cluster) bool {
	return objectsOf(a) == objectsOf(b) && sameService(&a.Central, &b.Central) && a.Invalidate == b.Invalidate &&
		(a.ClusterSet == "") == (b.ClusterSet == "") && a.StaleAfter == b.StaleAfter
}

// objectsOf describes the objects that a configuration selects, and where they come from. It decides whether a reload keeps the
// objects, and whether a start takes those of a snapshot.
func objectsOf(c *config.Cluster) string {
	text := fmt.Sprintf("source %q, resolver %s, endpoints %s, pods %t, namespaces %q, services %q, namespaces %q",
		originOf(c), c.Resolver, c.Endpoints, c.Pods == config.PodsVerified, c.Namespaces, c.ServiceSelector, c.NamespaceSelector)
	if len(c.External.Zones) > 0 {
		text += ", external addresses"
	}
	return text
}

// samePods reports whether two configurations make the same index of the node's pods.
func samePods(a, b *config.Config) bool {
	return a.Pods.Identity == b.Pods.Identity && a.Pods.SearchPath == b.Pods.SearchPath &&
		slices.Equal(a.Pods.SearchPathExcept, b.Pods.SearchPathExcept) && (!a.Pods.SearchPath || a.ClusterDomain == b.ClusterDomain)
}

// sameService reports whether two configurations follow the endpoints of one Service in the same way.
func sameService(a, b *config.Central) bool {
	return a.Service == b.Service && a.Headless == b.Headless && (a.Headless == config.ServiceName{} || slices.Equal(a.Addresses, b.Addresses))
}

func sameCentral(a, b *config.Central) bool {
	return sameService(a, b) && slices.Equal(a.Addresses, b.Addresses) && a.Connections == b.Connections && a.CentralTLS == b.CentralTLS
}

// CheckFiles returns why a cluster of cfg would not start with the kubeconfig, or the folder of manifests, that cfg names, and the
// key that names it. A service account is not checked.
func CheckFiles(cfg *config.Config) (key, file string, err error) {
	c := &cfg.Cluster
	switch {
	case isOff(cfg), !readsObjects(cfg):
		return "", "", nil
	case c.Manifests != "":
		_, err = os.ReadDir(c.Manifests)
		return "cluster.manifests", c.Manifests, err
	case c.Kubeconfig != "":
		if err = watch.CheckKubeconfig(c.Kubeconfig, c.Context); err != nil {
			err = &hint.Error{Err: err, Hint: kubeconfigHint}
		}
		return "cluster.kubeconfig", c.Kubeconfig, err
	}
	return "", "", nil
}

// isOff reports whether nothing of the cluster is used.
func isOff(cfg *config.Config) bool {
	return cfg.Cluster.Resolver == config.ResolverNone && !interceptNeedsService(cfg) && cfg.Pods.Identity == config.IdentityOff
}

// readsObjects reports whether objects are read, from an API server or a folder.
func readsObjects(cfg *config.Config) bool {
	c, identity := &cfg.Cluster, cfg.Pods.Identity
	return c.Resolver == config.ResolverLocal || c.Resolver == config.ResolverCentral && c.Invalidate || c.Central.Watched() != config.ServiceName{} ||
		identity == config.IdentityAPI || identity == config.IdentityAuto
}

// makeSource sets c's source and the store that it fills, if they are needed.
func (m *Maker) makeSource(c *Cluster, whole *config.Config) (err error) {
	cfg, identity := &whole.Cluster, whole.Pods.Identity
	follow := m.watchCentral(c, cfg.Central.Watched())
	if cfg.Central.Headless != (config.ServiceName{}) {
		own, err := serviceAddresses(&cfg.Central)
		if err != nil {
			return err
		}
		c.Endpoints = new(upstream.Service)
		c.Endpoints.SetOwn(own)
	}
	m.makeStore(c, cfg)
	switch {
	case (identity == config.IdentityAPI || identity == config.IdentityAuto) && os.Getenv("NODE_NAME") == "":
		return &hint.Error{
			Err:  errors.New("pods.identity: the environment variable NODE_NAME is not set"),
			Hint: "set it to the name of the Node, from spec.nodeName in a pod",
		}
	case identity != config.IdentityOff:
		host, err := searchHost(whole)
		if err != nil {
			return err
		}
		c.Pods = pods.NewIndex(cfg.StaleAfter, host)
	case !readsObjects(whole):
		return nil
	}
	slim := c.Store == nil
	endpoints := map[string]watch.Endpoints{
		config.EndpointsHeadless: watch.EndpointsHeadless,
		config.EndpointsAll:      watch.EndpointsAll,
		config.EndpointsNone:     watch.EndpointsNone,
	}[cfg.Endpoints]
	podSource := map[string]watch.PodSource{
		config.IdentityAPI:     watch.PodsFromServer,
		config.IdentityKubelet: watch.PodsFromKubelet,
		config.IdentityAuto:    watch.PodsFromEither,
	}[identity]
	source := watch.Config{
		Kubeconfig: cfg.Kubeconfig, Context: cfg.Context, Folder: cfg.Manifests, Store: c.Events, ClusterSet: c.Set, ServiceWatch: follow, OwnPods: c.Pods, PodSource: podSource,
		Endpoints: endpoints, Pods: cfg.Pods == config.PodsVerified, External: len(cfg.External.Zones) > 0, ServicesOnly: slim,
		Namespaces: cfg.Namespaces, ServiceSelector: cfg.ServiceSelector, NamespaceSelector: cfg.NamespaceSelector,
		StaleAfter: cfg.StaleAfter, MaxList: m.Memory.Share().List(), NodeName: os.Getenv("NODE_NAME"),
		UserAgent: "node-cache/" + m.Version,
		Log:       m.Log, Now: m.Now,
	}
	if cfg.Manifests != "" {
		if c.Source, err = watch.NewManifests(source); err != nil {
			return &hint.Error{Err: fmt.Errorf("cluster.manifests: %w", err), Hint: "set a folder of YAML manifests that this user can read"}
		}
		return nil
	}
	c.Source, err = watch.New(source)
	return sourceProblem(err, cfg.Kubeconfig)
}

// searchHost returns the host's part of the pods' search paths, nil if they are not walked. With dnsPolicy Default the agent's
// resolv.conf has the searches of the host.
func searchHost(cfg *config.Config) (*pods.Host, error) {
	if !cfg.Pods.SearchPath {
		return nil, nil //nolint:nilnil // nil: no search paths
	}
	c, err := dns.ClientConfigFromFile("/etc/resolv.conf")
	if err != nil {
		return nil, &hint.Error{Err: fmt.Errorf("pods.searchPath: %w", err), Hint: "run the agent with dnsPolicy Default"}
	}
	return &pods.Host{Domain: cfg.ClusterDomain, Searches: c.Search, Ndots: c.Ndots, Except: cfg.Pods.SearchPathExcept}, nil
}

// watchCentral sets c.Endpoints and returns the watch of the central resolver's Service that fills them; nil: none is configured.
func (m *Maker) watchCentral(c *Cluster, service config.ServiceName) *watch.ServiceWatch {
	if service == (config.ServiceName{}) {
		return nil
	}
	c.Endpoints = new(upstream.Service)
	c.ServiceExcluded = new(atomic.Bool)
	log := m.Log.With("service", service.String())
	return &watch.ServiceWatch{
		Namespace: service.Namespace,
		Service:   service.Name,
		Excluded:  c.ServiceExcluded.Store,
		Changed: func(servers []watch.Server, own []netip.AddrPort) {
			ready := make([]upstream.ServiceEndpoint, 0, len(servers))
			for _, s := range servers {
				ready = append(ready, upstream.ServiceEndpoint(s))
			}
			c.Endpoints.Set(ready, own)
			m.TargetChanged()
			addrs, _ := c.Endpoints.Confirmed()
			log.Info("central endpoints updated", "count", len(addrs), "ready", addrs[:min(len(addrs), maxLogged)], "service_addresses", own)
		},
	}
}

// interceptNeedsService reports whether the interception needs the central resolver's service even if no
// query goes there.
func interceptNeedsService(cfg *config.Config) bool {
	i := &cfg.Intercept
	return i.Manage && cfg.Cluster.Central.Service != config.ServiceName{} &&
		(i.FallsBack() && i.Fallback.Central || i.Mode == config.ModeTransparent && len(i.Services) == 0)
}

// maxLogged bounds the endpoints in one log line: a large service may change often.
const maxLogged = 16

const kubeconfigHint = "fix the kubeconfig; test it with `kubectl --kubeconfig FILE get services`"

func sourceProblem(err error, kubeconfig string) error {
	if err == nil {
		return nil
	}
	advice := "set cluster.kubeconfig or cluster.manifests, or run as a pod with a service account"
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		advice = "set a kubeconfig that this user can read, or run as a pod with a service account"
	case kubeconfig != "":
		advice = kubeconfigHint
	}
	return &hint.Error{Err: fmt.Errorf("cluster: %w", err), Hint: advice}
}

// sourceName returns where the cluster data comes from.
func (c *Cluster) sourceName(cfg *config.Config) string {
	switch {
	case c.Source == nil:
		return ""
	case c.Events == nil && (c.Endpoints == nil || c.Discovery != nil) && cfg.Pods.Identity == config.IdentityKubelet:
		return "kubelet"
	}
	return originOf(&cfg.Cluster)
}

// originOf returns where the cluster data comes from, if that is not the kubelet.
func originOf(c *config.Cluster) string {
	context := ""
	if c.Context != "" {
		context = ", context " + c.Context
	}
	switch {
	case c.Manifests != "":
		return "folder " + c.Manifests
	case c.Kubeconfig != "":
		return "API server of " + c.Kubeconfig + context
	}
	return "API server https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")) + context
}

// ObjectScope describes the objects that the source selects, and their cluster. A snapshot of another scope is not used.
func (c *Cluster) ObjectScope(cfg *config.Config) string {
	return objectsOf(&cfg.Cluster) + c.server(cfg)
}

// CentralScope names the central resolver's service and its cluster, or where it is asked for.
func (c *Cluster) CentralScope(cfg *config.Config) string {
	if c.Discovery != nil {
		return c.Discovery.Scope()
	}
	return cfg.Cluster.Central.Service.String() + " of " + c.sourceName(cfg) + c.server(cfg)
}

// PodScope names the node of the pods and its cluster.
func (c *Cluster) PodScope(cfg *config.Config) string {
	return os.Getenv("NODE_NAME") + " of " + c.sourceName(cfg) + c.server(cfg)
}

// server returns the API server that a kubeconfig names, for a scope: the file may name another one at the next start. It is empty
// without a kubeconfig.
func (c *Cluster) server(cfg *config.Config) string {
	if w, ok := c.Source.(*watch.Watch); ok && cfg.Cluster.Kubeconfig != "" {
		return ", server " + w.Server()
	}
	return ""
}
