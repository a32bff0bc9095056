// SPDX-License-Identifier: Apache-2.0

package zone

// Stats says what a store holds.
type Stats struct {
	Kinds    [kindCount]KindStats // by Kind
	Index    int64                // bytes of the indexes
	Serial   uint32
	Notified uint64 // owners that the observer was told of
}

// KindStats says what a store holds of one kind.
type KindStats struct {
	Objects int64
	Bytes   int64 // of the packed records, without indexes

	Refused     int64  // of the objects, those that do not fit and are held by name alone
	LastRefused string // namespace and name of the last one; empty: there is none

	Restored bool // they came from a dump, and no list has been complete since
}

// Stats counts what the store holds.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	index := 0
	for _, x := range []*hashIndex{
		&s.nodesByName, &s.nodesByAddr, &s.slicesByAddr, &s.slicesByLabel, &s.podsByAddr, &s.namespacesByName, &s.slicesByName, &s.podsByName,
	} {
		index += x.size()
	}
	index += 8 * (len(*s.nodes.table.Load()) + len(*s.slices.table.Load()) + len(*s.pods.table.Load()) + len(*s.namespaces.table.Load()))
	counts := s.counts
	for k := range counts {
		counts[k].Restored = s.Restored(Kind(k))
	}
	return Stats{Kinds: counts, Index: int64(index), Serial: s.Serial(), Notified: s.observer.notified}
}

// count adds size to what the kind takes and, if there is an object at all, the
// object to its number or, for a negative size, from it.
func (s *Store) count(kind Kind, there bool, size int) {
	if !there {
		return
	}
	c := &s.counts[kind]
	c.Bytes += int64(size)
	if size < 0 {
		c.Objects--
	} else {
		c.Objects++
	}
}

// Bytes of the records themselves, as the allocator rounds them.
const (
	nodeSize        = 64
	serviceRecord   = 32
	sliceRecord     = 80 + 16 // and the node's reference
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
