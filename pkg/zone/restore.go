// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"encoding/binary"
	"errors"
	"iter"
	"net/netip"
	"time"
)

// ErrTooOld says that a view was last proven right too long ago.
var ErrTooOld = errors.New("what is known of the cluster was last right too long ago")

var errRecord = errors.New("a record is not as this program writes them")

// Restored is what came back from a dump.
type Restored struct {
	Objects int
	Age     time.Duration // of the view that was not proven right for longest
}

// Restore puts what [Store.Dump] gave into an empty store, after the time passed since then. The views that come back
// answer as stale ones, however young they are, until SetSynced is called. Nothing is restored if a record cannot be
// read, or, with [ErrTooOld], if a view was last proven right longer than most ago. Nobody is told of the objects: they are
// not news.
func (s *Store) Restore(records iter.Seq[[]byte], passed, most time.Duration, now time.Time) (Restored, error) {
	if _, err := restore(records, nil, passed, most, now); err != nil {
		return Restored{}, err
	}
	told := s.swapObserver(nil)
	defer func() { s.swapObserver(told) }()
	return restore(records, s, passed, most, now)
}

// observeWith has another function told of changes, and gives the one that was.
func (s *Store) swapObserver(tell func([]byte)) (before func([]byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.observer.notify = s.observer.notify, tell
	return before
}

// restore reads the records and, if there is a store, puts them there.
func restore(records iter.Seq[[]byte], s *Store, passed, most time.Duration, now time.Time) (Restored, error) {
	r := restorer{store: s, elapsed: passed, maxAge: most, now: now}
	for record := range records {
		if err := r.read(record); err != nil {
			return Restored{}, err
		}
	}
	if s != nil {
		r.finish()
	}
	return r.done, nil
}

// A restorer takes records.
type restorer struct {
	store           *Store // nil: they are only read
	elapsed, maxAge time.Duration
	now             time.Time

	done      Restored
	kinds     kindSet              // kinds whose view has come
	confirmed [kindCount]time.Time // when they were proven right
}

func (r *restorer) read(record []byte) error {
	in := recordReader{rest: record}
	switch what := in.readByte(); what {
	case recordView:
		k, age := Kind(in.number(kindCount-1)), time.Duration(in.number(1<<62))
		if age > r.maxAge-r.elapsed {
			return ErrTooOld
		}
		r.kinds |= 1 << k
		r.done.Age = max(r.done.Age, age+r.elapsed)
		r.confirmed[k] = r.now.Add(-age - r.elapsed)
	case recordService, recordSlice, recordNamespace, recordPod:
		put := in.object(what, r.kinds)
		if r.store != nil && in.done() {
			put(r.store, r.now)
		}
		r.done.Objects++
	default:
		return errRecord
	}
	if !in.done() {
		return errRecord
	}
	return nil
}

// finish says that all objects are there.
func (r *restorer) finish() {
	for k := range Kind(kindCount) {
		if r.kinds&(1<<k) != 0 {
			r.store.ConfirmFresh(k, r.store.BootTime(r.confirmed[k]))
			r.store.states[k].restored.Store(true)
		}
	}
}

// A reader reads a record. Once something was amiss, it is bad and gives zeros.
type recordReader struct {
	rest      []byte
	malformed bool
}

// done tells whether all was read and nothing was amiss.
func (r *recordReader) done() bool { return !r.malformed && len(r.rest) == 0 }

func (r *recordReader) readByte() byte {
	if r.malformed || len(r.rest) == 0 {
		r.malformed = true
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

// number reads a number of at most most.
func (r *recordReader) number(most uint64) uint64 {
	n, length := binary.Uvarint(r.rest)
	if r.malformed || length <= 0 || n > most {
		r.malformed = true
		return 0
	}
	r.rest = r.rest[length:]
	return n
}

// length reads the length of what follows, which takes an octet for each at least.
func (r *recordReader) length() int { return int(r.number(uint64(len(r.rest)))) }

func (r *recordReader) text() string {
	n := r.length()
	if r.malformed || n > len(r.rest) {
		r.malformed = true
		return ""
	}
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

func (r *recordReader) addr() netip.Addr {
	n := r.length()
	if r.malformed || n > len(r.rest) {
		r.malformed = true
		return netip.Addr{}
	}
	a, ok := netip.AddrFromSlice(r.rest[:n])
	r.rest, r.malformed = r.rest[n:], r.malformed || !ok
	return a
}

func (r *recordReader) addrs() []netip.Addr {
	var list []netip.Addr
	for n := r.length(); n > 0 && !r.malformed; n-- {
		list = append(list, r.addr())
	}
	return list
}

func (r *recordReader) ports() []Port {
	var list []Port
	for n := r.length(); n > 0 && !r.malformed; n-- {
		list = append(list, Port{Name: r.text(), Protocol: Protocol(r.number(1<<8 - 1)), Number: uint16(r.number(1<<16 - 1))})
	}
	return list
}

// object reads an object of one of the kinds that are held, and gives what puts it into a store.
func (r *recordReader) object(what byte, held kindSet) func(*Store, time.Time) {
	kind, put := Services, (func(*Store, time.Time))(nil)
	switch what {
	case recordSlice:
		kind = Slices
		sl := r.slice()
		put = func(s *Store, now time.Time) { s.PutSlice(sl, now) }
	case recordNamespace:
		kind = Namespaces
		name := r.text()
		put = func(s *Store, now time.Time) { s.PutNamespace(name, now) }
	case recordPod:
		kind = Pods
		p := Pod{Namespace: r.text(), Name: r.text(), Addrs: r.addrs()}
		put = func(s *Store, now time.Time) { s.PutPod(p, now) }
	default:
		svc := r.service()
		put = func(s *Store, now time.Time) { s.PutService(svc, now) }
	}
	if held&(1<<kind) == 0 {
		r.malformed = true
	}
	return put
}

func (r *recordReader) service() Service {
	svc := Service{Namespace: r.text(), Name: r.text(), Type: ServiceType(r.number(uint64(ExternalName)))}
	svc.PublishNotReady = r.number(1) == 1
	svc.TTL = time.Duration(int64(r.number(uint64(maxTTL/time.Second)+1))-1) * time.Second
	svc.ExternalName = r.text()
	if svc.Type != ExternalName {
		svc.Addrs, svc.Ports = r.addrs(), r.ports()
	}
	return svc
}

func (r *recordReader) slice() Slice {
	sl := Slice{Namespace: r.text(), Name: r.text(), Service: r.text()}
	var zones []string
	for n := r.length(); n > 0 && !r.malformed; n-- {
		zones = append(zones, r.text())
		sl.Endpoints = append(sl.Endpoints, Endpoint{Zone: zones[len(zones)-1]}) // without an address: it gives the zone its number
	}
	for n := r.length(); n > 0 && !r.malformed; n-- {
		sl.Endpoints = append(sl.Endpoints, r.endpoint(zones))
	}
	sl.Ports = r.ports()
	return sl
}

// endpoint reads an entry of a slice.
func (r *recordReader) endpoint(zones []string) Endpoint {
	e := Endpoint{Addrs: []netip.Addr{r.addr()}}
	mark := uint16(r.number(1<<16 - 1))
	e.Ready = mark&markReady != 0
	switch mark & (markHost | markPod) {
	case markHost:
		e.Hostname = r.text()
	case markPod:
		e.Pod = r.text()
	case markHost | markPod:
		r.malformed = true
	}
	if zone := int(mark & markZone); zone > len(zones) {
		r.malformed = true
	} else if zone > 0 {
		e.Zone = zones[zone-1]
	}
	return e
}
