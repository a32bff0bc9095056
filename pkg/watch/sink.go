// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// A sink is a feed as the reflector's store. It keeps no object: each goes to the target at once, also those of a first
// list, of which the reflector keeps only what the sink's transformer leaves, the keys.
type sink struct {
	*feed
}

// An objectKey is what is left of an object of a first list.
type objectKey struct {
	namespace, name string
}

// object is what every API object is.
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
	s.confirmUpTo(o.GetResourceVersion())
	s.status.events.Add(1)
	applied := s.now()
	s.status.arrival.observe(applied.Sub(came.at))
	if at, ok := changedAt(o); ok && changed && !deleted {
		s.status.change.observe(applied.Sub(at))
	}
	if came.confirms {
		s.confirmed(context.Background(), came.at)
	}
	return nil
}

// Bookmark implements [cache.ReflectorBookmarkStore]. A bookmark says that all before its version was sent. One of an
// older version than was seen here comes from a server that is behind, and proves nothing.
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

// first applies one object of a first list.
func (s sink) applyListed(o object) objectKey {
	if s.isSelected(o) {
		s.target.put(o, s.now())
		s.status.events.Add(1)
	}
	return objectKey{o.GetNamespace(), o.GetName()}
}

// Replace implements [cache.ReflectorStore]: it is called at the end of a first list, with the keys of the objects that
// went through the transformer, or with the objects of a plain list.
func (s sink) Replace(list []any, resourceVersion string) error {
	keys := make(map[objectKey]struct{}, len(list))
	at := s.listAsked
	if s.stream != nil && s.stream.listedAt.After(at) {
		at = s.stream.listedAt
	}
	for _, item := range list {
		key, ok := item.(objectKey)
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
		_, ok := keys[objectKey{namespace, name}]
		return ok || !s.query.covers(namespace, name)
	}, s.now())
	// A list that is older than what was seen is one of a server whose history was set back: from now on that is the truth.
	if version, ok := s.noteVersion(resourceVersion); ok {
		s.highest.Store(version)
		s.upTo.Store(version)
	}
	s.listError, s.failures = nil, 0
	s.confirmed(context.Background(), at)
	return nil
}

// Resync implements [cache.ReflectorStore]. There is nothing to resync.
func (s sink) Resync() error { return nil }

// take reads what the reflector hands over.
func (s sink) asObject(obj any) (object, error) {
	o, ok := obj.(object)
	if !ok {
		return nil, fmt.Errorf("unexpected object %T", obj)
	}
	s.noteVersion(o.GetResourceVersion())
	return o, nil
}

// asked reports whether an object is one of those asked for. Another one would stay for good: no later list deletes it.
func (s sink) isSelected(o object) bool {
	if s.query.covers(o.GetNamespace(), o.GetName()) {
		return true
	}
	s.failed(context.Background(), fmt.Errorf("%w: %s/%s", errUnrequested, o.GetNamespace(), o.GetName()))
	return false
}

// hasCome notes that all is known up to a version.
func (s sink) confirmUpTo(resourceVersion string) {
	if version, ok := s.noteVersion(resourceVersion); ok {
		s.upTo.Store(version)
	}
}

// arrived tells of the event that the reflector hands over now.
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
