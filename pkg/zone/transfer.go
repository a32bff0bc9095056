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

// ErrUnready says that the zone is not complete yet, so that it cannot be
// transferred.
var ErrNotReady = errors.New("zone is not complete yet")

// A Record is a resource record of class IN in wire form. Its slices are valid
// until the next one is made.
type Record struct {
	Owner []byte // canonical
	Type  uint16
	TTL   uint32 // seconds
	Data  []byte // names in it are whole
}

// Complete tells whether all is known that Records lists.
func (z *Zone) Complete(now time.Time) bool {
	r := reply{z: z, now: now}
	return r.freshnessOf(needsServices) >= stale && r.freshnessOf(needsSlices) != unsynced
}

// Records gives emit every record of the zone in the order of a transfer
// (RFC 5936 section 2.2): the SOA record, the others, the SOA record again. It
// ends at the first error of emit, which it returns. emit may wait; no lock is
// held.
//
// Every service is as it was when the transfer began, and the serial is that of
// the same moment or a little before, so that a secondary with the serial lacks
// nothing older. The order is that of the services' names and does not change
// while they do not. Names that are answered without being listed anywhere are
// left out: those of pods, zonal ones, ports without underscores.
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

// A transfer is one transfer under way.
type transfer struct {
	z     *Zone
	now   time.Time
	emit  func(Record) error
	q     wire.Query
	query []byte // the query
	dst   []byte // the answer
}

// soa is the zone's SOA record as it is now.
func (t *transfer) soa() Record {
	whole := slices.Clone(t.z.soaReverse) // which has no pointers
	data := whole[fixedLen:]
	binary.BigEndian.PutUint32(data[len(data)-soaTail:], t.z.store.Serial())
	return Record{Owner: t.z.domain, Type: wire.TypeSOA, TTL: binary.BigEndian.Uint32(whole[4:]), Data: data}
}

// nodes are the services that are shown, by name.
func (t *transfer) nodes() []*node {
	var nodes []*node
	t.z.store.nodes.each(func(_ uint32, n *node) bool {
		if n.svc != nil && t.z.exposes(n) {
			nodes = append(nodes, n)
		}
		return true
	})
	slices.SortFunc(nodes, func(a, b *node) int { return strings.Compare(a.key, b.key) })
	return nodes
}

// own emits what is there without any service.
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

// node emits the records of one service: its name's, its ports', its endpoints'.
func (t *transfer) serviceRecords(n *node) error {
	base := n.key + "\x03svc"
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
	sel := selection{node: n, publish: n.svc.publish, podNames: t.z.podNames, steps: math.MaxInt}
	seen := make(map[string]struct{})
	for c := (cursor{sel: &sel}); c.next(); {
		label := string(sel.appendName(nil, c.slice, c.entry))
		if _, ok := seen[label]; ok {
			continue
		}
		seen[label] = struct{}{}
		if err := t.nameRecords(n, label+base); err != nil {
			return err
		}
	}
	return nil
}

// name emits the addresses and SRV records of a name.
func (t *transfer) nameRecords(n *node, labels string) error {
	for _, rrtype := range []uint16{wire.TypeA, wire.TypeAAAA, wire.TypeSRV} {
		if err := t.answer(n, labels, rrtype); err != nil {
			return err
		}
	}
	return nil
}

// ports are the labels of the node's ports, as RFC 2782 has them, each once.
func (t *transfer) ports(n *node) []string {
	lists := []portList{}
	if n.svc.typ == ClusterIP {
		lists = append(lists, n.svc.ports())
	} else {
		for _, s := range n.slices {
			lists = append(lists, s.slice.ports())
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

// answer emits the records that a name, of the node or of the zone's own for none,
// has of the type. It is given by its labels left of the domain, and asked for as
// a client would, but for any number of records.
func (t *transfer) answer(n *node, labels string, rrtype uint16) error {
	if len(labels)+len(t.z.domain) > wire.MaxName {
		return nil // a name that cannot be
	}
	t.query = append(t.query[:0], 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	t.query = append(append(t.query, labels...), t.z.domain...)
	t.query = binary.BigEndian.AppendUint16(t.query, rrtype)
	t.query = binary.BigEndian.AppendUint16(t.query, wire.ClassIN)
	t.q.Parse(t.query)
	r := reply{z: t.z, q: &t.q, now: t.now, maxSize: math.MaxInt, steps: math.MaxInt, dst: t.dst[:0], ede: wire.EDENone}
	if !r.splitName(t.q.Name(), wire.HeaderLen) {
		return nil // a name apart
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
		const owner = 2 // a pointer to the question's name
		fixed := t.dst[off+owner:]
		size := int(binary.BigEndian.Uint16(fixed[8:]))
		off += owner + fixedLen + size
		record := Record{
			Owner: t.q.Name(), Type: rrtype, TTL: binary.BigEndian.Uint32(fixed[4:]),
			Data: fixed[fixedLen : fixedLen+size],
		}
		if rrtype == wire.TypeNS { // the only one that ends with a pointer
			record.Data = append([]byte(labelsNS), t.z.domain...)
		}
		if err := t.emit(record); err != nil {
			return err
		}
	}
	return nil
}
