// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"hash/maphash"
	"sync"
	"time"
)

// A writer applies changes to the records of a store, one at a time.
//
// A record is published with one atomic store. Its index entries are added before and removed after, so that readers never miss an
// existing record; readers skip an entry without its record.
type writer struct {
	*records

	mu       sync.Mutex // guards the following fields, and serializes changes of the records; the callers of the methods hold it
	accounts accounts
	scratch  []byte
	reporter reporter
	versions Versions

	set *writer // writer of the cluster set's store; nil: there is no set
}

// remove removes the object.
func (w *writer) remove(kind Kind, namespace, name string, now time.Time) (changed bool) {
	switch kind {
	case Services:
		if !isLabel(namespace) || !isLabel(name) {
			return false
		}
		w.scratch = nodeKey(w.scratch[:0], namespace, name)
		return w.setService(w.scratch, nil, now)
	case Slices:
		return w.setSlice(namespace, name, nil, now)
	case Namespaces:
		return w.setNamespace(name, false, now)
	case Pods:
		return w.setPod(namespace, name, nil, now)
	case Imports, ImportSlices: // a store has them as Services and Slices
	}
	return false
}

// setService sets the service of the node; nil removes it.
func (w *writer) setService(key []byte, svc *service, now time.Time) bool {
	n, id := w.findNode(key)
	var old *service
	if n != nil {
		old = n.svc
	}
	namespace, name := splitKey(string(key))
	size, before := serviceCost(string(key), svc), serviceCost(string(key), old)
	if svc != nil && !w.accounts.fits(namespace, size, before) {
		svc = refusedService()
		size = serviceCost(string(key), svc)
	}
	if old == svc || old != nil && svc != nil && *old == *svc {
		return false
	}
	defer w.reporter.begin()()
	if n == nil {
		n = &node{key: string(key)}
		id = w.nodes.add(w.hash(key), n)
	}
	w.accounts.replace(namespace, size, before)
	w.accounts.countRefused(Services, old != nil && old.refused, svc != nil && svc.refused, namespace, name)
	w.accounts.count(Services, serviceSize(n.key, old), serviceSize(n.key, svc))
	w.indexService(svc, id, (*hashIndex).add)
	w.setNode(id, n.withService(svc), now)
	w.indexService(old, id, (*hashIndex).remove)
	space := keyNamespace(n.key)
	spaceMoved := (old == nil) != (svc == nil) && w.countServices(space, svc != nil)
	w.bumpSerial(now)
	w.reporter.notifyService(n, old, svc)
	if spaceMoved {
		w.namespaceChanged(space, false, now)
	}
	return true
}

// indexService adds the service's addresses to the indexes, or removes them.
func (w *writer) indexService(svc *service, id uint32, do func(x *hashIndex, hash uint64, id uint32)) {
	if svc != nil && svc.typ == ClusterIP {
		w.eachAddr(svc.addrs, id, func(hash uint64, id uint32) { do(&w.nodesByAddr, hash, id) })
	}
	outside := svc.outside()
	w.eachAddr(outside.addrs, id, func(hash uint64, id uint32) { do(&w.nodesByExternal, hash, id) })
}

// setSlice sets the slice with the name; nil removes it.
func (w *writer) setSlice(namespace, name string, sl *slice, now time.Time) bool {
	hash := w.objectHash(namespace, name)
	old, id := find(&w.slices.byKey, &w.slices, hash, func(sl *slice) bool { return sl.name == name && keyNamespace(sl.key)[1:] == namespace })
	if sl != nil && !w.accounts.fits(namespace, sliceCost(sl), sliceCost(old)) {
		sl = refusedSlice(sl)
	}
	if old == sl || old != nil && sl != nil && old.equal(sl) {
		return false
	}
	defer w.reporter.begin()()
	if old == nil {
		id = w.slices.add(hash, sl)
	}
	w.accounts.replace(namespace, sliceCost(sl), sliceCost(old))
	w.accounts.countRefused(Slices, old.refused(), sl.refused(), namespace, name)
	w.accounts.count(Slices, sliceSize(old), sliceSize(sl))
	if sl != nil {
		sl.id = id
		w.eachAddr(sl.addrs, id, w.slicesByAddr.add)
		w.eachLabel(sl, func(hash uint64) { w.slicesByLabel.add(hash, id) })
		w.slices.set(id, sl)
		w.replaceSlice(sl.key, id, sl, now)
	}
	if old != nil && (sl == nil || old.key != sl.key) {
		w.replaceSlice(old.key, id, nil, now)
	}
	if sl == nil {
		w.slices.drop(hash, id)
	}
	if old != nil {
		w.eachAddr(old.addrs, id, w.slicesByAddr.remove)
		w.eachLabel(old, func(hash uint64) { w.slicesByLabel.remove(hash, id) })
	}
	w.bumpSerial(now)
	w.reporter.notifySlice(old, sl)
	return true
}

// replaceSlice sets the node's slice with the number; nil removes it.
func (w *writer) replaceSlice(key string, id uint32, sl *slice, now time.Time) {
	n, at := w.findNode([]byte(key))
	if n == nil {
		n = &node{key: key}
		at = w.nodes.add(maphash.String(w.seed, key), n)
	}
	w.setNode(at, n.withSlice(id, sl), now)
}

// setNode publishes the node, or removes it if it is empty.
func (w *writer) setNode(id uint32, n *node, now time.Time) {
	w.versions.record(w.nodes.load(id), n, now)
	if n.empty() {
		w.nodes.drop(maphash.String(w.seed, n.key), id)
		return
	}
	w.nodes.set(id, n)
}

// setPod sets the pod with the name; nil removes it.
func (w *writer) setPod(namespace, name string, p *pod, now time.Time) bool {
	hash := w.objectHash(namespace, name)
	old, id := find(&w.pods.byKey, &w.pods, hash, func(p *pod) bool { return p.name == name && p.namespace == namespace })
	if old == p || old != nil && p != nil && *old == *p {
		return false
	}
	defer w.reporter.begin()()
	if old == nil {
		id = w.pods.add(hash, p)
	}
	w.accounts.count(Pods, podSize(old), podSize(p))
	if p != nil {
		w.eachAddr(p.addrs, id, w.podsByAddr.add)
		w.pods.set(id, p)
	} else {
		w.pods.drop(hash, id)
	}
	if old != nil {
		w.eachAddr(old.addrs, id, w.podsByAddr.remove)
	}
	w.bumpSerial(now)
	w.reporter.notifyPods(namespace)
	return true
}

// setNamespace sets whether a Namespace object with the name exists.
func (w *writer) setNamespace(name string, there bool, now time.Time) bool {
	if !isLabel(name) {
		return false
	}
	label := appendLabel(nil, name)
	n, id := w.findNamespace(label)
	if there == (n != nil && n.declared.Load()) {
		return false
	}
	defer w.reporter.begin()()
	if n == nil {
		n, id = w.addNamespace(label)
	}
	n.declared.Store(there)
	if there {
		w.accounts.count(Namespaces, 0, namespaceSize(n))
	} else {
		w.accounts.count(Namespaces, namespaceSize(n), 0)
	}
	w.dropNamespace(n, id)
	w.bumpSerial(now)
	w.namespaceChanged(n.label, true, now)
	return true
}

// namespaceChanged reports a changed namespace, whose label is in wire form. With ofObject its Namespace object was added or
// removed, otherwise its first service was added or its last one removed.
func (w *writer) namespaceChanged(label string, ofObject bool, now time.Time) {
	if ofObject && w.versions.last != nil && w.versions.selective {
		w.versions.drop(now)
	}
	w.reporter.notifyNamespace(label)
	if w.set != nil {
		w.set.mu.Lock()
		defer w.set.mu.Unlock()
		w.set.namespaceChanged(label, ofObject, now)
	}
}

// countServices counts a service in, or out of, its namespace. It reports whether that made the namespace exist or cease to exist.
func (w *writer) countServices(label string, in bool) (moved bool) {
	n, id := w.findNamespace([]byte(label))
	if n == nil {
		n, id = w.addNamespace([]byte(label))
	}
	existed := n.exists()
	if in {
		n.services.Add(1)
		return !existed
	}
	n.services.Add(-1)
	w.dropNamespace(n, id)
	return !n.exists()
}

func (w *writer) addNamespace(label []byte) (*namespace, uint32) {
	n := &namespace{label: string(label)}
	return n, w.namespaces.add(w.hash(label), n)
}

// dropNamespace removes the record of a namespace if neither an object nor a service proves that it exists.
func (w *writer) dropNamespace(n *namespace, id uint32) {
	if !n.exists() {
		w.namespaces.drop(maphash.String(w.seed, n.label), id)
	}
}

// maxSerialLead bounds how many seconds the serial may run ahead of the clock, because of frequent changes or a clock
// that was wrong.
const maxSerialLead = 3600

// bumpSerial updates the serial after a change.
func (w *writer) bumpSerial(now time.Time) {
	if w.versions.last != nil {
		return // with versions, only a new one changes the serial
	}
	clock, last := uint32(now.Unix()), w.serial.Load()
	next := clock
	if lead := int32(last + 1 - clock); last != 0 && lead > 0 {
		next = clock + min(uint32(lead), maxSerialLead)
	}
	w.serial.Store(next)
}

// objectHash returns the hash of an object's namespace and name.
func (w *writer) objectHash(namespace, name string) uint64 {
	w.scratch = append(append(append(w.scratch[:0], namespace...), '/'), name...)
	return w.hash(w.scratch)
}

// eachAddr calls do with id and the hash of each of a record's addresses. While a record is replaced, an index has id twice for an
// address that both versions have.
func (w *writer) eachAddr(addrs func(addrLen int) string, id uint32, do func(hash uint64, id uint32)) {
	for _, addrLen := range addrLens() {
		last := ""
		for list := addrs(addrLen); list != ""; list = list[addrLen:] {
			if list[:addrLen] != last {
				last = list[:addrLen]
				do(maphash.String(w.seed, last), id)
			}
		}
	}
}

// eachLabel calls f with the labelHash of every own name in the slice.
func (w *writer) eachLabel(sl *slice, f func(hash uint64)) {
	last := ""
	for k := range int(sl.named) {
		if name := sl.label(sl.entryByName(k)); name != last {
			last = name
			f(w.labelHash(sl.key, name))
		}
	}
}
