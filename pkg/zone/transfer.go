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

// Complete reports whether the store has everything that Records lists.
func (z *Zone) Complete(now time.Time) bool {
	r := reply{z: z, now: now}
	return r.freshnessOf(needsServices) >= stale && r.freshnessOf(needsSlices) != unsynced
}

// A Secondary is the client of a transfer.
type Secondary struct {
	Addr      netip.Addr
	Serial    uint32 // of the version that it has
	HasSerial bool
}

// Records calls emit with the records of a transfer to a client. It stops at the first error of emit and returns it. emit may
// block; no lock is held.
//
// The whole zone is the SOA record, the others, the SOA record again (RFC 5936 section 2.2). The records are those of the
// last of [Versions], or without versions the current ones. They are ordered by service name. Names that are answered but not
// listed anywhere are omitted: those of pods, zonal names, ports without underscores.
//
// If an earlier version of the client is kept, emit gets the difference instead, incremental is true, and the order is that of
// RFC 1995 section 4: the new SOA record, the old one, deleted records, the new SOA record, added records, the new SOA record.
// A difference with more records than the zone is not sent.
func (z *Zone) Records(now time.Time, c Secondary, emit func(Record) error) (incremental bool, err error) {
	if !z.Complete(now) {
		return false, ErrNotReady
	}
	frozen := *z // whether servers of the fallback are known now must not matter
	frozen.cfg.HasFallback = func() bool { return z.hasFallback }
	v := z.cfg.Store.versions.view(z, c)
	t := transfer{z: &frozen, now: now, emit: emit, serial: v.serial}
	if incremental = v.given && t.isShorter(&v); incremental {
		err = t.difference(v.changes, c.Serial)
	} else {
		err = t.whole(v.nodes)
	}
	if err == nil {
		z.cfg.Store.versions.give(givenVersion{z.config, c.Addr, v.serial})
	}
	return incremental, err
}

// exposed returns the node if the zone has records of it, else nil. n may be nil.
func (z *Zone) exposed(n *node) *node {
	if n == nil || n.svc == nil || !z.exposesNode(n) {
		return nil
	}
	return n
}

// A transfer is a running transfer.
type transfer struct {
	z      *Zone
	now    time.Time
	serial uint32
	emit   func(Record) error
	q      wire.Query
	query  []byte // the query
	dst    []byte // the answer
}

func (t *transfer) emitSOA(serial uint32) error {
	whole := slices.Clone(t.z.soaReverse)
	data := whole[fixedLen:]
	binary.BigEndian.PutUint32(data[len(data)-soaTail:], serial)
	return t.emit(Record{Owner: t.z.domain, Type: wire.TypeSOA, TTL: binary.BigEndian.Uint32(whole[4:]), Data: data})
}

// whole emits the zone with the nodes.
func (t *transfer) whole(nodes []*node) error {
	slices.SortFunc(nodes, func(a, b *node) int { return strings.Compare(a.key, b.key) })
	if err := t.emitSOA(t.serial); err != nil {
		return err
	}
	if err := t.zoneRecords(); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := t.serviceRecords(n); err != nil {
			return err
		}
	}
	return t.emitSOA(t.serial)
}

// difference emits what has changed since the version with the serial number.
func (t *transfer) difference(changes []change, since uint32) error {
	if err := t.emitSOA(t.serial); err != nil {
		return err
	}
	if err := t.emitSOA(since); err != nil {
		return err
	}
	for _, c := range changes {
		if err := t.recordsWithout(c.old, c.new); err != nil {
			return err
		}
	}
	if err := t.emitSOA(t.serial); err != nil {
		return err
	}
	for _, c := range changes {
		if err := t.recordsWithout(c.new, c.old); err != nil {
			return err
		}
	}
	return t.emitSOA(t.serial)
}

// recordsWithout emits the records of a node that another one does not have. Either may be nil.
func (t *transfer) recordsWithout(n, other *node) error {
	if n == nil {
		return nil
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
		_ = t.serviceRecords(other) // it returns errors of emit only
	}
	t.emit = func(r Record) error {
		if _, ok := held[string(key(&r))]; ok {
			return nil
		}
		return emit(r)
	}
	return t.serviceRecords(n)
}

// errEnough ends a count.
var errEnough = errors.New("enough records")

// isShorter reports whether the difference has no more records than the zone. It computes no more records of the zone than
// the difference has.
func (t *transfer) isShorter(v *view) bool {
	emit, n := t.emit, 0
	defer func() { t.emit = emit }()
	t.emit = func(Record) error {
		n++
		return nil
	}
	_ = t.difference(v.changes, t.serial)
	t.emit = func(Record) error {
		if n--; n < 0 {
			return errEnough
		}
		return nil
	}
	return t.whole(v.nodes) != nil
}

// zoneRecords emits the records that exist without any service.
func (t *transfer) zoneRecords() error {
	for _, q := range []struct {
		labels string
		rrtype uint16
	}{{"", wire.TypeNS}, {t.z.server, wire.TypeA}, {t.z.server, wire.TypeAAAA}, {labelsVersion, wire.TypeTXT}} {
		if err := t.answer(nil, q.labels, q.rrtype); err != nil {
			return err
		}
	}
	return nil
}

// serviceRecords emits the records of one service: its name, its ports and its endpoints.
func (t *transfer) serviceRecords(n *node) error {
	if t.z.cfg.External && !n.svc.endpointsIn(t.z) {
		return t.externalRecords(n)
	}
	base := n.key + t.z.tree
	if n.svc.typ == ExternalName {
		return t.answer(n, base, wire.TypeCNAME)
	}
	if err := t.nameRecords(n, base); err != nil {
		return err
	}
	for _, port := range portLabels(portLists(n)) {
		if err := t.answer(n, port+base, wire.TypeSRV); err != nil {
			return err
		}
	}
	if t.z.inSet() && n.svc.typ == ClusterIP {
		return nil // its endpoints have no names
	}
	return t.endpointRecords(n, base)
}

// endpointRecords emits the records of the service's endpoints, whose names end with base.
func (t *transfer) endpointRecords(n *node, base string) error {
	r := reply{z: t.z, message: message{steps: math.MaxInt}}
	sel, holders := r.selectAll(n), make(map[string][]*slice)
	var labels []string // in the order of the slices
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
		if err := t.nameRecords(n.withSlices(holders[label]), label+base); err != nil {
			return err
		}
	}
	return nil
}

// nameRecords emits the addresses and SRV records of a name.
func (t *transfer) nameRecords(n *node, labels string) error {
	for _, rrtype := range []uint16{wire.TypeA, wire.TypeAAAA, wire.TypeSRV} {
		if err := t.answer(n, labels, rrtype); err != nil {
			return err
		}
	}
	return nil
}

// portLists returns the ports of the node.
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

// answer emits the records of a type at a name of the node or, if it is nil, of the zone. labels are left of the domain.
// It answers a query as for a client, but without a limit on the records.
func (t *transfer) answer(n *node, labels string, rrtype uint16) error {
	if len(labels)+len(t.z.domain) > wire.MaxName {
		return nil // the name is too long
	}
	t.query = append(t.query[:0], 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	t.query = append(append(t.query, labels...), t.z.domain...)
	t.query = binary.BigEndian.AppendUint16(t.query, rrtype)
	t.query = binary.BigEndian.AppendUint16(t.query, wire.ClassIN)
	t.q.Parse(t.query)
	r := reply{z: t.z, now: t.now, ownSlices: true, message: message{q: &t.q, maxSize: math.MaxInt, steps: math.MaxInt, dst: t.dst[:0], ede: wire.EDENone}}
	if !r.splitName(t.q.Name(), wire.HeaderLen) {
		return nil // an excluded name
	}
	r.begin()
	off := len(r.dst)
	if n == nil {
		_, _ = r.lookup()
	} else if alias, _ := r.service(n); alias != "" {
		r.appendAlias(alias)
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
		if err := t.emit(record); err != nil {
			return err
		}
	}
	return nil
}
