// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"bytes"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// The trees of reverse names in canonical wire form (RFC 1035 section 3.5,
// RFC 3596 section 2.5).
const (
	tree4 = "\x07in-addr\x04arpa\x00"
	tree6 = "\x03ip6\x04arpa\x00"
)

// parseReverse reads the address that a reverse name stands for into buf. The
// result has 4 or 16 octets, or none if the name is of no whole address. tree is
// where the tree's name begins.
func parseReverse(name []byte, buf *[16]byte) (addr []byte, tree int) {
	switch {
	case bytes.HasSuffix(name, []byte(tree4)):
		tree = len(name) - len(tree4)
		return parseReverse4(name[:tree], buf), tree
	case bytes.HasSuffix(name, []byte(tree6)):
		tree = len(name) - len(tree6)
		return parseReverse6(name[:tree], buf), tree
	}
	return nil, 0
}

// parseReverse4 reads four labels of decimal numbers, the last octet first.
func parseReverse4(labels []byte, buf *[16]byte) []byte {
	for i := 3; i >= 0; i-- {
		if len(labels) == 0 || int(labels[0]) >= len(labels) {
			return nil
		}
		n, ok := decimal(labels[1 : 1+labels[0]])
		if !ok {
			return nil
		}
		buf[i] = n
		labels = labels[1+labels[0]:]
	}
	if len(labels) != 0 {
		return nil
	}
	return buf[:4]
}

// decimal reads an octet written without leading zeros.
func decimal(text []byte) (byte, bool) {
	if len(text) == 0 || len(text) > 3 || text[0] == '0' && len(text) > 1 {
		return 0, false
	}
	n := 0
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return byte(n), n < 256
}

// parseReverse6 reads thirty-two labels of one hexadecimal digit, the last first.
func parseReverse6(labels []byte, buf *[16]byte) []byte {
	if len(labels) != 64 {
		return nil
	}
	for i := range 32 {
		digit := hexDigit(labels[2*i+1])
		if labels[2*i] != 1 || digit < 0 {
			return nil
		}
		octet := &buf[15-i/2]
		if i%2 == 0 {
			*octet = byte(digit)
		} else {
			*octet |= byte(digit << 4)
		}
	}
	return buf[:]
}

// reverse answers a name outside of the domain: that of an address the store
// knows or, if it knows none, that is in a cluster range.
func (z *Zone) reverse(q *wire.Query, turn uint32, now time.Time, dst []byte, last bool) ([]byte, Result) {
	foreign := Result{Verdict: Foreign, EDE: wire.EDENone}
	var buf [16]byte
	addr, tree := parseReverse(q.Name(), &buf)
	if addr == nil {
		return dst, foreign
	}
	r := reply{
		z: z, q: q, turn: turn, now: now, last: last, dst: dst, start: len(dst), room: maxReply, ede: wire.EDENone,
		name: q.Name(), at: wire.HeaderLen, apex: wire.HeaderLen + tree, reverse: true, ttl: z.ttl,
	}
	r.begin()
	on := onServices
	if n := z.store.serviceAt(addr, z); n != nil {
		r.appendPTR(nil, n.key)
	} else if r.endpointsAt(addr); r.answer > 0 {
		on = onEndpoints
	}
	var res Result
	switch {
	case r.answer > 0 && q.Type == wire.TypePTR:
		res = r.positive(on)
	case r.answer > 0:
		r.clear()
		res = r.nodata(onRecord)
	case !z.inRanges(addr):
		return dst, foreign
	case !z.allSlices:
		res = r.outside(onEndpoints)
	default:
		res = r.nxdomain(onEndpoints)
	}
	return r.dst, res
}

// clear takes the records back, and with them that there were more.
func (r *reply) clear() {
	r.dst = r.dst[:r.start+questionEnd(r.q)]
	r.dst[r.start+2] &^= bitTruncated
	r.answer = 0
}

func (z *Zone) inRanges(addr []byte) bool {
	a, _ := netip.AddrFromSlice(addr)
	for _, p := range z.ranges {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// appendPTR appends a PTR record for the endpoint's label, with its length, if
// there is one, below the service of the node's key. It is false when the message
// is full.
func (r *reply) appendPTR(label []byte, key string) bool {
	const tree = "\x03svc"
	size := len(label) + len(key) + len(tree) + len(r.z.domain)
	if size > wire.MaxName {
		return true // a name that cannot be
	}
	if r.full(2 + fixedLen + size) {
		return false
	}
	r.appendOwner(r.at)
	r.appendFixed(wire.TypePTR, r.ttl, size)
	r.dst = append(append(r.dst, label...), key...)
	r.dst = append(append(r.dst, tree...), r.z.domain...)
	r.answer++
	return true
}

// shown tells whether the names of the node are the zone's to give.
func (z *Zone) shown(n *node) bool {
	label := keyNamespace(n.key)
	if z.namespaces != nil {
		if _, ok := z.namespaces[label]; !ok {
			return false
		}
	}
	if !z.known {
		return true
	}
	var buf [64]byte
	space, _ := z.store.findNamespace(buf[:copy(buf[:], label)])
	return space != nil && space.declared.Load()
}

// serviceAt gives the node of the service that has the address, or nil.
func (s *Store) serviceAt(addr []byte, z *Zone) *node {
	hash := s.hash(addr)
	t := s.nodesByAddr.table.Load()
	for pos := t.home(hash); ; {
		id, after, ok := t.next(hash, pos)
		if !ok {
			return nil
		}
		if n := s.nodes.load(id); n != nil && n.svc != nil && n.svc.holds(addr) && z.shown(n) {
			return n
		}
		pos = after
	}
}

// endpointsAt appends a PTR record for every name that an endpoint with the
// address has.
func (r *reply) endpointsAt(addr []byte) {
	s := r.z.store
	hash := s.hash(addr)
	t := s.slicesByAddr.table.Load()
	for pos := t.home(hash); ; {
		id, after, ok := t.next(hash, pos)
		if !ok {
			return
		}
		if sl := s.slices.load(id); sl != nil && !r.sliceAt(sl, addr) {
			return
		}
		pos = after
	}
}

// sliceAt appends the PTR records for the entries of a slice with the address, if
// there are any. It is false when the message is full.
func (r *reply) sliceAt(sl *slice, addr []byte) bool {
	var buf [2 * (1 + wire.MaxLabel)]byte
	n, _ := r.z.store.findNode(buf[:copy(buf[:], sl.key)])
	if n == nil || n.svc == nil || n.svc.kind == ExternalName || !r.z.shown(n) {
		return true
	}
	sel := r.selectAll(n)
	first, end := sl.at(addr)
	for e := first; e < end; e++ {
		if !sel.publish && sl.mark(e)&markReady == 0 {
			continue
		}
		var label [64]byte
		name := sel.appendName(label[:0], sl, e)
		if r.pointsTo(name, sl.key) {
			continue
		}
		if !r.appendPTR(name, sl.key) {
			return false
		}
	}
	return true
}

// pointsTo tells whether there is a PTR record to the name already.
func (r *reply) pointsTo(label []byte, key string) bool {
	records := r.dst[r.start+questionEnd(r.q):]
	for len(records) > 0 {
		data := records[2+fixedLen:]
		size := int(records[fixedLen])<<8 | int(records[fixedLen+1])
		if size >= len(label)+len(key) && string(data[:len(label)]) == string(label) && string(data[len(label):len(label)+len(key)]) == key {
			return true
		}
		records = data[size:]
	}
	return false
}
