// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// ErrNotReady means that the zone is not complete, so it cannot be transferred.
var ErrNotReady = errors.New("zone is not complete")

// A Record is a resource record of class IN in wire form. Its slices are valid until the next record.
type Record struct {
	Owner []byte // canonical
	Type  uint16
	TTL   uint32 // seconds
	Data  []byte // names in it are uncompressed
}

// A Secondary is the client of a transfer.
type Secondary struct {
	Addr      netip.Addr
	Serial    uint32 // serial number of the version that the client has
	HasSerial bool   // false: the client sent no serial number
}

// A transfer is one zone transfer that is running.
type transfer struct {
	z      *Zone
	now    time.Time
	serial uint32 // serial number of the version that is sent
	emit   func(Record) error
	err    error      // first error of emit, which ends the transfer; nil: none
	q      wire.Query // the query in the buffer below
	query  []byte     // buffer for queries, reused
	dst    []byte     // buffer for answers, reused
}

// send emits a record, unless there was an error.
func (t *transfer) send(r Record) {
	if t.err == nil {
		t.err = t.emit(r)
	}
}

func (t *transfer) sendSOA(serial uint32) {
	whole := slices.Clone(t.z.soaReverse)
	data := whole[fixedLen:]
	binary.BigEndian.PutUint32(data[len(data)-soaTail:], serial)
	t.send(Record{Owner: t.z.domain, Type: wire.TypeSOA, TTL: binary.BigEndian.Uint32(whole[4:]), Data: data})
}

// whole sends the whole zone: its own records and those of the nodes.
func (t *transfer) whole(nodes []*node) {
	slices.SortFunc(nodes, func(a, b *node) int { return strings.Compare(a.key, b.key) })
	t.sendSOA(t.serial)
	t.answer(nil, "", wire.TypeNS) // the records that exist without any service
	t.answer(nil, t.z.server, wire.TypeA)
	t.answer(nil, t.z.server, wire.TypeAAAA)
	t.answer(nil, labelsVersion, wire.TypeTXT)
	for _, n := range nodes {
		t.serviceRecords(n)
	}
	t.sendSOA(t.serial)
}

// difference sends what has changed since the version with the serial number.
func (t *transfer) difference(changes []change, since uint32) {
	t.sendSOA(t.serial)
	t.sendSOA(since)
	for _, c := range changes {
		t.recordsWithout(c.old, c.new)
	}
	t.sendSOA(t.serial)
	for _, c := range changes {
		t.recordsWithout(c.new, c.old)
	}
	t.sendSOA(t.serial)
}

// recordsWithout sends the records of node n that node other does not have. Either may be nil.
func (t *transfer) recordsWithout(n, other *node) {
	if n == nil {
		return
	}
	held := make(map[string]struct{})
	var buf []byte
	key := func(r *Record) []byte {
		buf = binary.BigEndian.AppendUint32(append(buf[:0], r.Owner...), r.TTL)
		return append(binary.BigEndian.AppendUint16(buf, r.Type), r.Data...)
	}
	emit := t.emit
	defer func() { t.emit = emit }()
	if other != nil {
		t.emit = func(r Record) error {
			held[string(key(&r))] = struct{}{}
			return nil
		}
		t.serviceRecords(other)
	}
	t.emit = func(r Record) error {
		if _, ok := held[string(key(&r))]; ok {
			return nil
		}
		return emit(r)
	}
	t.serviceRecords(n)
}

// errEnough ends the count in isShorter.
var errEnough = errors.New("enough records")

// isShorter reports whether the difference has fewer records than the zone. It computes no more of the zone's
// records than it needs.
func (t *transfer) isShorter(v *view) bool {
	emit, n := t.emit, 0
	defer func() { t.emit, t.err = emit, nil }()
	t.emit = func(Record) error {
		n++
		return nil
	}
	t.difference(v.changes, t.serial)
	t.emit = func(Record) error {
		if n--; n < 0 {
			return errEnough
		}
		return nil
	}
	t.whole(v.nodes)
	return t.err != nil
}

// serviceRecords sends the records of one service: its name, its ports and its endpoints.
func (t *transfer) serviceRecords(n *node) {
	switch base := n.key + t.z.tree; {
	case t.err != nil: // the transfer has ended
	case t.z.cfg.External && !n.svc.endpointsIn(t.z):
		t.externalRecords(n)
	case n.svc.typ == ExternalName:
		t.answer(n, base, wire.TypeCNAME)
	default:
		t.nameRecords(n, base)
		t.portRecords(n, portLists(n), base)
		if !t.z.inSet() || n.svc.typ != ClusterIP { // else its endpoints have no names
			t.endpointRecords(n, base)
		}
	}
}

// portRecords sends the SRV records of named ports.
func (t *transfer) portRecords(n *node, lists []portList, base string) {
	for _, port := range portLabels(lists) {
		t.answer(n, port+base, wire.TypeSRV)
	}
}

// endpointRecords sends the records of the service's endpoints, whose names end with base.
func (t *transfer) endpointRecords(n *node, base string) {
	r := reply{zoneName: zoneName{z: t.z}, message: message{steps: math.MaxInt}}
	sel, holders := newSelection(&r, n), make(map[string][]*slice)
	var labels []string // labels of the endpoints' names, in the order of the slices
	sel.walk(0, func(s *slice, e int) bool {
		label := string(sel.appendName(nil, s, e))
		of := holders[label]
		if of == nil {
			labels = append(labels, label)
		}
		if of == nil || of[len(of)-1] != s {
			holders[label] = append(of, s)
		}
		return true
	})
	for _, label := range labels {
		t.nameRecords(n.withSlices(holders[label]), label+base)
	}
}

// nameRecords sends the addresses and SRV records of a name.
func (t *transfer) nameRecords(n *node, labels string) {
	for _, rrtype := range []uint16{wire.TypeA, wire.TypeAAAA, wire.TypeSRV} {
		t.answer(n, labels, rrtype)
	}
}

// portLists returns the ports of the node's service or, if that is headless, the ports of each slice.
func portLists(n *node) (lists []portList) {
	if n.svc.typ == ClusterIP {
		return []portList{n.svc.ports()}
	}
	for _, s := range n.slices {
		lists = append(lists, s.ports())
	}
	return lists
}

// portLabels returns the distinct port labels of the lists, in the form of RFC 2782.
func portLabels(lists []portList) (labels []string) {
	for _, l := range lists {
		for ; l != ""; l = l.rest() {
			if name := l.name(); name != "" && len(name) < wire.MaxLabel {
				labels = append(labels, string(appendLabel(appendLabel(nil, "_"+name), "_"+l.protocol().String())))
			}
		}
	}
	slices.Sort(labels)
	return slices.Compact(labels)
}

// answer sends the records of a type at the name with labels left of the domain. The name belongs to the node or, if that is nil, to
// the zone itself. It answers a query as for a client, but without a limit on the records.
func (t *transfer) answer(n *node, labels string, rrtype uint16) {
	if t.err != nil || len(labels)+len(t.z.domain) > wire.MaxName {
		return // the transfer has ended, or the name is too long
	}
	t.query = append(t.query[:0], 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	t.query = append(append(t.query, labels...), t.z.domain...)
	t.query = binary.BigEndian.AppendUint16(t.query, rrtype)
	t.query = binary.BigEndian.AppendUint16(t.query, wire.ClassIN)
	t.q.Parse(t.query)
	r := reply{zoneName: zoneName{z: t.z}, now: t.now, ownSlices: true, message: message{q: &t.q, maxSize: math.MaxInt, steps: math.MaxInt, dst: t.dst[:0], ede: wire.EDENone}}
	if !r.splitName(t.q.Name(), wire.HeaderLen) {
		return // the zone excludes the name
	}
	r.begin()
	off := len(r.dst)
	if n == nil {
		_, _ = r.lookup()
	} else {
		s := serviceName{reply: &r, n: n, left: r.labels - t.z.depth}
		if alias, _ := s.resolve(); alias != "" {
			r.appendAlias(alias)
		}
	}
	t.dst = r.dst
	for range r.answer {
		const owner = 2 // size of a pointer to the question's name
		fixed := t.dst[off+owner:]
		size := int(binary.BigEndian.Uint16(fixed[8:]))
		off += owner + fixedLen + size
		record := Record{
			Owner: t.q.Name(), Type: rrtype, TTL: binary.BigEndian.Uint32(fixed[4:]),
			Data: fixed[fixedLen : fixedLen+size],
		}
		if rrtype == wire.TypeNS { // the only type whose data ends with a pointer
			record.Data = append([]byte(t.z.server), t.z.domain...)
		}
		t.send(record)
	}
}

// externalRecords sends the records of a service in an external zone: none if it has no external address or host name.
func (t *transfer) externalRecords(n *node) {
	e := n.svc.outside()
	if e.alias == "" {
		t.nameRecords(n, n.key)
	} else {
		t.answer(n, n.key, wire.TypeCNAME)
	}
	t.portRecords(n, []portList{e.ports()}, n.key)
}
