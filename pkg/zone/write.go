// SPDX-License-Identifier: Apache-2.0

package zone

import "time"

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
	if n == nil {
		n = &node{key: string(key)}
		id = s.addNode(n)
	}
	s.account(namespace, size, before)
	s.countRefused(Services, old != nil && old.refused, svc != nil && svc.refused, namespace, name)
	s.count(Services, old != nil, -serviceSize(n.key, old))
	s.count(Services, svc != nil, serviceSize(n.key, svc))
	if svc != nil && svc.typ == ClusterIP {
		s.addAddrs(&s.nodesByAddr, id, svc.addrs(4), svc.addrs(16))
	}
	s.setNode(id, n.withService(svc))
	if old != nil && old.typ == ClusterIP {
		s.removeAddrs(&s.nodesByAddr, id, old.addrs(4), old.addrs(16))
	}
	space := keyNamespace(n.key)
	spaceMoved := (old == nil) != (svc == nil) && s.countServices(space, svc != nil)
	s.bumpSerial(now)
	s.observer.notifyService(n, old, svc)
	if spaceMoved {
		s.observer.notifyNamespace(space)
	}
	return true
}

// setSlice sets the slice with the name; nil removes it.
func (s *Store) setSlice(namespace, name string, sl *slice, now time.Time) bool {
	hash := s.objectHash(namespace, name)
	old, id := s.findSlice(hash, namespace, name)
	if sl != nil && !s.fits(namespace, sliceCost(sl), sliceCost(old)) {
		sl = refusedSlice(sl)
	}
	switch {
	case old == nil && sl == nil, old != nil && sl != nil && old.equal(sl):
		return false
	case old == nil:
		id = s.slices.add(sl)
		s.slicesByName.add(hash, id)
	}
	s.account(namespace, sliceCost(sl), sliceCost(old))
	s.countRefused(Slices, old.refused(), sl.refused(), namespace, name)
	s.count(Slices, old != nil, -sliceSize(old))
	s.count(Slices, sl != nil, sliceSize(sl))
	if sl != nil {
		s.addAddrs(&s.slicesByAddr, id, sl.distinctAddrs(4), sl.distinctAddrs(16))
		s.eachLabel(sl, func(hash uint64) { s.slicesByLabel.add(hash, id) })
		s.slices.set(id, sl)
	}
	if sl != nil {
		s.replaceSlice(sl.key, id, sl)
	}
	if old != nil && (sl == nil || old.key != sl.key) {
		s.replaceSlice(old.key, id, nil)
	}
	if sl == nil {
		s.slicesByName.remove(hash, id)
		s.slices.drop(id)
	}
	if old != nil {
		s.removeAddrs(&s.slicesByAddr, id, old.distinctAddrs(4), old.distinctAddrs(16))
		s.eachLabel(old, func(hash uint64) { s.slicesByLabel.remove(hash, id) })
	}
	s.bumpSerial(now)
	s.observer.notifySlice(old, sl)
	return true
}

// replaceSlice sets the node's slice with the number; nil removes it.
func (s *Store) replaceSlice(key string, id uint32, sl *slice) {
	n, at := s.findNode([]byte(key))
	if n == nil {
		n = &node{key: key}
		at = s.addNode(n)
	}
	s.setNode(at, n.withSlice(id, sl))
}

// addNode adds an empty node and its index entry.
func (s *Store) addNode(n *node) uint32 {
	id := s.nodes.add(n)
	s.nodesByName.add(s.hash([]byte(n.key)), id)
	return id
}

// setNode publishes the node, or removes it if it is empty.
func (s *Store) setNode(id uint32, n *node) {
	if !n.empty() {
		s.nodes.set(id, n)
		return
	}
	s.nodes.set(id, nil)
	s.nodesByName.remove(s.hash([]byte(n.key)), id)
	s.nodes.drop(id)
}

// setPod sets the pod with the name; nil removes it.
func (s *Store) setPod(namespace, name string, p *pod, now time.Time) bool {
	hash := s.objectHash(namespace, name)
	old, id := s.findPod(hash, namespace, name)
	switch {
	case old == nil && p == nil, old != nil && p != nil && *old == *p:
		return false
	case old == nil:
		id = s.pods.add(p)
		s.podsByName.add(hash, id)
	}
	s.count(Pods, old != nil, -podSize(old))
	s.count(Pods, p != nil, podSize(p))
	if p != nil {
		s.addAddrs(&s.podsByAddr, id, p.addrs(4), p.addrs(16))
		s.pods.set(id, p)
	} else {
		s.podsByName.remove(hash, id)
		s.pods.drop(id)
	}
	if old != nil {
		s.removeAddrs(&s.podsByAddr, id, old.addrs(4), old.addrs(16))
	}
	s.bumpSerial(now)
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
	if n == nil {
		n, id = s.addNamespace(label)
	}
	n.declared.Store(there)
	size := namespaceSize(n)
	if !there {
		size = -size
	}
	s.count(Namespaces, true, size)
	s.dropNamespace(n, id)
	s.bumpSerial(now)
	s.observer.notifyNamespace(n.label)
	return true
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
	id := s.namespaces.add(n)
	s.namespacesByName.add(s.hash(label), id)
	return n, id
}

// dropNamespace removes a namespace that does not exist.
func (s *Store) dropNamespace(n *namespace, id uint32) {
	if !n.exists() {
		s.namespacesByName.remove(s.hash([]byte(n.label)), id)
		s.namespaces.drop(id)
	}
}

func (s *Store) findSlice(hash uint64, namespace, name string) (*slice, uint32) {
	t := s.slicesByName.table.Load()
	for pos := t.home(hash); ; {
		id, after, ok := t.next(hash, pos)
		if !ok {
			return nil, 0
		}
		if sl := s.slices.load(id); sl != nil && sl.name == name && keyNamespace(sl.key)[1:] == namespace {
			return sl, id
		}
		pos = after
	}
}

func (s *Store) findPod(hash uint64, namespace, name string) (*pod, uint32) {
	t := s.podsByName.table.Load()
	for pos := t.home(hash); ; {
		id, after, ok := t.next(hash, pos)
		if !ok {
			return nil, 0
		}
		if p := s.pods.load(id); p != nil && p.name == name && p.namespace == namespace {
			return p, id
		}
		pos = after
	}
}

// addAddrs makes id a candidate for each of the packed addresses. For a while, id may be there twice, if the old version
// of its record has the address too.
func (s *Store) addAddrs(x *hashIndex, id uint32, v4, v6 string) {
	s.eachAddr(v4, v6, func(hash uint64) { x.add(hash, id) })
}

func (s *Store) removeAddrs(x *hashIndex, id uint32, v4, v6 string) {
	s.eachAddr(v4, v6, func(hash uint64) { x.remove(hash, id) })
}

func (s *Store) eachAddr(v4, v6 string, f func(hash uint64)) {
	var buf [16]byte
	for ; v4 != ""; v4 = v4[4:] {
		copy(buf[:], v4)
		f(s.hash(buf[:4]))
	}
	for ; v6 != ""; v6 = v6[16:] {
		copy(buf[:], v6)
		f(s.hash(buf[:]))
	}
}

// eachLabel calls f with the hash of every own name of the slice, for its node.
func (s *Store) eachLabel(sl *slice, f func(hash uint64)) {
	var buf [64]byte
	last := ""
	for k := range int(sl.named) {
		if name := sl.label(sl.entryByName(k)); name != last {
			last = name
			f(s.labelHash(sl.key, buf[:copy(buf[:], name)]))
		}
	}
}

// distinctAddrs returns the packed addresses of addrLen bytes each, without duplicates.
func (s *slice) distinctAddrs(addrLen int) string {
	list := s.data[:4*s.n4]
	if addrLen == 16 {
		list = s.data[4*s.n4 : s.marksAt]
	}
	for i := addrLen; i < len(list); i += addrLen {
		if list[i:i+addrLen] == list[i-addrLen:i] {
			return compactAddrs(list, addrLen)
		}
	}
	return list
}

func compactAddrs(list string, addrLen int) string {
	kept := []byte(list[:addrLen])
	for i := addrLen; i < len(list); i += addrLen {
		if list[i:i+addrLen] != list[i-addrLen:i] {
			kept = append(kept, list[i:i+addrLen]...)
		}
	}
	return string(kept)
}
