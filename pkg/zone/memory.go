// SPDX-License-Identifier: Apache-2.0

package zone

// indexCost is the size of the index entries for one address or name of a record, in bytes.
const indexCost = 16

// Limit bounds the bytes that the services and slices of one namespace may take, including their index entries; 0: no
// limit. So a user with write access to one namespace cannot exhaust the memory of the process. The store refuses an
// object above the limit and keeps only its name. Names at and below its service are answered as if the first list were
// incomplete. The object is refused until it is put again and fits. Objects already stored stay.
func (s *Store) Limit(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = bytes
}

// fits reports whether size bytes may replace old bytes in a namespace.
func (s *Store) fits(namespace string, size, old int) bool {
	return s.limit == 0 || size <= old || s.bytesByNamespace[namespace]+int64(size-old) <= s.limit
}

// account replaces old bytes of a namespace by size bytes.
func (s *Store) account(namespace string, size, old int) {
	if n := s.bytesByNamespace[namespace] + int64(size-old); n > 0 {
		s.bytesByNamespace[namespace] = n
	} else {
		delete(s.bytesByNamespace, namespace)
	}
}

// countRefused updates the counters of refused objects.
func (s *Store) countRefused(kind Kind, was, is bool, namespace, name string) {
	c := &s.counts[kind]
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

func (s *slice) refused() bool { return s != nil && s.clusterAt > 0 && s.count() == 0 }

// Stats are the counts of a store.
type Stats struct {
	Kinds    [countCount]KindStats // by Kind
	Index    int64                 // bytes of the indexes
	Serial   uint32
	Notified uint64 // notifications of owners
}

// KindStats are the counts of one kind.
type KindStats struct {
	Objects int64
	Bytes   int64 // of the packed records, without index entries

	Refused     int64  // objects stored by name only, because they exceed the limit
	LastRefused string // namespace and name of the last one; empty: none

	Restored bool // loaded from a dump, without a complete list since
}

// Stats returns the counts.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	index := s.nodes.size() + s.slices.size() + s.pods.size() + s.namespaces.size()
	for _, x := range s.indexes() {
		index += x.size()
	}
	stats := Stats{Index: int64(index), Serial: s.Serial(), Notified: s.reporter.notified}
	for k, count := range s.counts {
		count.Restored = s.Restored(Kind(k))
		stats.Kinds[k] = count
	}
	return stats
}

// AddClusterSet adds the counts of the store of a cluster set.
func (s *Stats) AddClusterSet(set Stats) {
	s.Kinds[Imports], s.Kinds[ImportSlices] = set.Kinds[Services], set.Kinds[Slices]
	s.Index += set.Index
	s.Notified += set.Notified
}

// count replaces an object of old bytes by one of size bytes; 0 means none.
func (s *Store) count(kind Kind, old, size int) {
	c := &s.counts[kind]
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
	sliceRecord     = 96 + 8 // plus the node's reference
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
