// SPDX-License-Identifier: Apache-2.0

package zone

// Stats says what a store holds.
type Stats struct {
	Kinds  [kindCount]KindStats // by Kind
	Index  int64                // bytes of the indexes
	Serial uint32
	Told   uint64 // owners that the observer was told of
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
	for _, x := range []*refs{
		&s.nodesByName, &s.nodesByAddr, &s.slicesByAddr, &s.slicesByLabel, &s.podsByAddr, &s.spacesByName, &s.slicesByName, &s.podsByName,
	} {
		index += x.size()
	}
	index += 8 * (len(*s.nodes.records.Load()) + len(*s.slices.records.Load()) + len(*s.pods.records.Load()) + len(*s.spaces.records.Load()))
	counts := s.counts
	for k := range counts {
		counts[k].Restored = s.Restored(Kind(k))
	}
	return Stats{Kinds: counts, Index: int64(index), Serial: s.Serial(), Told: s.observer.told}
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
	nodeSize      = 64
	serviceRecord = 32
	sliceRecord   = 80 + 16 // and the node's reference
	podRecord     = 64
	spaceRecord   = 24
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

func namespaceSize(n *namespace) int { return spaceRecord + len(n.label) }
