// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/nodecache/node-cache/pkg/wire"
)

// records are the packed objects of a store and their indexes. Readers take no lock and see each service in a consistent state.
type records struct {
	seed   maphash.Seed
	serial atomic.Uint32

	nodes           table[node]
	nodesByAddr     hashIndex // nodes by the cluster IPs of their services
	nodesByExternal hashIndex // nodes by the external addresses of their services
	slices          table[slice]
	slicesByAddr    hashIndex
	slicesByLabel   hashIndex // slices by the own names of their entries, see labelHash
	pods            table[pod]
	podsByAddr      hashIndex
	namespaces      table[namespace]
}

func (r *records) init() {
	r.seed = maphash.MakeSeed()
	r.nodes.init()
	r.slices.init()
	r.pods.init()
	r.namespaces.init()
	for _, x := range r.indexes() {
		x.init()
	}
}

// indexes returns the indexes other than byKey of each table.
func (r *records) indexes() []*hashIndex {
	return []*hashIndex{&r.nodesByAddr, &r.nodesByExternal, &r.slicesByAddr, &r.slicesByLabel, &r.podsByAddr}
}

// Serial returns the serial number of the zone: the time of the last change in seconds since 1970, or the previous serial
// plus one if that is larger. It is 0 before the first change. Once [Versions] are kept, it is that of the last version.
func (r *records) Serial() uint32 { return r.serial.Load() }

func (r *records) hash(key []byte) uint64 { return maphash.Bytes(r.seed, key) }

// labelHash returns the hash of an entry's own name below the node with the key.
func (r *records) labelHash(key, label string) uint64 {
	var buf [3 * (1 + wire.MaxLabel)]byte
	return r.hash(append(append(buf[:0], label...), key...))
}

// findNode returns the node with the key and its number, or nil.
func (r *records) findNode(key []byte) (*node, uint32) {
	return find(&r.nodes.byKey, &r.nodes, r.hash(key), func(n *node) bool { return n.key == string(key) })
}

// findNamespace returns the namespace with the label in wire form and its number, or nil.
func (r *records) findNamespace(label []byte) (*namespace, uint32) {
	return find(&r.namespaces.byKey, &r.namespaces, r.hash(label), func(n *namespace) bool { return n.label == string(label) })
}

// serviceAt returns the node of a service that has the cluster IP and whose namespace the zone exposes, or nil.
func (r *records) serviceAt(addr []byte, z *Zone) *node {
	n, _ := find(&r.nodesByAddr, &r.nodes, r.hash(addr), func(n *node) bool {
		return n.svc != nil && containsAddr(clusterIPs(n.svc, len(addr)), addr) && z.exposesNode(n)
	})
	return n
}

// hasPod reports whether a pod of the namespace has the address.
func (r *records) hasPod(namespace, addr []byte) bool {
	p, _ := find(&r.podsByAddr, &r.pods, r.hash(addr), func(p *pod) bool { return p.namespace == string(namespace) && containsAddr(p.addrs(len(addr)), addr) })
	return p != nil
}

// eachName calls f with the namespace and the name of each object of the kind.
func (r *records) eachName(kind Kind, f func(namespace, name string)) {
	switch kind {
	case Services:
		for n := range r.nodes.all() {
			if n.svc != nil {
				f(splitKey(n.key))
			}
		}
	case Slices:
		for sl := range r.slices.all() {
			f(keyNamespace(sl.key)[1:], sl.name)
		}
	case Namespaces:
		for n := range r.namespaces.all() {
			if n.declared.Load() {
				f("", n.label[1:])
			}
		}
	case Pods:
		for p := range r.pods.all() {
			f(p.namespace, p.name)
		}
	case Imports, ImportSlices: // a store has them as Services and Slices
	}
}

// size returns the size of the tables and indexes, without the records, in bytes.
func (r *records) size() int64 {
	size := r.nodes.size() + r.slices.size() + r.pods.size() + r.namespaces.size()
	for _, x := range r.indexes() {
		size += x.size()
	}
	return int64(size)
}
