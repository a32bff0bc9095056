// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"iter"
	"math"
	"time"
)

// A Store holds the objects that a zone answers from. Readers take no lock. Writers block each other.
type Store struct {
	records
	kindStates
	writer
}

// NewStore returns an empty store.
func NewStore() *Store {
	s := new(Store)
	s.init()
	s.writer.records, s.accounts.bytesByNamespace, s.versions.store = &s.records, make(map[string]int64), s
	return s
}

// NewClusterSet returns an empty store for the imports of a cluster set. Its namespaces are those of the cluster's store, which must
// still be empty. A change of one notifies the set's observer too, and drops the set's versions if Namespace objects select its names.
func NewClusterSet(cluster *Store) *Store {
	s := NewStore()
	cluster.set = &s.writer
	return s
}

// Versions returns the versions of the store's zones.
func (s *Store) Versions() *Versions { return &s.versions }

// PutService stores or replaces the service, and reports whether that changed anything. It ignores a service whose name or
// namespace cannot be a label.
func (s *Store) PutService(svc Service, now time.Time) (changed bool) {
	if !isLabel(svc.Namespace) || !isLabel(svc.Name) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scratch = nodeKey(s.scratch[:0], svc.Namespace, svc.Name)
	return s.setService(s.scratch, packService(svc), now)
}

// PutSlice stores or replaces the slice, and reports whether that changed anything. A slice without a service is removed.
func (s *Store) PutSlice(sl Slice, now time.Time) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !isLabel(sl.Namespace) || !isLabel(sl.Service) {
		return s.setSlice(sl.Namespace, sl.Name, nil, now)
	}
	key := string(nodeKey(nil, sl.Namespace, sl.Service))
	if n, _ := s.findNode([]byte(key)); n != nil {
		key = n.key // the node and the slice share one string
	}
	return s.setSlice(sl.Namespace, sl.Name, packSlice(sl, key), now)
}

// PutPod stores or replaces the pod, and reports whether that changed anything.
func (s *Store) PutPod(p Pod, now time.Time) (changed bool) {
	if !isLabel(p.Namespace) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scratch = appendLabel(s.scratch[:0], p.Namespace)
	if n, _ := s.findNamespace(s.scratch); n != nil {
		p.Namespace = n.label[1:] // all pods of a namespace share one string
	}
	return s.setPod(p.Namespace, p.Name, packPod(p), now)
}

// PutNamespace stores the namespace, and reports whether it is new.
func (s *Store) PutNamespace(name string, now time.Time) (changed bool) {
	if !isLabel(name) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.setNamespace(name, true, now)
}

// Delete removes the object, and reports whether it was there. For a Namespace, namespace is empty.
func (s *Store) Delete(kind Kind, namespace, name string, now time.Time) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remove(kind, namespace, name, now)
}

// Retain deletes every object of the kind for which keep returns false: those missing in a new list. For a Namespace,
// namespace is empty. keep must not call the store.
func (s *Store) Retain(kind Kind, keep func(namespace, name string) bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eachName(kind, func(namespace, name string) {
		if !keep(namespace, name) {
			s.remove(kind, namespace, name, now)
		}
	})
}

// Observe registers the observer of names below the domains, which are in canonical wire form. It replaces the previous one; nil
// removes it. A change without effect has no calls. When a namespace changes in the cluster's store, its observer gets Changing and
// Changed, and the observer of the cluster set gets OwnerChanged in between.
func (s *Store) Observe(domains [][]byte, o Observer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reporter.domains, s.reporter.Observer = domains, o
}

// Limit bounds the bytes that the services and slices of one namespace may take, including their index entries; 0: no
// limit. So a user with write access to one namespace cannot exhaust the memory of the process. The store refuses an
// object above the limit and keeps only its name. Names at and below its service are answered as if the first list were
// incomplete. The object is refused until it is put again and fits. Objects already stored stay.
func (s *Store) Limit(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accounts.limit = bytes
}

// Stats returns the counts.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := Stats{Index: s.size(), Serial: s.Serial(), Notified: s.reporter.notified}
	for k, count := range s.accounts.counts {
		count.Restored = s.Restored(Kind(k))
		stats.Kinds[k] = count
	}
	return stats
}

// Dump passes the store's content to emit, as records for [Store.Restore]. It includes the kinds that are synced or
// restored; the first record of each has its age. It blocks no writer: each record is consistent, the dump as a whole is not. Dump stops
// at the first error of emit. emit must not keep the record.
func (s *Store) Dump(now time.Time, emit func(record []byte) error) error {
	d := dumper{emit: emit}
	for _, k := range []Kind{Namespaces, Slices, Pods, Services} {
		if !s.Synced(k) && !s.Restored(k) {
			continue
		}
		age := s.Age(k, now)
		if age == math.MaxInt64 {
			continue // never confirmed
		}
		d.beginRecord(recordView)
		d.number(uint64(k))
		d.number(uint64(age))
		d.emitRecord()
		d.kind(s, k)
	}
	return d.err
}

// Restore loads the records of [Store.Dump] into an empty store, and returns the number of objects. passed is the time
// since the dump. The restored kinds count as stale, whatever their age, until SetSynced is called. Restore loads nothing if a record
// is invalid or, with [ErrTooOld], if a kind's last confirmation is older than most. OwnerChanged is not called: nothing changed.
func (s *Store) Restore(records iter.Seq[[]byte], passed, most time.Duration, now time.Time) (objects int, err error) {
	if _, err := restore(records, nil, passed, most, now); err != nil {
		return 0, err
	}
	s.reporter.muted.Store(true)
	defer s.reporter.muted.Store(false)
	return restore(records, s, passed, most, now)
}
