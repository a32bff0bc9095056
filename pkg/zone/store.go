// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A Store holds the objects that a zone answers from. Readers take no lock and see each service in a consistent state.
// Writers block each other.
type Store struct {
	seed      maphash.Seed
	serial    atomic.Uint32
	states    [kindCount]syncState
	suspended atomic.Int64 // total length of the host's suspends, in ns

	nodes            records[node]
	nodesByName      hashIndex
	nodesByAddr      hashIndex // for services
	slices           records[slice]
	slicesByAddr     hashIndex
	slicesByLabel    hashIndex // own names of entries, per node
	pods             records[pod]
	podsByAddr       hashIndex
	namespaces       records[namespace]
	namespacesByName hashIndex

	mu               sync.Mutex // one writer at a time; guards the following fields
	slicesByName     hashIndex
	podsByName       hashIndex
	counts           [kindCount]KindStats
	limit            int64            // bytes per namespace; 0: no limit
	bytesByNamespace map[string]int64 // bytes by namespace
	scratch          []byte
	observer         observer
}

// NewStore returns an empty store.
func NewStore() *Store {
	s := &Store{seed: maphash.MakeSeed(), bytesByNamespace: make(map[string]int64)}
	s.nodes.init()
	s.slices.init()
	s.pods.init()
	s.namespaces.init()
	for _, x := range []*hashIndex{
		&s.nodesByName, &s.nodesByAddr, &s.slicesByAddr, &s.slicesByLabel, &s.podsByAddr, &s.namespacesByName, &s.slicesByName, &s.podsByName,
	} {
		x.init()
	}
	return s
}

// PutService stores or replaces the service, and reports whether that changed anything. It ignores a service whose name or
// namespace cannot be a label.
func (s *Store) PutService(svc Service, now time.Time) (changed bool) {
	if !isLabel(svc.Namespace) || !isLabel(svc.Name) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scratch = nodeKey(s.scratch[:0], svc.Namespace, svc.Name)
	return s.setService(s.scratch, packService(svc), now)
}

// PutSlice stores or replaces the slice, and reports whether that changed anything. A slice without a service is removed.
func (s *Store) PutSlice(sl Slice, now time.Time) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !isLabel(sl.Namespace) || !isLabel(sl.Service) {
		return s.setSlice(sl.Namespace, sl.Name, nil, now)
	}
	key := string(nodeKey(nil, sl.Namespace, sl.Service))
	if n, _ := s.findNode([]byte(key)); n != nil {
		key = n.key // one string for both
	}
	return s.setSlice(sl.Namespace, sl.Name, packSlice(sl, key), now)
}

// PutPod stores or replaces the pod, and reports whether that changed anything.
func (s *Store) PutPod(p Pod, now time.Time) (changed bool) {
	if !isLabel(p.Namespace) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scratch = appendLabel(s.scratch[:0], p.Namespace)
	if n, _ := s.findNamespace(s.scratch); n != nil {
		p.Namespace = n.label[1:] // one string for all
	}
	return s.setPod(p.Namespace, p.Name, packPod(p), now)
}

// PutNamespace stores the namespace, and reports whether it is new.
func (s *Store) PutNamespace(name string, now time.Time) (changed bool) {
	if !isLabel(name) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.setNamespace(name, true, now)
}

// Delete removes the object, and reports whether it was there. For a Namespace, namespace is empty.
func (s *Store) Delete(kind Kind, namespace, name string, now time.Time) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch kind {
	case Services:
		if !isLabel(namespace) || !isLabel(name) {
			return false
		}
		s.scratch = nodeKey(s.scratch[:0], namespace, name)
		return s.setService(s.scratch, nil, now)
	case Slices:
		return s.setSlice(namespace, name, nil, now)
	case Namespaces:
		return s.setNamespace(name, false, now)
	case Pods:
		return s.setPod(namespace, name, nil, now)
	}
	return false
}

// Retain deletes every object of the kind for which keep returns false: those missing in a new list. For a Namespace,
// namespace is empty. keep must not call the store.
func (s *Store) Retain(kind Kind, keep func(namespace, name string) bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch kind {
	case Services:
		s.nodes.each(func(_ uint32, n *node) bool {
			if namespace, name := splitKey(n.key); n.svc != nil && !keep(namespace, name) {
				s.setService([]byte(n.key), nil, now)
			}
			return true
		})
	case Slices:
		s.slices.each(func(_ uint32, sl *slice) bool {
			if namespace, _ := splitKey(sl.key); !keep(namespace, sl.name) {
				s.setSlice(namespace, sl.name, nil, now)
			}
			return true
		})
	case Namespaces:
		s.namespaces.each(func(_ uint32, n *namespace) bool {
			if n.declared.Load() && !keep("", n.label[1:]) {
				s.setNamespace(n.label[1:], false, now)
			}
			return true
		})
	case Pods:
		s.pods.each(func(_ uint32, p *pod) bool {
			if !keep(p.namespace, p.name) {
				s.setPod(p.namespace, p.name, nil, now)
			}
			return true
		})
	}
}

// Serial returns the serial number of the zone: the time of the last change in seconds since 1970, or the previous serial
// plus one if that is larger. It is 0 before the first change.
func (s *Store) Serial() uint32 { return s.serial.Load() }

// maxSerialLead bounds how many seconds the serial may run ahead of the clock, because of frequent changes or a clock
// that was wrong.
const maxSerialLead = 3600

// bumpSerial updates the serial after a change.
func (s *Store) bumpSerial(now time.Time) {
	clock, last := uint32(now.Unix()), s.serial.Load()
	next := clock
	if lead := int32(last + 1 - clock); last != 0 && lead > 0 {
		next = clock + min(uint32(lead), maxSerialLead)
	}
	s.serial.Store(next)
}

func (s *Store) hash(key []byte) uint64 { return maphash.Bytes(s.seed, key) }

// labelHash returns the hash of an entry's own name below the node with the key.
func (s *Store) labelHash(key string, label []byte) uint64 {
	var buf [3 * (1 + wire.MaxLabel)]byte
	return s.hash(append(append(buf[:0], label...), key...))
}

// objectHash returns the hash of an object's namespace and name.
func (s *Store) objectHash(namespace, name string) uint64 {
	s.scratch = append(append(append(s.scratch[:0], namespace...), '/'), name...)
	return s.hash(s.scratch)
}

// findNode returns the node with the key and its number, or nil.
func (s *Store) findNode(key []byte) (*node, uint32) {
	hash := s.hash(key)
	t := s.nodesByName.table.Load()
	for pos := t.home(hash); ; {
		id, after, ok := t.next(hash, pos)
		if !ok {
			return nil, 0
		}
		if n := s.nodes.load(id); n != nil && n.key == string(key) {
			return n, id
		}
		pos = after
	}
}

// findNamespace returns the namespace with the label in wire form and its number, or nil.
func (s *Store) findNamespace(label []byte) (*namespace, uint32) {
	hash := s.hash(label)
	t := s.namespacesByName.table.Load()
	for pos := t.home(hash); ; {
		id, after, ok := t.next(hash, pos)
		if !ok {
			return nil, 0
		}
		if n := s.namespaces.load(id); n != nil && n.label == string(label) {
			return n, id
		}
		pos = after
	}
}
