// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"encoding/binary"
	"math"
	"strings"
	"time"
)

// DumpVersion is the version of the records that Dump makes.
const DumpVersion = 1

// What a record of a dump is: its first octet. Behind it stand, for
//
//	a view       kind, and for how long it has not been proven right, in ns
//	a service    namespace, name, type, whether endpoints are published unready, TTL in seconds and one, TTL or 0, alias, addresses, ports
//	a slice      namespace, name, service, topology zones, entries, ports
//	a namespace  name
//	a pod        namespace, name, addresses
//
// Numbers are as encoding/binary's Uvarint, texts and lists have their length before them. An address is its octets with
// their number before them. An entry is an address, a mark as in [slice], and its own name if the mark says that it has one.
const (
	recordView byte = iota + 1
	recordService
	recordSlice
	recordNamespace
	recordPod
)

// Dump gives what the store holds of the kinds whose view is complete, or was restored, as records for [Store.Restore],
// of each kind the view first. It keeps no writer waiting: each record is of one moment, and all of them are not. The first
// error of emit ends it. emit must not keep the record.
func (s *Store) Dump(now time.Time, emit func(record []byte) error) error {
	d := dumper{emit: emit}
	for _, k := range []Kind{Namespaces, Slices, Pods, Services} {
		if !s.Synced(k) && !s.Restored(k) {
			continue
		}
		age := s.Age(k, now)
		if age == math.MaxInt64 {
			continue // nobody ever said that it was right
		}
		d.beginRecord(recordView)
		d.number(uint64(k))
		d.number(uint64(age))
		d.emitRecord()
		d.kind(s, k)
	}
	return d.err
}

// A dumper makes records.
type dumper struct {
	emit func([]byte) error
	buf  []byte
	err  error
}

func (d *dumper) kind(s *Store, k Kind) {
	switch k {
	case Services:
		s.nodes.each(func(_ uint32, n *node) bool { return n.svc == nil || n.svc.refused || d.service(n.key, n.svc) })
	case Slices:
		s.slices.each(func(_ uint32, sl *slice) bool { return sl.refused() || d.slice(sl) })
	case Namespaces:
		s.namespaces.each(func(_ uint32, n *namespace) bool { return !n.declared.Load() || d.namespace(n) })
	case Pods:
		s.pods.each(func(_ uint32, p *pod) bool { return d.pod(p) })
	}
}

func (d *dumper) beginRecord(what byte) { d.buf = append(d.buf[:0], what) }

// end gives the record out, and tells whether to go on.
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
		d.text(dotted(s.data))
		return d.emitRecord()
	}
	d.text("")
	d.addrs(s.addrs(4), s.addrs(16))
	d.ports(s.ports())
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

// dotted is a name in wire form, with or without the root's label, as text that ends without a dot.
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
