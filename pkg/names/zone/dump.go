// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"encoding/binary"
	"errors"
	"iter"
	"net/netip"
	"strings"
	"time"
)

// DumpVersion is the format version of Dump.
const DumpVersion = 1

// Types of records in a dump. A record's first byte is its type. The other fields are, for
//
//	a view       kind, and the time since its last confirmation, in ns; it precedes the kind's objects
//	a service    namespace, name, type, whether unready endpoints are published, TTL in seconds plus one (0: the zone's), alias;
//	             unless it is an ExternalName: addresses, ports; if it has any: external host name, external addresses, ports
//	a slice      namespace, name, service, topology zones, entries, ports; the id of its cluster if it has one
//	a namespace  name
//	a pod        namespace, name, addresses
//
// Numbers are encoded as encoding/binary's Uvarint. Texts and lists are preceded by their length, addresses by their
// number of bytes. An entry is an address, a mark as in [slice], and its own name if the mark says that it has one.
const (
	recordView byte = iota + 1
	recordService
	recordSlice
	recordNamespace
	recordPod
)

// A dumper encodes the store's objects as records of a dump.
type dumper struct {
	emit func([]byte) error
	buf  []byte // the current record
	err  error  // first error of emit
}

// kind encodes the objects of a kind. It omits refused objects: in the next process they would be services and slices without data.
func (d *dumper) kind(s *Store, k Kind) {
	switch k {
	case Services:
		each(&s.nodes, func(n *node) bool { return n.svc == nil || n.svc.refused || d.service(n.key, n.svc) })
	case Slices:
		each(&s.slices, func(sl *slice) bool { return sl.refused() || d.slice(sl) })
	case Namespaces:
		each(&s.namespaces, func(n *namespace) bool { return !n.declared.Load() || d.namespace(n) })
	case Pods:
		each(&s.pods, d.pod)
	case Imports, ImportSlices: // a store has them as Services and Slices
	}
}

// each calls encode with each record of a table until encode returns false.
func each[T any](from *table[T], encode func(*T) bool) {
	for record := range from.all() {
		if !encode(record) {
			return
		}
	}
}

func (d *dumper) beginRecord(what byte) { d.buf = append(d.buf[:0], what) }

// emitRecord passes the record to emit, and reports whether to continue.
func (d *dumper) emitRecord() bool {
	if d.err == nil {
		d.err = d.emit(d.buf)
	}
	return d.err == nil
}

func (d *dumper) number(n uint64) { d.buf = binary.AppendUvarint(d.buf, n) }

func (d *dumper) text(s string) {
	d.number(uint64(len(s)))
	d.buf = append(d.buf, s...)
}

func (d *dumper) service(key string, s *service) bool {
	namespace, name := splitKey(key)
	d.beginRecord(recordService)
	d.text(namespace)
	d.text(name)
	d.number(uint64(s.typ))
	publish := uint64(0)
	if s.publish {
		publish = 1
	}
	d.number(publish)
	d.number(uint64(s.ttl + 1))
	if s.typ == ExternalName {
		d.text(dotted(s.inside()))
	} else {
		d.text("")
		d.addrs(s.addrs(4), s.addrs(16))
		d.ports(s.ports())
	}
	if outside := s.outside(); outside.exists() {
		d.text(dotted(outside.alias))
		d.addrs(outside.addrs(4), outside.addrs(16))
		d.ports(outside.ports())
	}
	return d.emitRecord()
}

func (d *dumper) slice(s *slice) bool {
	namespace, service := splitKey(s.key)
	d.beginRecord(recordSlice)
	d.text(namespace)
	d.text(s.name)
	d.text(service)
	d.zones(s)
	d.number(uint64(s.count()))
	for e := range s.count() {
		mark := s.mark(e)
		d.text(s.addr(e))
		d.number(uint64(mark))
		if mark&(markHost|markPod) != 0 {
			d.text(s.label(e))
		}
	}
	d.ports(s.ports())
	if cluster := s.cluster(); cluster != "" {
		d.text(cluster[1:])
	}
	return d.emitRecord()
}

// zones appends the topology zones in the order of their numbers.
func (d *dumper) zones(s *slice) {
	var names []string
	for list := s.data[s.zonesAt:s.portsAt]; list != ""; {
		n := int(list[0]) + 1
		names = append(names, dotted(list[1:n]))
		list = list[n:]
	}
	d.number(uint64(len(names)))
	for _, name := range names {
		d.text(name)
	}
}

func (d *dumper) namespace(n *namespace) bool {
	d.beginRecord(recordNamespace)
	d.text(n.label[1:])
	return d.emitRecord()
}

func (d *dumper) pod(p *pod) bool {
	d.beginRecord(recordPod)
	d.text(p.namespace)
	d.text(p.name)
	d.addrs(p.addrs(4), p.addrs(16))
	return d.emitRecord()
}

func (d *dumper) addrs(v4, v6 string) {
	d.number(uint64(len(v4)/4 + len(v6)/16))
	for ; v4 != ""; v4 = v4[4:] {
		d.text(v4[:4])
	}
	for ; v6 != ""; v6 = v6[16:] {
		d.text(v6[:16])
	}
}

func (d *dumper) ports(list portList) {
	n := uint64(0)
	for l := list; l != ""; l = l.rest() {
		n++
	}
	d.number(n)
	for l := list; l != ""; l = l.rest() {
		d.text(l.name())
		d.number(uint64(l.protocol()))
		d.number(uint64(l.number()))
	}
}

// dotted converts a name in wire form, with or without the root label, to text without a trailing dot.
func dotted(name string) string {
	var text strings.Builder
	for name != "" && name[0] != 0 {
		if text.Len() > 0 {
			text.WriteByte('.')
		}
		n := int(name[0]) + 1
		text.WriteString(name[1:n])
		name = name[n:]
	}
	return text.String()
}

// ErrTooOld means that the last confirmation of a kind in the dump is too old.
var ErrTooOld = errors.New("the cluster data in the dump is too old")

var errRecord = errors.New("invalid record")

// restore decodes the records, puts them into the store unless that is nil, and returns the number of objects.
func restore(records iter.Seq[[]byte], s *Store, passed, most time.Duration, now time.Time) (objects int, err error) {
	r := restorer{store: s, elapsed: passed, maxAge: most, now: now}
	for record := range records {
		if err := r.read(record); err != nil {
			return 0, err
		}
	}
	if s != nil {
		r.finish()
	}
	return r.objects, nil
}

// A restorer decodes records.
type restorer struct {
	store           *Store        // nil: only decode
	elapsed, maxAge time.Duration // time since the dump; largest age of a kind's last confirmation
	now             time.Time

	objects   int
	kinds     kindSet              // kinds whose recordView was read
	confirmed [kindCount]time.Time // last confirmation of each of these kinds
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
		r.confirmed[k] = r.now.Add(-age - r.elapsed)
	case recordService, recordSlice, recordNamespace, recordPod:
		put := in.object(what, r.kinds)
		if r.store != nil && in.done() {
			put(r.store, r.now)
		}
		r.objects++
	default:
		return errRecord
	}
	if !in.done() {
		return errRecord
	}
	return nil
}

// finish marks the kinds as restored.
func (r *restorer) finish() {
	for k := range Kind(kindCount) {
		if r.kinds&(1<<k) != 0 {
			r.store.ConfirmFresh(k, r.store.BootTime(r.confirmed[k]))
			r.store.states[k].restored.Store(true)
		}
	}
}

// A recordReader decodes a record. After an error, malformed is set and all methods return zero values.
type recordReader struct {
	rest      []byte
	malformed bool
}

// done reports whether the whole record was decoded without an error.
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

// number reads a number up to most.
func (r *recordReader) number(most uint64) uint64 {
	n, length := binary.Uvarint(r.rest)
	if r.malformed || length <= 0 || n > most {
		r.malformed = true
		return 0
	}
	r.rest = r.rest[length:]
	return n
}

// length reads the length of a text or list. It is at most the number of remaining bytes, as each item takes at least one.
func (r *recordReader) length() int { return int(r.number(uint64(len(r.rest)))) }

// bytes reads a text or a packed address.
func (r *recordReader) bytes() []byte {
	n := r.length()
	if r.malformed || n > len(r.rest) {
		r.malformed = true
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *recordReader) text() string { return string(r.bytes()) }

func (r *recordReader) addr() netip.Addr {
	a, ok := netip.AddrFromSlice(r.bytes())
	r.malformed = r.malformed || !ok
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

// object decodes an object, whose kind must be in held, and returns a function that puts it into a store.
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
	svc := Service{Namespace: r.text(), Name: r.text(), Type: ServiceType(r.number(uint64(Unselected)))}
	svc.PublishNotReady = r.number(1) == 1
	svc.TTL = time.Duration(int64(r.number(uint64(maxTTL/time.Second)+1))-1) * time.Second
	svc.ExternalName = r.text()
	if svc.Type != ExternalName {
		svc.Addrs, svc.Ports = r.addrs(), r.ports()
	}
	if len(r.rest) > 0 {
		svc.ExternalHost, svc.ExternalAddrs, svc.Ports = r.text(), r.addrs(), r.ports()
	}
	return svc
}

func (r *recordReader) slice() Slice {
	sl := Slice{Namespace: r.text(), Name: r.text(), Service: r.text()}
	var zones []string
	for n := r.length(); n > 0 && !r.malformed; n-- {
		zones = append(zones, r.text())
		sl.Endpoints = append(sl.Endpoints, Endpoint{Zone: zones[len(zones)-1]}) // no address: packSlice makes no entry of it
	}
	for n := r.length(); n > 0 && !r.malformed; n-- {
		sl.Endpoints = append(sl.Endpoints, r.endpoint(zones))
	}
	if sl.Ports = r.ports(); len(r.rest) > 0 {
		sl.Cluster = r.text()
		r.malformed = r.malformed || sl.Cluster == ""
	}
	return sl
}

// endpoint decodes an entry of a slice.
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
