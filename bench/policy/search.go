// SPDX-License-Identifier: Apache-2.0

package main

import "math/rand/v2"

// The cluster of the search-path trace.
const (
	namespaces    = 200
	services      = 3000
	externals     = 20000
	searchDomains = 4 // the namespace's own, svc.DOMAIN, DOMAIN and the node's; only the first differs between pods
	denialTTL     = 30
)

// A kind of name is the upper part of a question's key.
type kind uint64

const (
	external kind = iota // a full name that other lookups ask for too
	service              // a cluster name
	wonder               // a name that is asked for once
	suffixed             // external name + search domain; the kinds from here on are the domains
)

// A search makes the search-path trace: what pods with ndots:5 send.
type search struct {
	t    *trace
	rng  *rand.Rand
	ids  map[uint64]uint32 // by kind, name and type
	most int               // questions
}

func searchTrace(queries int) *trace {
	s := &search{
		t:    &trace{name: "search path", ids: make([]uint32, 0, queries)},
		rng:  rand.New(rand.NewPCG(2, 2)),
		ids:  make(map[uint64]uint32),
		most: queries,
	}
	externalRanks, serviceRanks := newZipf(1.0, externals), newZipf(1.0, services)
	for n := uint64(0); len(s.t.ids) < queries; n++ {
		// A lookup of an external name is 10 questions, the others are 2. These parts make one question in five a
		// wonder, and two lookups of known names in three external.
		switch part := s.rng.IntN(100); {
		case part < 48:
			s.lookUp(wonder, n, drawTTL(s.rng))
		case part < 65:
			s.lookUp(service, uint64(serviceRanks.draw(s.rng)), uint16(5+s.rng.IntN(26)))
		default:
			s.lookUpExternal(uint64(externalRanks.draw(s.rng)))
		}
	}
	s.t.shuffle(s.rng)
	s.t.link()
	return s.t
}

// lookUpExternal asks for the name under every search domain before it asks for the name itself.
func (s *search) lookUpExternal(name uint64) {
	own := suffixed + searchDomains - 1 + kind(s.rng.IntN(namespaces))
	s.lookUp(own, name, denialTTL)
	for domain := range kind(searchDomains - 1) {
		s.lookUp(suffixed+domain, name, denialTTL)
	}
	s.lookUp(external, name, drawTTL(s.rng))
}

// lookUp asks for A and AAAA. The ttl counts for a name that was not asked before.
func (s *search) lookUp(k kind, name uint64, ttl uint16) {
	for family := range uint64(2) {
		if len(s.t.ids) == s.most {
			return
		}
		key := uint64(k)<<32 | name<<1 | family
		id, known := s.ids[key]
		if !known {
			id = uint32(len(s.t.sizes))
			s.ids[key] = id
			s.t.ttls = append(s.t.ttls, ttl)
			s.t.sizes = append(s.t.sizes, s.size(k))
			if k >= suffixed {
				s.t.names = append(s.t.names, s.ids[key&^1])
			} else {
				s.t.names = append(s.t.names, id)
			}
		}
		s.t.ids = append(s.t.ids, id)
		if k >= suffixed {
			s.t.denied++
		}
	}
}

// size draws the entry's bytes: denials of one zone carry the same SOA record, so they differ by the name alone.
func (s *search) size(k kind) uint16 {
	if k >= suffixed {
		return uint16(168 + s.rng.IntN(61))
	}
	return drawSize(s.rng)
}
