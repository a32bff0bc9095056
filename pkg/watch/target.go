// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodecache/node-cache/pkg/zone"
)

// A target takes the objects of one kind.
type target interface {
	put(obj runtime.Object, now time.Time) (changed bool)
	remove(namespace, name string, now time.Time)
	retain(keep func(namespace, name string) bool, now time.Time)
}

// A zoneTarget is a kind of a store.
type zoneTarget struct {
	store *zone.Store
	kind  zone.Kind
}

func (t zoneTarget) put(obj runtime.Object, now time.Time) bool {
	switch o := obj.(type) {
	case *corev1.Service:
		return t.store.PutService(serviceOf(o), now)
	case *discoveryv1.EndpointSlice:
		if record, ok := sliceOf(o); ok {
			return t.store.PutSlice(record, now)
		}
		return t.store.Delete(zone.Slices, o.Namespace, o.Name, now) // it was a slice of DNS before, perhaps
	case *corev1.Namespace:
		return t.store.PutNamespace(o.Name, now)
	case *corev1.Pod:
		if record, ok := podOf(o); ok {
			return t.store.PutPod(record, now)
		}
		return t.store.Delete(zone.Pods, o.Namespace, o.Name, now)
	default:
		return false
	}
}

func (t zoneTarget) remove(namespace, name string, now time.Time) {
	t.store.Delete(t.kind, namespace, name, now)
}

func (t zoneTarget) retain(keep func(namespace, name string) bool, now time.Time) {
	t.store.Retain(t.kind, keep, now)
}

// A followTarget is what a follower wants of a kind.
type serviceTarget struct {
	watcher *serviceWatcher
	kind    zone.Kind
}

func (t serviceTarget) put(obj runtime.Object, _ time.Time) bool {
	switch o := obj.(type) {
	case *corev1.Service:
		t.watcher.putService(o)
	case *discoveryv1.EndpointSlice:
		t.watcher.putSlice(o)
	default:
	}
	return true
}

func (t serviceTarget) remove(namespace, name string, _ time.Time) {
	if t.kind == zone.Services {
		t.watcher.deleteService(namespace, name)
	} else {
		t.watcher.deleteSlice(namespace, name)
	}
}

func (t serviceTarget) retain(keep func(namespace, name string) bool, _ time.Time) {
	t.watcher.retain(t.kind, keep)
}

// changedAt gives the time of the change that led to obj, and false if obj does not say. Only EndpointSlices do to better than
// a second.
func changedAt(obj runtime.Object) (time.Time, bool) {
	es, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, es.Annotations[corev1.EndpointsLastChangeTriggerTime])
	return at, err == nil
}
