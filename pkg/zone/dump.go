// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"encoding/binary"
	"errors"
	"iter"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// DumpVersion is the format version of Dump.
const DumpVersion = 2

// Types of records in a dump: each record's first byte. A view holds its kind, and the time since its last confirmation in
// ns. The methods of [codec] list the fields of an object.
const (
	recordView   = 1
	recordObject = 2 // plus the kind
)

// Dump passes the store's content to emit, as records for [Store.Restore]. It includes the kinds that are synced or
// restored, each kind's view first. It blocks no writer: each record is consistent, the dump as a whole is not. Dump stops
// at the first error of emit. emit must not keep the record.
func (s *Store) Dump(now time.Time, emit func(record []byte) error) error {
	var c codec
	for _, k := range []Kind{Namespaces, Slices, Pods, Services} {
		age := s.Age(k, now)
		if !s.Synced(k) && !s.Restored(k) || age == math.MaxInt64 { // incomplete, or never confirmed
			continue
		}
		c.buf = append(c.buf[:0], recordView)
		c.view(&k, &age)
		if err := emit(c.buf); err != nil {
			return err
		}
		for o := range s.objects(k) {
			c.buf, c.zones = append(c.buf[:0], recordObject+byte(k)), c.zones[:0]
			c.object(o)
			if err := emit(c.buf); err != nil {
				return err
			}
		}
	}
	return nil
}

// objects returns the objects of the kind: a *Service, *Slice, *Pod, or the name of a Namespace as *string. A refused one
// is left out: the next process would take it for an empty one.
func (s *Store) objects(k Kind) iter.Seq[any] {
	return func(yield func(any) bool) {
		switch k {
		case Services:
			eachObject(&s.nodes, (*node).object, yield)
		case Slices:
			eachObject(&s.slices, (*slice).object, yield)
		case Namespaces:
			eachObject(&s.namespaces, (*namespace).object, yield)
		case Pods:
			eachObject(&s.pods, func(p *pod) any { return &Pod{Namespace: p.namespace, Name: p.name, Addrs: unpackAddrs(p.addrs)} }, yield)
		}
	}
}

// eachObject yields the object of each record, if it has one.
func eachObject[T any](from *table[T], object func(*T) any, yield func(any) bool) {
	for record := range from.all() {
		if o := object(record); o != nil && !yield(o) {
			return
		}
	}
}

func (n *node) object() any {
	if n.svc == nil || n.svc.refused {
		return nil
	}
	return n.svc.unpack(n.key)
}

func (s *slice) object() any {
	if s.refused() {
		return nil
	}
	return s.unpack()
}

func (n *namespace) object() any {
	if !n.declared.Load() {
		return nil
	}
	name := n.label[1:]
	return &name
}

func (s *service) unpack(key string) *Service {
	svc := &Service{Type: s.typ, PublishNotReady: s.publish, TTL: time.Duration(s.ttl) * time.Second}
	svc.Namespace, svc.Name = splitKey(key)
	if s.typ == ExternalName {
		svc.ExternalName = dotted(s.data)
		return svc
	}
	svc.Addrs, svc.Ports = unpackAddrs(s.addrs), s.ports().unpack()
	return svc
}

// unpack returns the slice with one endpoint for each entry.
func (s *slice) unpack() *Slice {
	sl := &Slice{Name: s.name, Ports: s.ports().unpack(), Endpoints: make([]Endpoint, s.count())}
	sl.Namespace, sl.Service = splitKey(s.key)
	addrs, zones := unpackAddrs(s.addrs), []string{""}
	for list := s.data[s.zonesAt:s.portsAt]; list != ""; list = list[1+int(list[0]):] {
		zones = append(zones, dotted(list[1:1+int(list[0])]))
	}
	for e := range sl.Endpoints {
		mark := s.mark(e)
		sl.Endpoints[e] = Endpoint{Addrs: addrs[e : e+1], Zone: zones[mark&markZone], Ready: mark&markReady != 0}
		switch {
		case mark&markHost != 0:
			sl.Endpoints[e].Hostname = s.label(e)
		case mark&markPod != 0:
			sl.Endpoints[e].Pod = s.label(e)
		}
	}
	return sl
}

func (l portList) unpack() (ports []Port) {
	for ; l != ""; l = l.rest() {
		ports = append(ports, Port{Name: l.name(), Protocol: l.protocol(), Number: l.number()})
	}
	return ports
}

// dotted converts a name in wire form, with or without the root label, to text without a trailing dot.
func dotted(name string) string {
	var labels []string
	for ; name != "" && name[0] != 0; name = name[1+int(name[0]):] {
		labels = append(labels, name[1:1+int(name[0])])
	}
	return strings.Join(labels, ".")
}

// ErrTooOld means that the dump's last confirmation is too old.
var ErrTooOld = errors.New("the cluster data in the dump is too old")

var errRecord = errors.New("invalid record")

// Restore loads the records of [Store.Dump] into an empty store, and returns the number of objects. passed is the time
// since the dump. The restored kinds count as stale, whatever their age, until SetSynced is called. Restore loads nothing
// if a record is invalid, or, with [ErrTooOld], if a kind's last confirmation is older than most. Observers are not
// notified: nothing changed.
func (s *Store) Restore(records iter.Seq[[]byte], passed, most time.Duration, now time.Time) (objects int, err error) {
	s.mute(true)
	defer s.mute(false)
	ages := make(map[Kind]time.Duration, kindCount)
	if _, err := decodeAll(records, ages, func(any) {}); err != nil {
		return 0, err
	}
	for _, age := range ages {
		if age > most-passed {
			return 0, ErrTooOld
		}
	}
	objects, err = decodeAll(records, ages, func(o any) { put(s, o, now) })
	for k, age := range ages {
		s.ConfirmFresh(k, s.BootTime(now.Add(-age-passed)))
		s.states[k].restored.Store(true)
	}
	return objects, err
}

// decodeAll decodes the views into ages, passes the objects to put, and returns their number.
func decodeAll(records iter.Seq[[]byte], ages map[Kind]time.Duration, put func(any)) (objects int, err error) {
	clear(ages)
	for record := range records {
		o, err := decode(record, ages)
		if err != nil {
			return 0, err
		}
		if o != nil {
			objects++
			put(o)
		}
	}
	return objects, nil
}

// mute turns notifications off or on.
func (s *Store) mute(off bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observer.muted = off
}

// put puts an object of a dump.
func put(s *Store, o any, now time.Time) {
	switch o := o.(type) {
	case *Service:
		s.PutService(*o, now)
	case *Slice:
		s.PutSlice(*o, now)
	case *string:
		s.PutNamespace(*o, now)
	case *Pod:
		s.PutPod(*o, now)
	}
}

// decode decodes an object, or a view into ages and returns nil. ages has the views so far: an object needs its kind's.
func decode(record []byte, ages map[Kind]time.Duration) (o any, err error) {
	if len(record) == 0 {
		return nil, errRecord
	}
	c := codec{decoding: true, buf: record[1:]}
	kind := Kind(record[0] - recordObject)
	switch _, viewed := ages[kind]; {
	case record[0] == recordView:
		var age time.Duration
		c.view(&kind, &age)
		ages[kind] = age
	case viewed:
		o = []any{new(Service), new(Slice), new(string), new(Pod)}[kind]
		c.object(o)
	default:
		return nil, errRecord
	}
	if c.malformed || len(c.buf) > 0 {
		return nil, errRecord
	}
	return o, nil
}

// A codec encodes or decodes the fields of one record, in the same order. Numbers are encoding/binary's Uvarint. Texts and
// lists are preceded by their length. After an error in decoding, it is malformed and decodes zeros.
type codec struct {
	decoding  bool
	buf       []byte // encoded so far, or the rest to decode
	malformed bool
	zones     []string // topology zones so far
}

// number encodes or decodes a number up to most.
func number[T ~uint8 | ~uint16 | ~int | ~int64](c *codec, n *T, most uint64) {
	if !c.decoding {
		c.buf = binary.AppendUvarint(c.buf, uint64(*n))
		return
	}
	value, length := binary.Uvarint(c.buf)
	if c.malformed || length <= 0 || value > most {
		c.malformed = true
		return
	}
	*n, c.buf = T(value), c.buf[length:]
}

func (c *codec) flag(on *bool) {
	n := 0
	if *on {
		n = 1
	}
	number(c, &n, 1)
	*on = n == 1
}

func (c *codec) text(s *string) {
	n := len(*s)
	number(c, &n, uint64(len(c.buf)))
	switch {
	case !c.decoding:
		c.buf = append(c.buf, *s...)
	case n > len(c.buf):
		c.malformed = true
	default:
		*s, c.buf = string(c.buf[:n]), c.buf[n:]
	}
}

// list encodes or decodes a list. Each item takes at least one byte.
func list[T any](c *codec, items *[]T, item func(*T)) {
	n := len(*items)
	number(c, &n, uint64(len(c.buf)))
	for i := 0; i < n && !c.malformed; i++ {
		if c.decoding {
			*items = append(*items, *new(T))
		}
		item(&(*items)[i])
	}
}

func (c *codec) view(k *Kind, age *time.Duration) {
	number(c, k, kindCount-1)
	number(c, age, 1<<62)
}

// object encodes or decodes what [Store.objects] returns.
func (c *codec) object(o any) {
	switch o := o.(type) {
	case *Service:
		c.text(&o.Namespace)
		c.text(&o.Name)
		number(c, &o.Type, uint64(ExternalName))
		c.flag(&o.PublishNotReady)
		ttl := int(o.TTL/time.Second) + 1 // 0: the zone's
		number(c, &ttl, uint64(maxTTL/time.Second)+1)
		o.TTL = time.Duration(ttl-1) * time.Second
		c.text(&o.ExternalName)
		list(c, &o.Addrs, c.addr)
		list(c, &o.Ports, c.port)
	case *Slice:
		c.text(&o.Namespace)
		c.text(&o.Name)
		c.text(&o.Service)
		list(c, &o.Endpoints, c.endpoint)
		list(c, &o.Ports, c.port)
	case *string:
		c.text(o)
	case *Pod:
		c.text(&o.Namespace)
		c.text(&o.Name)
		list(c, &o.Addrs, c.addr)
	}
}

func (c *codec) addr(a *netip.Addr) {
	if !c.decoding {
		c.buf, _ = a.AppendBinary(append(c.buf, byte(a.BitLen()/8)))
		return
	}
	var packed string
	c.text(&packed)
	if *a = unpackAddr(packed); !a.IsValid() {
		c.malformed = true
	}
}

func (c *codec) port(p *Port) {
	c.text(&p.Name)
	number(c, &p.Protocol, math.MaxUint8)
	number(c, &p.Number, math.MaxUint16)
}

func (c *codec) endpoint(e *Endpoint) {
	list(c, &e.Addrs, c.addr)
	c.text(&e.Hostname)
	c.text(&e.Pod)
	c.flag(&e.Ready)
	n := 1 + slices.Index(c.zones, e.Zone) // 0: a zone that the record has not had yet; it follows
	if number(c, &n, uint64(len(c.zones))); n > 0 {
		e.Zone = c.zones[n-1]
		return
	}
	c.text(&e.Zone)
	c.zones = append(c.zones, e.Zone)
}
