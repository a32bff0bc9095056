// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodecache/node-cache/pkg/names/zone"
)

// Names of the Multi-Cluster Services API (KEP-1645).
const (
	importGroup    = "multicluster.x-k8s.io"
	importKind     = "ServiceImport"
	labelImport    = "multicluster.kubernetes.io/service-name"   // label of an EndpointSlice: the name of its ServiceImport
	labelCluster   = "multicluster.kubernetes.io/source-cluster" // label of an EndpointSlice: the id of its cluster
	typeHeadless   = "Headless"
	typeClusterSet = "ClusterSetIP"
)

// maxImportAddrs is the most addresses of a ServiceImport that the API accepts: one of each family.
const maxImportAddrs = 2

// importVersions returns the versions of the API, the preferred one first. They differ in no field that is read here.
func importVersions() []schema.GroupVersion {
	return []schema.GroupVersion{{Group: importGroup, Version: "v1beta1"}, {Group: importGroup, Version: "v1alpha1"}}
}

// A serviceImport is a ServiceImport. It has only the fields in use, so the others are not decoded.
type serviceImport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Type  string       `json:"type"`
		IPs   []string     `json:"ips"`
		Ports []importPort `json:"ports"`
	} `json:"spec"`
}

// An importPort is a port of a serviceImport.
type importPort struct {
	Name     string          `json:"name"`
	Protocol corev1.Protocol `json:"protocol"`
	Port     float64         `json:"port"` // any number: one that is out of range must not make a whole list unreadable
}

// DeepCopyObject implements [runtime.Object]. The copy shares its lists: nothing here changes an object.
func (i *serviceImport) DeepCopyObject() runtime.Object {
	other := *i
	return &other
}

// A serviceImportList is a list of ServiceImports.
type serviceImportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []serviceImport `json:"items"`
}

// DeepCopyObject implements [runtime.Object]. The copy shares its items.
func (l *serviceImportList) DeepCopyObject() runtime.Object {
	other := *l
	return &other
}

// importOf converts a ServiceImport to the zone's record. It fails for one that breaks the rules of the API.
func importOf(i *serviceImport) (zone.Service, error) {
	svc := zone.Service{Namespace: i.Namespace, Name: i.Name, TTL: ttlUnset}
	if len(validation.IsDNS1123Label(i.Name)) > 0 {
		return svc, errors.New("metadata.name: not a DNS label")
	}
	for n, p := range i.Spec.Ports {
		before := len(svc.Ports)
		if p.Port >= 1 && p.Port <= 65535 {
			svc.Ports = appendPort(svc.Ports, p.Name, p.Protocol, int32(p.Port))
		}
		if len(svc.Ports) == before {
			return svc, fmt.Errorf("spec.ports[%d]: %g/%s: not a port", n, p.Port, quoted(string(p.Protocol)))
		}
	}
	switch i.Spec.Type {
	case typeHeadless:
		svc.Type = zone.Headless
		return svc, nil
	case typeClusterSet:
	default:
		return svc, fmt.Errorf("spec.type: %s: not a type of ServiceImport", quoted(i.Spec.Type))
	}
	if n := len(i.Spec.IPs); n > maxImportAddrs {
		return svc, fmt.Errorf("spec.ips: %d addresses, at most %d", n, maxImportAddrs)
	}
	for _, text := range i.Spec.IPs {
		before := len(svc.Addrs)
		if svc.Addrs = appendAddr(svc.Addrs, text); len(svc.Addrs) == before {
			return svc, fmt.Errorf("spec.ips: %s: not an IP address", quoted(text))
		}
	}
	return svc, nil
}

// importedSliceOf converts the EndpointSlice of a ServiceImport to the zone's record. It reports false for a slice without
// use in DNS, and fails for one whose endpoints can have no names.
func importedSliceOf(es *discoveryv1.EndpointSlice) (s zone.Slice, ok bool, err error) {
	s, ok = sliceFor(es, es.Labels[labelImport])
	s.Cluster = es.Labels[labelCluster]
	if ok && len(validation.IsDNS1123Label(strings.ToLower(s.Cluster))) > 0 {
		return s, false, fmt.Errorf("label %s: %s: not a DNS label", labelCluster, quoted(s.Cluster))
	}
	return s, ok, nil
}

// putImported writes an object to the store of a cluster set, and reports whether that changed it. An invalid object is
// removed.
func putImported(store *zone.Store, obj runtime.Object, now time.Time) (changed bool, err error) {
	switch o := obj.(type) {
	case *serviceImport:
		svc, err := importOf(o)
		if err != nil {
			return store.Delete(zone.Services, o.Namespace, o.Name, now), err
		}
		return store.PutService(svc, now), nil
	case *discoveryv1.EndpointSlice:
		s, ok, err := importedSliceOf(o)
		if !ok {
			return store.Delete(zone.Slices, o.Namespace, o.Name, now), err
		}
		return store.PutSlice(s, now), nil
	default:
		return false, nil
	}
}

// storeKind returns the kind of imported objects in the store of a cluster set.
func storeKind(imported zone.Kind) zone.Kind {
	if imported == zone.Imports {
		return zone.Services
	}
	return zone.Slices
}

// importedKinds returns the kinds that the store of a cluster set gets.
func importedKinds(endpoints Endpoints) []zone.Kind {
	if endpoints == EndpointsNone {
		return []zone.Kind{zone.Imports}
	}
	return []zone.Kind{zone.Imports, zone.ImportSlices}
}

// addClusterSet adds the feeds of a cluster set, in the namespaces. Imported slices have a watch of their own, whichever
// slices the cluster's zone gets: its selectors do not apply to them.
func (w *Watch) addClusterSet(spaces []string) {
	set := w.cfg.ClusterSet
	imported := importedKinds(w.cfg.Endpoints)
	kinds := make([]zone.Kind, 0, len(imported))
	for _, kind := range imported {
		v := &kindStatus{kind: storeKind(kind), counted: kind, store: set}
		w.statuses, kinds = append(w.statuses, v), append(kinds, v.kind)
		for _, space := range spaces {
			q := query{client: w.clients.discovery, resource: "endpointslices", example: &discoveryv1.EndpointSlice{}, labels: labelImport}
			if kind == zone.Imports {
				q = query{client: w.clients.imports[0], versions: w.clients.imports, resource: "serviceimports", example: &serviceImport{}}
			}
			q.namespace = space
			w.addFeed(v, q, zoneTarget(set, v, putImported), w.feedSynced)
		}
	}
	set.Expect(kinds...)
}

// isAbsent reports whether the server has none of the API versions of the resource.
func (f *feed) isAbsent() bool { return f.query.versions != nil && f.missing >= len(f.query.versions) }

// nextVersion makes the next request ask for another API version. A server that has none of them has no objects: that counts as
// an empty list.
func (f *feed) nextVersion(ctx context.Context) {
	versions := f.query.versions
	f.query.client = versions[(slices.Index(versions, f.query.client)+1)%len(versions)]
	if f.missing++; !f.isAbsent() {
		return
	}
	now := f.now()
	if f.missing == len(versions) {
		f.log.InfoContext(ctx, "resource absent", "resource", f.query.resource)
		f.target.retain(func(namespace, name string) bool { return !f.query.covers(namespace, name) }, now)
	}
	f.confirmed(ctx, now)
}

// findVersion requests the API versions that the server has by now, and makes the next request ask for one of them. It fails if
// there is none. If the list of versions cannot be read, the version that is next in turn is tried.
func (f *feed) findVersion(ctx context.Context) error {
	if err := f.waitForLimit(ctx); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	at := f.now()
	var group metav1.APIGroup
	err := f.query.client.Get().AbsPath("/apis", importGroup).MaxRetries(0).Do(limited).Into(&group)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil // not readable, for example without permission for this path
	}
	for _, client := range f.query.versions {
		served := func(v metav1.GroupVersionForDiscovery) bool { return v.GroupVersion == client.APIVersion().String() }
		if slices.ContainsFunc(group.Versions, served) {
			f.query.client = client
			return nil
		}
	}
	f.confirmed(ctx, at)
	return f.listError
}
