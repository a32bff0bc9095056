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
	seed   maphash.Seed
	serial atomic.Uint32
	states [kindCount]struct { // the freshness of each kind
		expected    atomic.Bool
		synced      atomic.Bool
		restored    atomic.Bool               // loaded from a dump: complete in another process, and stale until synced
		confirmed   atomic.Pointer[time.Time] // time of the last confirmation; nil: never
		alwaysFresh atomic.Bool
	}
	suspended atomic.Int64 // total length of the host's suspends, in ns

	nodes           table[node]
	nodesByAddr     hashIndex // for services
	nodesByExternal hashIndex // for their external addresses
	slices          table[slice]
	slicesByAddr    hashIndex
	slicesByLabel   hashIndex // own names of entries, per node
	pods            table[pod]
	podsByAddr      hashIndex
	namespaces      table[namespace]

	mu               sync.Mutex // one writer at a time; guards the following fields
	counts           [kindCount]KindStats
	limit            int64            // bytes per namespace; 0: no limit
	bytesByNamespace map[string]int64 // bytes by namespace
	scratch          []byte
	reporter         reporter
	versions         Versions

	set *Store // made by NewClusterSet; nil: there is none
}

// NewStore returns an empty store.
func NewStore() *Store {
	s := &Store{seed: maphash.MakeSeed(), bytesByNamespace: make(map[string]int64)}
	s.versions.store = s
	s.nodes.init()
	s.slices.init()
	s.pods.init()
	s.namespaces.init()
	for _, x := range s.indexes() {
		x.init()
	}
	return s
}

// NewClusterSet returns an empty store for the imports of a cluster set. It has the namespaces of the cluster's store, which is
// empty yet: their changes notify its observer too, and begin a new version of it if Namespace objects select what its zone has.
func NewClusterSet(cluster *Store) *Store {
	s := NewStore()
	cluster.set = s
	return s
}

// Versions returns the versions of the store's zones.
func (s *Store) Versions() *Versions { return &s.versions }

// indexes returns the indexes besides those of the keys.
func (s *Store) indexes() []*hashIndex {
	return []*hashIndex{&s.nodesByAddr, &s.nodesByExternal, &s.slicesByAddr, &s.slicesByLabel, &s.podsByAddr}
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
	return s.remove(kind, namespace, name, now)
}

func (s *Store) remove(kind Kind, namespace, name string, now time.Time) (changed bool) {
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
	case Imports, ImportSlices: // no store has them
	}
	return false
}

// Retain deletes every object of the kind for which keep returns false: those missing in a new list. For a Namespace,
// namespace is empty. keep must not call the store.
func (s *Store) Retain(kind Kind, keep func(namespace, name string) bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eachName(kind, func(namespace, name string) {
		if !keep(namespace, name) {
			s.remove(kind, namespace, name, now)
		}
	})
}

// eachName calls f with the namespace and the name of each object of the kind.
func (s *Store) eachName(kind Kind, f func(namespace, name string)) {
	switch kind {
	case Services:
		for n := range s.nodes.all() {
			if n.svc != nil {
				f(splitKey(n.key))
			}
		}
	case Slices:
		for sl := range s.slices.all() {
			f(keyNamespace(sl.key)[1:], sl.name)
		}
	case Namespaces:
		for n := range s.namespaces.all() {
			if n.declared.Load() {
				f("", n.label[1:])
			}
		}
	case Pods:
		for p := range s.pods.all() {
			f(p.namespace, p.name)
		}
	case Imports, ImportSlices: // no store has them
	}
}

// Serial returns the serial number of the zone: the time of the last change in seconds since 1970, or the previous serial
// plus one if that is larger. It is 0 before the first change. Once [Versions] are kept it is that of the last one.
func (s *Store) Serial() uint32 { return s.serial.Load() }

// maxSerialLead bounds how many seconds the serial may run ahead of the clock, because of frequent changes or a clock
// that was wrong.
const maxSerialLead = 3600

// bumpSerial updates the serial after a change.
func (s *Store) bumpSerial(now time.Time) {
	if s.versions.last != nil {
		return // Versions.Cut does
	}
	clock, last := uint32(now.Unix()), s.serial.Load()
	next := clock
	if lead := int32(last + 1 - clock); last != 0 && lead > 0 {
		next = clock + min(uint32(lead), maxSerialLead)
	}
	s.serial.Store(next)
}

func (s *Store) hash(key []byte) uint64 { return maphash.Bytes(s.seed, key) }

// labelHash returns the hash of an entry's own name below the node with the key.
func (s *Store) labelHash(key, label string) uint64 {
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
	return find(&s.nodes.byKey, &s.nodes, s.hash(key), func(n *node) bool { return n.key == string(key) })
}

// findNamespace returns the namespace with the label in wire form and its number, or nil.
func (s *Store) findNamespace(label []byte) (*namespace, uint32) {
	return find(&s.namespaces.byKey, &s.namespaces, s.hash(label), func(n *namespace) bool { return n.label == string(label) })
}

// The following functions run under mu, so there is one writer at a time. A record is published with one atomic store. Its
// index entries are added before and removed after, so that readers never miss an existing record; an entry that is early
// finds nothing yet.

// setService sets the service of the node; nil removes it.
func (s *Store) setService(key []byte, svc *service, now time.Time) bool {
	n, id := s.findNode(key)
	var old *service
	if n != nil {
		old = n.svc
	}
	namespace, name := splitKey(string(key))
	size, before := serviceCost(string(key), svc), serviceCost(string(key), old)
	if svc != nil && !s.fits(namespace, size, before) {
		svc = refusedService()
		size = serviceCost(string(key), svc)
	}
	if old == svc || old != nil && svc != nil && *old == *svc {
		return false
	}
	defer s.reporter.begin()()
	if n == nil {
		n = &node{key: string(key)}
		id = s.nodes.add(s.hash(key), n)
	}
	s.account(namespace, size, before)
	s.countRefused(Services, old != nil && old.refused, svc != nil && svc.refused, namespace, name)
	s.count(Services, serviceSize(n.key, old), serviceSize(n.key, svc))
	s.indexService(svc, id, (*hashIndex).add)
	s.setNode(id, n.withService(svc), now)
	s.indexService(old, id, (*hashIndex).remove)
	space := keyNamespace(n.key)
	spaceMoved := (old == nil) != (svc == nil) && s.countServices(space, svc != nil)
	s.bumpSerial(now)
	s.reporter.notifyService(n, old, svc)
	if spaceMoved {
		s.namespaceChanged(space, false, now)
	}
	return true
}

// indexService adds the service's addresses to the indexes, or removes them.
func (s *Store) indexService(svc *service, id uint32, do func(x *hashIndex, hash uint64, id uint32)) {
	if svc != nil && svc.typ == ClusterIP {
		s.eachAddr(svc.addrs, id, func(hash uint64, id uint32) { do(&s.nodesByAddr, hash, id) })
	}
	outside := svc.outside()
	s.eachAddr(outside.addrs, id, func(hash uint64, id uint32) { do(&s.nodesByExternal, hash, id) })
}

// setSlice sets the slice with the name; nil removes it.
func (s *Store) setSlice(namespace, name string, sl *slice, now time.Time) bool {
	hash := s.objectHash(namespace, name)
	old, id := find(&s.slices.byKey, &s.slices, hash, func(sl *slice) bool { return sl.name == name && keyNamespace(sl.key)[1:] == namespace })
	if sl != nil && !s.fits(namespace, sliceCost(sl), sliceCost(old)) {
		sl = refusedSlice(sl)
	}
	if old == sl || old != nil && sl != nil && old.equal(sl) {
		return false
	}
	defer s.reporter.begin()()
	if old == nil {
		id = s.slices.add(hash, sl)
	}
	s.account(namespace, sliceCost(sl), sliceCost(old))
	s.countRefused(Slices, old.refused(), sl.refused(), namespace, name)
	s.count(Slices, sliceSize(old), sliceSize(sl))
	if sl != nil {
		sl.id = id
		s.eachAddr(sl.addrs, id, s.slicesByAddr.add)
		s.eachLabel(sl, func(hash uint64) { s.slicesByLabel.add(hash, id) })
		s.slices.set(id, sl)
		s.replaceSlice(sl.key, id, sl, now)
	}
	if old != nil && (sl == nil || old.key != sl.key) {
		s.replaceSlice(old.key, id, nil, now)
	}
	if sl == nil {
		s.slices.drop(hash, id)
	}
	if old != nil {
		s.eachAddr(old.addrs, id, s.slicesByAddr.remove)
		s.eachLabel(old, func(hash uint64) { s.slicesByLabel.remove(hash, id) })
	}
	s.bumpSerial(now)
	s.reporter.notifySlice(old, sl)
	return true
}

// replaceSlice sets the node's slice with the number; nil removes it.
func (s *Store) replaceSlice(key string, id uint32, sl *slice, now time.Time) {
	n, at := s.findNode([]byte(key))
	if n == nil {
		n = &node{key: key}
		at = s.nodes.add(maphash.String(s.seed, key), n)
	}
	s.setNode(at, n.withSlice(id, sl), now)
}

// setNode publishes the node, or removes it if it is empty.
func (s *Store) setNode(id uint32, n *node, now time.Time) {
	s.versions.record(s.nodes.load(id), n, now)
	if n.empty() {
		s.nodes.drop(maphash.String(s.seed, n.key), id)
		return
	}
	s.nodes.set(id, n)
}

// setPod sets the pod with the name; nil removes it.
func (s *Store) setPod(namespace, name string, p *pod, now time.Time) bool {
	hash := s.objectHash(namespace, name)
	old, id := find(&s.pods.byKey, &s.pods, hash, func(p *pod) bool { return p.name == name && p.namespace == namespace })
	if old == p || old != nil && p != nil && *old == *p {
		return false
	}
	defer s.reporter.begin()()
	if old == nil {
		id = s.pods.add(hash, p)
	}
	s.count(Pods, podSize(old), podSize(p))
	if p != nil {
		s.eachAddr(p.addrs, id, s.podsByAddr.add)
		s.pods.set(id, p)
	} else {
		s.pods.drop(hash, id)
	}
	if old != nil {
		s.eachAddr(old.addrs, id, s.podsByAddr.remove)
	}
	s.bumpSerial(now)
	s.reporter.notifyPods(namespace)
	return true
}

// setNamespace sets whether a Namespace object with the name exists.
func (s *Store) setNamespace(name string, there bool, now time.Time) bool {
	if !isLabel(name) {
		return false
	}
	label := appendLabel(nil, name)
	n, id := s.findNamespace(label)
	if there == (n != nil && n.declared.Load()) {
		return false
	}
	defer s.reporter.begin()()
	if n == nil {
		n, id = s.addNamespace(label)
	}
	n.declared.Store(there)
	if there {
		s.count(Namespaces, 0, namespaceSize(n))
	} else {
		s.count(Namespaces, namespaceSize(n), 0)
	}
	s.dropNamespace(n, id)
	s.bumpSerial(now)
	s.namespaceChanged(n.label, true, now)
	return true
}

// namespaceChanged records a change of a namespace, whose label is in wire form: of its object, or of whether services prove
// that it exists.
func (s *Store) namespaceChanged(label string, ofObject bool, now time.Time) {
	if ofObject && s.versions.last != nil && s.versions.selective {
		s.versions.drop(now)
	}
	s.reporter.notifyNamespace(label)
	if s.set != nil {
		s.set.mu.Lock()
		defer s.set.mu.Unlock()
		s.set.namespaceChanged(label, ofObject, now)
	}
}

// countServices counts a service into or out of its namespace, and reports whether the namespace began or ceased to exist.
func (s *Store) countServices(label string, in bool) (moved bool) {
	n, id := s.findNamespace([]byte(label))
	if n == nil {
		n, id = s.addNamespace([]byte(label))
	}
	existed := n.exists()
	if in {
		n.services.Add(1)
		return !existed
	}
	n.services.Add(-1)
	s.dropNamespace(n, id)
	return !n.exists()
}

func (s *Store) addNamespace(label []byte) (*namespace, uint32) {
	n := &namespace{label: string(label)}
	return n, s.namespaces.add(s.hash(label), n)
}

// dropNamespace removes a namespace that does not exist.
func (s *Store) dropNamespace(n *namespace, id uint32) {
	if !n.exists() {
		s.namespaces.drop(maphash.String(s.seed, n.label), id)
	}
}

// eachAddr calls do with the hash of each of a record's addresses, and id. For a while, an index may have id twice for an
// address, if the old version of its record has the address too.
func (s *Store) eachAddr(addrs func(addrLen int) string, id uint32, do func(hash uint64, id uint32)) {
	for _, addrLen := range addrLens() {
		last := ""
		for list := addrs(addrLen); list != ""; list = list[addrLen:] {
			if list[:addrLen] != last {
				last = list[:addrLen]
				do(maphash.String(s.seed, last), id)
			}
		}
	}
}

// eachLabel calls f with the hash of every own name of the slice, for its node.
func (s *Store) eachLabel(sl *slice, f func(hash uint64)) {
	last := ""
	for k := range int(sl.named) {
		if name := sl.label(sl.entryByName(k)); name != last {
			last = name
			f(s.labelHash(sl.key, name))
		}
	}
}
