// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/pods"
)

// A sink is the reflector's store for a feed. It keeps no object: each goes to the target at once. Of the objects of a
// first list, the reflector keeps only what the sink's transformer returns, the keys.
type sink struct {
	*feed
}

// object has the methods of every API object.
type object interface {
	runtime.Object
	metav1.Object
}

// Add implements [cache.ReflectorStore].
func (s sink) Add(obj any) error { return s.event(obj, false) }

// Update implements [cache.ReflectorStore].
func (s sink) Update(obj any) error { return s.event(obj, false) }

// Delete implements [cache.ReflectorStore].
func (s sink) Delete(obj any) error { return s.event(obj, true) }

// event applies one event of a watch.
func (s sink) event(obj any, deleted bool) error {
	came := s.nextArrival()
	o, err := s.asObject(obj)
	if err != nil {
		return err
	}
	if !s.isSelected(o) {
		return nil
	}
	changed := true
	if deleted {
		s.target.remove(o.GetNamespace(), o.GetName(), came.at)
	} else {
		changed = s.target.put(o, came.at)
	}
	s.noteApplied(o.GetResourceVersion())
	s.confirmUpTo(o.GetResourceVersion())
	s.status.applied(o, s.now(), came.at, changed && !deleted)
	if came.confirms {
		s.confirmed(context.Background(), came.at)
	}
	return nil
}

// Bookmark implements [cache.ReflectorBookmarkStore]. A bookmark means that every event before its version was sent. A
// bookmark older than the newest version received comes from a server that is behind, and confirms nothing.
func (s sink) Bookmark(resourceVersion string) error {
	came := s.nextArrival()
	if version, ok := s.noteVersion(resourceVersion); ok && version < s.highest.Load() {
		return nil
	}
	s.confirmUpTo(resourceVersion)
	if came.confirms {
		s.confirmed(context.Background(), came.at)
	}
	return nil
}

// Transformer implements [cache.TransformingStore]: it is called with each object of a first list.
func (s sink) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		o, err := s.asObject(obj)
		if err != nil {
			return nil, err
		}
		return s.applyListed(o), nil
	}
}

// applyListed applies one object of a first list, and returns its name for the reflector to keep.
func (s sink) applyListed(o object) types.NamespacedName {
	if !s.isSelected(o) {
		return types.NamespacedName{}
	}
	s.target.put(o, s.now())
	s.noteApplied(o.GetResourceVersion())
	s.status.events.Add(1)
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// Replace implements [cache.ReflectorStore]. It is called at the end of a first list with the keys that the transformer
// returned, or with the objects of a plain list.
func (s sink) Replace(list []any, resourceVersion string) error {
	keys := make(map[types.NamespacedName]struct{}, len(list))
	at := s.listAsked
	if s.stream != nil && s.stream.listedAt.After(at) {
		at = s.stream.listedAt
	}
	for _, item := range list {
		key, ok := item.(types.NamespacedName)
		if !ok {
			o, err := s.asObject(item)
			if err != nil {
				return err
			}
			key = s.applyListed(o)
		}
		keys[key] = struct{}{}
	}
	s.target.retain(func(namespace, name string) bool {
		_, ok := keys[types.NamespacedName{Namespace: namespace, Name: name}]
		return ok || !s.query.covers(namespace, name)
	}, s.now())
	// A list older than the newest version received means that the server's history was rolled back. It is then the valid state.
	if version, ok := s.noteVersion(resourceVersion); ok {
		s.highest.Store(version)
		s.feedStatus.newest.Store(min(version, s.feedStatus.newest.Load()))
		s.feedStatus.upTo.Store(version)
	}
	s.listError, s.failures = nil, 0
	s.confirmed(context.Background(), at)
	return nil
}

// Resync implements [cache.ReflectorStore]. It does nothing.
func (s sink) Resync() error { return nil }

// asObject returns the object that the reflector passed.
func (s sink) asObject(obj any) (object, error) {
	o, ok := obj.(object)
	if !ok {
		return nil, fmt.Errorf("unexpected object %T", obj)
	}
	s.noteVersion(o.GetResourceVersion())
	return o, nil
}

// isSelected reports whether the object was requested. It is not if its name is empty or longer than the API accepts. An object
// that was not requested would stay for good: no later list deletes it.
func (s sink) isSelected(o object) bool {
	namespace, name := o.GetNamespace(), o.GetName()
	if name != "" && len(name) <= maxObjectName && len(namespace) <= maxObjectName && s.query.covers(namespace, name) {
		return true
	}
	s.failed(context.Background(), fmt.Errorf("%w: %s/%s", errUnrequested, namespace, name))
	return false
}

// noteApplied records the version of an object that was applied.
func (s sink) noteApplied(resourceVersion string) {
	if version, ok := s.noteVersion(resourceVersion); ok && version > s.feedStatus.newest.Load() {
		s.feedStatus.newest.Store(version)
	}
}

// confirmUpTo records that all changes up to a version were received.
func (s sink) confirmUpTo(resourceVersion string) {
	if version, ok := s.noteVersion(resourceVersion); ok {
		s.feedStatus.upTo.Store(version)
	}
}

// nextArrival returns the arrival of the event that the reflector passes to the sink now.
func (s sink) nextArrival() arrival {
	select {
	case a := <-s.stream.arrivals:
		return a
	default:
		return arrival{at: s.now()}
	}
}

var (
	_ cache.TransformingStore      = sink{}
	_ cache.ReflectorBookmarkStore = sink{}
)

// A target receives the objects of one kind.
type target struct {
	put    func(obj runtime.Object, now time.Time) (changed bool)
	remove func(namespace, name string, now time.Time) (changed bool)
	retain func(keep func(namespace, name string) bool, now time.Time)
}

// zoneTarget returns a target that stores the objects of one kind. It records each object that put cannot serve in full.
func zoneTarget(
	store *zone.Store, v *kindStatus, put func(store *zone.Store, obj runtime.Object, now time.Time) (changed bool, err error),
) target {
	return target{
		put: func(obj runtime.Object, now time.Time) bool {
			changed, err := put(store, obj, now)
			if o, ok := obj.(object); ok {
				v.noteInvalid(o.GetNamespace(), o.GetName(), err)
			}
			return changed
		},
		remove: func(namespace, name string, now time.Time) bool {
			v.noteInvalid(namespace, name, nil)
			return store.Delete(v.kind, namespace, name, now)
		},
		retain: func(keep func(namespace, name string) bool, now time.Time) {
			v.retainInvalid(keep)
			store.Retain(v.kind, keep, now)
		},
	}
}

// podTarget returns a target that writes the pods of a node to an index.
func podTarget(index *pods.Index, node string) target {
	return target{
		put: func(obj runtime.Object, _ time.Time) bool {
			pod, ok := obj.(*corev1.Pod)
			if !ok {
				return false
			}
			if record := ownPodOf(pod, node); record != nil {
				return index.Put(record)
			}
			return index.Delete(pod.Namespace, pod.Name)
		},
		remove: func(namespace, name string, _ time.Time) bool { return index.Delete(namespace, name) },
		retain: func(keep func(namespace, name string) bool, _ time.Time) { index.Retain(keep) },
	}
}

// put writes an object to a store and reports whether that changed the store. With External, the record of a Service has its
// external addresses, and put fails if not all of them can be served.
func (cfg *Config) put(store *zone.Store, obj runtime.Object, now time.Time) (changed bool, err error) {
	switch o := obj.(type) {
	case *corev1.Service:
		record, err := serviceOf(o, cfg.External)
		return store.PutService(record, now), err
	case *discoveryv1.EndpointSlice:
		if record, ok := sliceOf(o); ok {
			return store.PutSlice(record, now), nil
		}
		return store.Delete(zone.Slices, o.Namespace, o.Name, now), nil // it may have been a usable slice before
	case *corev1.Namespace:
		return store.PutNamespace(o.Name, now), nil
	case *corev1.Pod:
		if record, ok := podOf(o); ok {
			return store.PutPod(record, now), nil
		}
		return store.Delete(zone.Pods, o.Namespace, o.Name, now), nil
	default:
		return false, nil
	}
}

// changedAt returns the time of the change that led to obj, if obj has one. Only EndpointSlices have a time finer than
// one second.
func changedAt(obj runtime.Object) (time.Time, bool) {
	es, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return time.Time{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, es.Annotations[corev1.EndpointsLastChangeTriggerTime])
	return at, err == nil
}
