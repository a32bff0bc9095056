// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodecache/node-cache/pkg/zone"
)

// manifestFilter selects the objects that the zone sees, as the API server's selectors and CoreDNS's options do.
type manifestFilter struct {
	namespaces        []string // empty: all
	services          labels.Selector
	namespaceSelector labels.Selector // for namespaces
	endpoints         Endpoints
	pods              bool
}

// zoneRecords are the records that a store is to hold.
type zoneRecords struct {
	namespaces []string
	services   []zone.Service
	slices     []zone.Slice
	pods       []zone.Pod
}

// records converts the visible objects. A namespace exists if an object is in it. Its labels are those of its own
// document and the one that the API server gives each namespace. An EndpointSlice has the labels of its Service, if the
// folder has that Service: in a cluster, a controller copies them.
func (v *manifestFilter) records(objects []manifest) zoneRecords {
	exposed := v.exposed(objects)
	r := zoneRecords{namespaces: slices.Sorted(maps.Keys(exposed))}
	services := map[manifestID]*corev1.Service{}
	for i := range objects {
		if svc := objects[i].service; svc != nil && exposed[svc.Namespace] {
			services[objects[i].id] = svc
			if v.services.Matches(labels.Set(svc.Labels)) {
				r.services = append(r.services, serviceOf(svc))
			}
		}
	}
	for i := range objects {
		o := &objects[i]
		if !exposed[o.id.namespace] {
			continue
		}
		r.slices = v.appendSlices(r.slices, o, services)
		r.pods = v.appendPod(r.pods, o)
	}
	return r
}

// appendPod appends the object's pod, if the zone sees pods.
func (v *manifestFilter) appendPod(dst []zone.Pod, o *manifest) []zone.Pod {
	if o.pod == nil || !v.pods {
		return dst
	}
	if record, ok := podOf(o.pod); ok {
		dst = append(dst, record)
	}
	return dst
}

// appendSlices appends the visible slices of an object.
func (v *manifestFilter) appendSlices(dst []zone.Slice, o *manifest, services map[manifestID]*corev1.Service) []zone.Slice {
	for _, slice := range o.slices {
		service := manifestID{"Service", slice.Namespace, slice.Labels[discoveryv1.LabelServiceName]}
		if !v.wantsSlice(slice, services[service]) {
			continue
		}
		if record, ok := sliceOf(slice); ok {
			dst = append(dst, record)
		}
	}
	return dst
}

// exposed returns the namespaces that the zone sees.
func (v *manifestFilter) exposed(objects []manifest) map[string]bool {
	labelled := map[string]labels.Set{}
	for i := range objects {
		o := &objects[i]
		name := o.id.namespace
		if o.namespace != nil {
			name = o.id.name
		}
		if labelled[name] == nil {
			labelled[name] = labels.Set{corev1.LabelMetadataName: name}
		}
		if o.namespace != nil {
			labelled[name] = labels.Merge(o.namespace.Labels, labelled[name])
		}
	}
	exposed := map[string]bool{}
	for name, set := range labelled {
		if (len(v.namespaces) == 0 || slices.Contains(v.namespaces, name)) && v.namespaceSelector.Matches(set) {
			exposed[name] = true
		}
	}
	return exposed
}

// wantsSlice reports whether the zone needs a slice of the service. svc is nil if the folder does not have it.
func (v *manifestFilter) wantsSlice(slice *discoveryv1.EndpointSlice, svc *corev1.Service) bool {
	set := labels.Set(slice.Labels)
	if svc != nil {
		set = svc.Labels
	}
	if !v.services.Matches(set) {
		return false
	}
	switch v.endpoints {
	case EndpointsAll:
		return true
	case EndpointsHeadless:
		return svc != nil && headless(svc)
	default:
		return false
	}
}

// recordKey identifies a record in a store.
type recordKey struct {
	kind            zone.Kind
	namespace, name string
}

// manifestStore applies a folder's state to a store, one record at a time.
type manifestStore struct {
	store   *zone.Store
	present map[recordKey]bool // put and not deleted
}

// put stores new and changed records and returns the kind of each. Slices come before services, and namespaces first:
// a Service that becomes headless then already has its endpoints.
func (s *manifestStore) put(r zoneRecords, now time.Time) (changed []zone.Kind) {
	mark := func(kind zone.Kind, namespace, name string, moved bool) {
		s.present[recordKey{kind, namespace, name}] = true
		if moved {
			changed = append(changed, kind)
		}
	}
	for _, name := range r.namespaces {
		mark(zone.Namespaces, "", name, s.store.PutNamespace(name, now))
	}
	for _, slice := range r.slices {
		mark(zone.Slices, slice.Namespace, slice.Name, s.store.PutSlice(slice, now))
	}
	for _, pod := range r.pods {
		mark(zone.Pods, pod.Namespace, pod.Name, s.store.PutPod(pod, now))
	}
	for _, svc := range r.services {
		mark(zone.Services, svc.Namespace, svc.Name, s.store.PutService(svc, now))
	}
	return changed
}

// removed returns the records that were put and are missing now, services first: a name disappears with its Service, not
// with its endpoints before that.
func (s *manifestStore) removed(r zoneRecords) []recordKey {
	left := maps.Clone(s.present)
	for _, name := range r.namespaces {
		delete(left, recordKey{zone.Namespaces, "", name})
	}
	for i := range r.slices {
		delete(left, recordKey{zone.Slices, r.slices[i].Namespace, r.slices[i].Name})
	}
	for i := range r.pods {
		delete(left, recordKey{zone.Pods, r.pods[i].Namespace, r.pods[i].Name})
	}
	for i := range r.services {
		delete(left, recordKey{zone.Services, r.services[i].Namespace, r.services[i].Name})
	}
	order := func(key recordKey) int {
		return slices.Index([]zone.Kind{zone.Services, zone.Slices, zone.Pods, zone.Namespaces}, key.kind)
	}
	return slices.SortedFunc(maps.Keys(left), func(a, b recordKey) int { return order(a) - order(b) })
}

// remove deletes the missing records and returns the kind of each.
func (s *manifestStore) remove(gone []recordKey, now time.Time) (changed []zone.Kind) {
	for _, key := range gone {
		delete(s.present, key)
		if s.store.Delete(key.kind, key.namespace, key.name, now) {
			changed = append(changed, key.kind)
		}
	}
	return changed
}

// reset deletes from the store what is not in the records: it may have been filled by another source before.
func (s *manifestStore) reset(now time.Time, kinds []zone.Kind) {
	for _, kind := range kinds {
		s.store.Retain(kind, func(namespace, name string) bool { return s.present[recordKey{kind, namespace, name}] }, now)
		s.store.SetSynced(kind)
		s.store.SetAlwaysFresh(kind)
	}
}

// mirrorEndpoints converts an Endpoints object to EndpointSlices, one per subset. In a cluster, a controller makes one
// per subset and address family. Here nothing reads a slice's address type, so both families share one. A slash in
// their names keeps them distinct from the folder's own slices.
//
//nolint:staticcheck // deprecated in the API, and still common in folders
func mirrorEndpoints(endpoints *corev1.Endpoints) []*discoveryv1.EndpointSlice {
	if endpoints.Labels[discoveryv1.LabelSkipMirror] == "true" {
		return nil
	}
	list := make([]*discoveryv1.EndpointSlice, 0, len(endpoints.Subsets))
	for i := range endpoints.Subsets {
		subset := &endpoints.Subsets[i]
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: endpoints.Namespace,
				Name:      fmt.Sprintf("endpoints/%s/%d", endpoints.Name, i),
				Labels:    map[string]string{discoveryv1.LabelServiceName: endpoints.Name},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for j := range subset.Ports {
			p := &subset.Ports[j]
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.Port})
		}
		slice.Endpoints = mirrorAddresses(slice.Endpoints, subset.Addresses, true)
		slice.Endpoints = mirrorAddresses(slice.Endpoints, subset.NotReadyAddresses, false)
		list = append(list, slice)
	}
	return list
}

func mirrorAddresses(dst []discoveryv1.Endpoint, addrs []corev1.EndpointAddress, ready bool) []discoveryv1.Endpoint {
	for i := range addrs {
		a := &addrs[i]
		dst = append(dst, discoveryv1.Endpoint{
			Addresses:  []string{a.IP},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			Hostname:   &a.Hostname,
			TargetRef:  a.TargetRef,
		})
	}
	return dst
}
