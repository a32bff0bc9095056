// SPDX-License-Identifier: Apache-2.0

package zone

// indexCost is the size of the index entries for one address or name of a record, in bytes.
const indexCost = 16

// accounts count the objects of a store and their memory.
type accounts struct {
	counts           [kindCount]KindStats
	limit            int64            // largest bytes per namespace; 0: no limit
	bytesByNamespace map[string]int64 // bytes of services and slices
}

// fits reports whether the limit lets an object of size bytes replace one of old bytes in the namespace.
func (a *accounts) fits(namespace string, size, old int) bool {
	return a.limit == 0 || size <= old || a.bytesByNamespace[namespace]+int64(size-old) <= a.limit
}

// replace counts an object of size bytes in place of one of old bytes in the namespace; 0 means none.
func (a *accounts) replace(namespace string, size, old int) {
	if n := a.bytesByNamespace[namespace] + int64(size-old); n > 0 {
		a.bytesByNamespace[namespace] = n
	} else {
		delete(a.bytesByNamespace, namespace)
	}
}

// countRefused updates the counters for an object that was refused before, or is now.
func (a *accounts) countRefused(kind Kind, was, is bool, namespace, name string) {
	c := &a.counts[kind]
	if was {
		c.Refused--
	}
	if is {
		c.Refused++
		c.LastRefused = namespace + "/" + name
	}
	if c.Refused == 0 {
		c.LastRefused = ""
	}
}

// serviceCost returns the bytes of a service with its index entries.
func serviceCost(key string, s *service) int {
	if s == nil {
		return 0
	}
	outside := s.outside()
	return serviceSize(key, s) + indexCost*(1+int(s.n4)+int(s.n6)+int(outside.n4)+int(outside.n6))
}

// sliceCost returns the bytes of a slice with its index entries.
func sliceCost(s *slice) int {
	if s == nil {
		return 0
	}
	return sliceSize(s) + indexCost*(1+s.count()+int(s.named))
}

// refusedService returns the placeholder of a refused service.
func refusedService() *service { return &service{typ: Headless, ttl: -1, refused: true} }

// refusedSlice returns the placeholder of a refused slice: it has one byte of names and no entry, unlike any other slice.
func refusedSlice(s *slice) *slice {
	return &slice{key: s.key, name: s.name, data: "\x00", clusterAt: 1, zonesAt: 1, portsAt: 1}
}

// Stats are the counts of a store.
type Stats struct {
	Kinds    [countCount]KindStats // counts by Kind
	Index    int64                 // bytes of the tables and indexes, without the records
	Serial   uint32
	Notified uint64 // calls of Observer.OwnerChanged
}

// KindStats are the counts of one kind.
type KindStats struct {
	Objects     int64  `json:"objects"`
	Bytes       int64  `json:"bytes"`                 // bytes of the packed records, without index entries
	Refused     int64  `json:"refused,omitempty"`     // objects stored by name only, because they exceed their namespace's memory limit
	LastRefused string `json:"lastRefused,omitempty"` // namespace and name of the object refused last; empty: none is refused

	Restored bool `json:"-"` // loaded from a dump, without a complete list since
}

// AddClusterSet adds the counts of the store of a cluster set.
func (s *Stats) AddClusterSet(set Stats) {
	s.Kinds[Imports], s.Kinds[ImportSlices] = set.Kinds[Services], set.Kinds[Slices]
	s.Index += set.Index
	s.Notified += set.Notified
}

// count replaces an object of old bytes by one of size bytes; 0 means none.
func (a *accounts) count(kind Kind, old, size int) {
	c := &a.counts[kind]
	c.Bytes += int64(size - old)
	if old > 0 {
		c.Objects--
	}
	if size > 0 {
		c.Objects++
	}
}

// Sizes of the records in bytes, as the allocator rounds them.
const (
	nodeSize        = 64
	serviceRecord   = 32
	sliceRecord     = 96 + 8 // 8 for the node's pointer to it
	podRecord       = 64
	namespaceRecord = 24
)

func serviceSize(key string, s *service) int {
	if s == nil {
		return 0
	}
	return nodeSize + len(key) + serviceRecord + len(s.data)
}

func sliceSize(s *slice) int {
	if s == nil {
		return 0
	}
	return sliceRecord + len(s.name) + len(s.data)
}

func podSize(p *pod) int {
	if p == nil {
		return 0
	}
	return podRecord + len(p.name) + len(p.data)
}

func namespaceSize(n *namespace) int { return namespaceRecord + len(n.label) }
