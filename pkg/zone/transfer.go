// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"encoding/binary"
	"errors"
	"math"
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

// Records calls emit with every record of the zone in the order of a transfer (RFC 5936 section 2.2): the SOA record, the
// others, the SOA record again. It stops at the first error of emit and returns it. emit may block; no lock is held.
//
// Every service has its state at the start of the transfer. The serial is of that moment or slightly older, so a secondary
// with the serial has everything up to it. Records are ordered by service name; the order is stable while the names are.
// Names that are answered but not listed anywhere are omitted: those of pods, zonal names, ports without underscores.
func (z *Zone) Records(now time.Time, emit func(Record) error) error {
	if !z.Complete(now) {
		return ErrNotReady
	}
	t := transfer{z: z, now: now, emit: emit}
	soa := t.soa()
	nodes := t.nodes()
	if err := emit(soa); err != nil {
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
	return emit(soa)
}

// A transfer is a running transfer.
type transfer struct {
	z     *Zone
	now   time.Time
	emit  func(Record) error
	q     wire.Query
	query []byte // the query
	dst   []byte // the answer
}

func (t *transfer) soa() Record {
	whole := slices.Clone(t.z.soaReverse)
	data := whole[fixedLen:]
	binary.BigEndian.PutUint32(data[len(data)-soaTail:], t.z.cfg.Store.Serial())
	return Record{Owner: t.z.domain, Type: wire.TypeSOA, TTL: binary.BigEndian.Uint32(whole[4:]), Data: data}
}

// nodes returns the exposed services by name.
func (t *transfer) nodes() []*node {
	var nodes []*node
	for n := range t.z.cfg.Store.nodes.all() {
		if n.svc != nil && t.z.exposesNode(n) {
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, func(a, b *node) int { return strings.Compare(a.key, b.key) })
	return nodes
}

// zoneRecords emits the records that exist without any service.
func (t *transfer) zoneRecords() error {
	for _, q := range []struct {
		labels string
		rrtype uint16
	}{{"", wire.TypeNS}, {labelsNS, wire.TypeA}, {labelsNS, wire.TypeAAAA}, {labelsVersion, wire.TypeTXT}} {
		if err := t.answer(nil, q.labels, q.rrtype); err != nil {
			return err
		}
	}
	return nil
}

// serviceRecords emits the records of one service: its name, its ports and its endpoints.
func (t *transfer) serviceRecords(n *node) error {
	base := n.key + treeService
	if n.svc.typ == ExternalName {
		return t.answer(n, base, wire.TypeCNAME)
	}
	if err := t.nameRecords(n, base); err != nil {
		return err
	}
	for _, port := range t.ports(n) {
		if err := t.answer(n, port+base, wire.TypeSRV); err != nil {
			return err
		}
	}
	if t.z.inSet() && n.svc.typ == ClusterIP {
		return nil // its endpoints have no names
	}
	r := reply{z: t.z, message: message{steps: math.MaxInt}}
	sel, seen := r.selectAll(n), make(map[string]bool)
	var err error
	sel.walk(0, func(s *slice, e int) bool {
		if label := string(sel.appendName(nil, s, e)); !seen[label] {
			seen[label] = true
			err = t.nameRecords(n, label+base)
		}
		return err == nil
	})
	return err
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

// ports returns the distinct port labels of the node, in the form of RFC 2782.
func (t *transfer) ports(n *node) []string {
	lists := []portList{}
	if n.svc.typ == ClusterIP {
		lists = append(lists, n.svc.ports())
	} else {
		for _, s := range n.slices {
			lists = append(lists, s.ports())
		}
	}
	var labels []string
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
	r := reply{z: t.z, now: t.now, message: message{q: &t.q, maxSize: math.MaxInt, steps: math.MaxInt, dst: t.dst[:0], ede: wire.EDENone}}
	if !r.splitName(t.q.Name(), wire.HeaderLen) {
		return nil // an excluded name
	}
	r.begin()
	off := len(r.dst)
	if n == nil {
		_, _ = r.lookup()
	} else if svc, _ := r.service(n); svc != nil {
		r.appendAlias(svc)
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
			record.Data = append([]byte(labelsNS), t.z.domain...)
		}
		if err := t.emit(record); err != nil {
			return err
		}
	}
	return nil
}
