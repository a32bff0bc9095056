// SPDX-License-Identifier: Apache-2.0

package zone

import "github.com/nodecache/node-cache/pkg/wire"

// indexCost is the bytes that the indexes take for one address or name of a record.
const indexCost = 16

// Limit bounds the bytes that the services and slices of one namespace may take, with their part of the indexes; 0: no bound.
// So whoever may write objects in one namespace cannot exhaust the memory of the process. An object that does not fit is refused:
// only its name is held. Names at and below its service's name are as those of a view that was never complete. It is
// refused until it is put again and fits. What is held already stays.
func (s *Store) Limit(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = bytes
}

// fits reports whether a namespace may have size bytes in place of old ones.
func (s *Store) fits(namespace string, size, old int) bool {
	return s.limit == 0 || size <= old || s.bytesByNamespace[namespace]+int64(size-old) <= s.limit
}

// hold accounts for size bytes of a namespace in place of old ones.
func (s *Store) account(namespace string, size, old int) {
	if n := s.bytesByNamespace[namespace] + int64(size-old); n > 0 {
		s.bytesByNamespace[namespace] = n
	} else {
		delete(s.bytesByNamespace, namespace)
	}
}

// noteRefused counts a refused object in or, where there was one, out.
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

// serviceCost is the bytes that a service takes with its part of the indexes.
func serviceCost(key string, s *service) int {
	if s == nil {
		return 0
	}
	return serviceSize(key, s) + indexCost*(1+int(s.n4)+int(s.n6))
}

// sliceCost is the bytes that a slice takes with its part of the indexes.
func sliceCost(s *slice) int {
	if s == nil {
		return 0
	}
	return sliceSize(s) + indexCost*(1+s.count()+int(s.named))
}

// refusedService stands for a service that does not fit.
func refusedService() *service { return &service{typ: Headless, ttl: -1, refused: true} }

// refusedSlice stands for a slice that does not fit: one byte of names without an entry, which no other slice has.
func refusedSlice(s *slice) *slice {
	return &slice{key: s.key, name: s.name, data: "\x00", zonesAt: 1, portsAt: 1}
}

func (s *slice) refused() bool { return s != nil && s.zonesAt > 0 && s.count() == 0 }

// withheld ends the message for a name of which the store refused a part: another resolver is asked, if there is one.
func (r *reply) answerRefused() Result {
	if r.z.hasFallback() {
		return r.abandon(UseFallback, wire.EDENone)
	}
	return r.abandon(NotReady, wire.EDENotReady)
}
