// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
)

const (
	nameSets = 256 // number of sets; the hash of a name chooses its set
	nameWays = 8   // names in a set
)

// names counts the queries for the most frequent names, in constant memory. Each set is a Space-Saving summary
// (Metwally, Agrawal, El Abbadi 2005). The hash has a random seed, so that clients cannot choose a set.
type names struct {
	seed maphash.Seed
	sets [nameSets]nameSet
}

type nameSet struct {
	mu     sync.Mutex
	hashes [nameWays]uint64
	ranks  [nameWays]uint64 // upper bound of the name's queries: it includes the rank of the name that it replaced
	names  [nameWays]countedName
}

// A countedName has the counts of a name since it was added to its set.
type countedName struct {
	counts Counts
	length uint8 // bytes of name in use
	name   [maxName]byte
}

// CountName counts a query for a name in canonical wire form. A new name replaces the one with the lowest rank in its set. It
// allocates nothing.
func (x *Index) CountName(name []byte, c *Counts) {
	hash := maphash.Bytes(x.names.seed, name)
	set := &x.names.sets[hash%nameSets]
	set.mu.Lock()
	defer set.mu.Unlock()
	at := 0
	for i := range set.hashes {
		if set.hashes[i] == hash {
			at = i
			break
		}
		if set.ranks[i] < set.ranks[at] {
			at = i
		}
	}
	f := &set.names[at]
	if set.hashes[at] != hash {
		set.hashes[at] = hash
		f.counts, f.length = Counts{}, uint8(copy(f.name[:], name)) //nolint:gosec // at most 255
	}
	set.ranks[at]++
	for i, n := range c {
		f.counts[i] += n
	}
}

// A NameRow is a name in canonical wire form and its counts.
type NameRow struct {
	Name []byte
	Counts
}

// Names returns the counted names, the most frequent first. Queries before a name entered its set are not in its counts.
func (x *Index) Names() []NameRow {
	rows := make([]NameRow, 0, nameSets*nameWays)
	for i := range x.names.sets {
		set := &x.names.sets[i]
		set.mu.Lock()
		for j := range set.names {
			if f := &set.names[j]; set.ranks[j] > 0 {
				rows = append(rows, NameRow{slices.Clone(f.name[:f.length]), f.counts})
			}
		}
		set.mu.Unlock()
	}
	slices.SortFunc(rows, func(a, b NameRow) int {
		return cmp.Or(cmp.Compare(b.Queries(), a.Queries()), slices.Compare(a.Name, b.Name))
	})
	return rows
}
