// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodecache/node-cache/pkg/zone"
)

// manifestView chooses which objects of a folder the zone sees, as the API server's selectors and CoreDNS's options do.
type manifestFilter struct {
	namespaces        []string // empty: all
	services          labels.Selector
	namespaceSelector labels.Selector // of namespaces
	endpoints         Endpoints
	pods              bool
}

// zoneRecords is what a store is to hold.
type zoneRecords struct {
	namespaces []string
	services   []zone.Service
	slices     []zone.Slice
	pods       []zone.Pod
}

// records gives what the zone sees of the objects. A namespace exists when an object is in it; its labels are those of
// its own document and the one that the API server gives to each. An EndpointSlice has the labels of its Service, if
// the folder has that one: in a cluster a controller copies them.
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

// appendPod appends the pod that an object is, if the zone sees pods.
func (v *manifestFilter) appendPod(dst []zone.Pod, o *manifest) []zone.Pod {
	if o.pod == nil || !v.pods {
		return dst
	}
	if record, ok := podOf(o.pod); ok {
		dst = append(dst, record)
	}
	return dst
}

// appendSlices appends the slices of an object that the zone sees.
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

// exposed gives the namespaces that the zone sees.
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

// wants reports whether the zone is to have a slice of a service, nil for one that the folder does not have.
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

// recordKey names a record in a store.
type recordKey struct {
	kind            zone.Kind
	namespace, name string
}

// manifestStore brings a store to what a folder says, one record after the other.
type manifestStore struct {
	store   *zone.Store
	present map[recordKey]bool // put and not deleted
}

// put puts what is new or has changed, and gives the kind of each. Slices come before services and namespaces first:
// a Service that turns headless finds its endpoints there.
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

// gone lists what was put and is not among the records any more, services first: a name goes with its Service, not
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

// remove deletes what is gone, and gives the kind of each.
func (s *manifestStore) remove(gone []recordKey, now time.Time) (changed []zone.Kind) {
	for _, key := range gone {
		delete(s.present, key)
		if s.store.Delete(key.kind, key.namespace, key.name, now) {
			changed = append(changed, key.kind)
		}
	}
	return changed
}

// begin leaves in the store what the records name and nothing else: it may come filled, from another source.
func (s *manifestStore) reset(now time.Time, kinds []zone.Kind) {
	for _, kind := range kinds {
		s.store.Retain(kind, func(namespace, name string) bool { return s.present[recordKey{kind, namespace, name}] }, now)
		s.store.SetSynced(kind)
		s.store.SetAlwaysFresh(kind)
	}
}
