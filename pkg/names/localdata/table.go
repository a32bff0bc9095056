// SPDX-License-Identifier: Apache-2.0

package localdata

import (
	"encoding/binary"
	"net/netip"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	// maxAddresses bounds the addresses of one name and family, so that they fit a 64 KiB message.
	maxAddresses = 1024
	// maxPointers bounds the PTR records of one address. Block lists give all their names the same address.
	maxPointers = 64
	// maxReply bounds the bytes of an answer, before the OPT record.
	maxReply = wire.MaxMessage - 128
)

// A table holds all names with addresses. It is immutable.
type table struct {
	names        map[string]addresses // by canonical name
	pointers     map[string]string    // by canonical reverse name: concatenated host names
	hasWildcards bool                 // some names begin with an asterisk label
	addresses    int                  // number of addresses; one counts for each of its names
}

// addresses are the packed addresses of one name.
type addresses struct {
	v4, v6 string // 4 and 16 bytes each
	from   origin // of the first address
}

// An origin is where a name is configured.
type origin struct {
	file int32 // number of the file, from 1 on; 0: hosts.names
	line int32 // from 1 on
}

// A builder makes a table.
type builder struct {
	table

	counts  map[netip.Addr]int // number of PTR records by address
	frozen  map[string]bool    // names that take no more addresses
	reverse bool               // addresses get PTR records
	from    origin             // of the names that are added next
	room    []byte             // buffer for a name
}

func newBuilder(reverse bool) *builder {
	return &builder{
		table:  table{names: map[string]addresses{}, pointers: map[string]string{}},
		counts: map[netip.Addr]int{}, frozen: map[string]bool{}, reverse: reverse,
	}
}

// add adds an address to a name, unless the name is frozen, or has it or maxAddresses already. It returns false for an invalid name.
func (b *builder) add(text string, addr netip.Addr) bool {
	name, err := wire.AppendPlainName(b.room[:0], text)
	b.room = name
	if err != nil {
		return false
	}
	if b.frozen[string(name)] {
		return true
	}
	h, ok := b.names[string(name)]
	if !ok {
		h.from = b.from
	}
	addr = addr.Unmap().WithZone("")
	list, raw := &h.v6, string(addr.AsSlice())
	if addr.Is4() {
		list = &h.v4
	}
	if len(*list) == maxAddresses*len(raw) || contains(*list, raw) {
		return true
	}
	*list += raw
	b.names[string(name)] = h
	b.addresses++
	b.hasWildcards = b.hasWildcards || isWildcard(name)
	b.addPointer(addr, name)
	return true
}

// freeze makes add ignore the names added so far.
func (b *builder) freeze() {
	for name := range b.names {
		b.frozen[name] = true
	}
}

// contains reports whether the packed list contains the address.
func contains(list, addr string) bool {
	for ; list != ""; list = list[len(addr):] {
		if list[:len(addr)] == addr {
			return true
		}
	}
	return false
}

// addPointer adds a PTR record from addr to the name, unless addr is unspecified or has maxPointers, or the name is a wildcard.
func (b *builder) addPointer(addr netip.Addr, name []byte) {
	if !b.reverse || addr.IsUnspecified() || isWildcard(name) || b.counts[addr] == maxPointers {
		return
	}
	b.counts[addr]++
	b.pointers[string(wire.AppendReverse(nil, addr.AsSlice()))] += string(name)
}

// isWildcard reports whether the first label of the name is an asterisk.
func isWildcard(name []byte) bool { return name[0] == 1 && name[1] == '*' }

// answer appends the answer to q if the table has the name of q and, by decides, answers its type; it also answers PTR at reverse names.
func (t *table) answer(q *wire.Query, ttl uint32, dst []byte) ([]byte, bool) {
	name := q.Name()
	if h, ok := t.lookup(name); ok && decides(q.Type) {
		return appendAddresses(dst, q, ttl, h), true
	}
	if len(t.pointers) > 0 && (q.Type == wire.TypePTR || decides(q.Type)) {
		if names, ok := t.pointers[string(name)]; ok {
			return appendPointers(dst, q, ttl, names), true
		}
	}
	return dst, false
}

// decides reports whether only the hosts answer a type at their names: addresses, and types that lead to other addresses. An alias from
// an upstream, or the address hints of its SVCB and HTTPS records (RFC 9460), would undo the override.
func decides(rrtype uint16) bool {
	switch rrtype {
	case wire.TypeA, wire.TypeAAAA, wire.TypeCNAME, wire.TypeDNAME, wire.TypeSVCB, wire.TypeHTTPS:
		return true
	}
	return false
}

// leaves reports whether the table has the name of q, but leaves its type to templates and upstreams.
func (t *table) leaves(q *wire.Query) bool {
	if decides(q.Type) {
		return false
	}
	if _, ok := t.lookup(q.Name()); ok {
		return true
	}
	_, ok := t.pointers[string(q.Name())]
	return ok && q.Type != wire.TypePTR
}

// originOf returns where the name of q is configured. left reports whether the table leaves its type to templates and upstreams.
func (t *table) originOf(q *wire.Query) (from origin, left, ok bool) {
	h, ok := t.lookup(q.Name())
	if !ok {
		var names string
		if names, ok = t.pointers[string(q.Name())]; !ok {
			return origin{}, false, false
		}
		h = t.names[names[:nameEnd(names)]] // a reverse name is configured where the first of its hosts is
	}
	return h.from, t.leaves(q), true
}

// lookup returns the addresses of the name, or of the wildcard at its parent.
func (t *table) lookup(name []byte) (addresses, bool) {
	h, ok := t.names[string(name)]
	if ok || !t.hasWildcards || name[0] == 0 {
		return h, ok
	}
	var room [wire.MaxName + 2]byte
	h, ok = t.names[string(append(append(room[:0], 1, '*'), name[1+int(name[0]):]...))]
	return h, ok
}

// appendAddresses appends the answer to a query for a host name.
func appendAddresses(dst []byte, q *wire.Query, ttl uint32, h addresses) []byte {
	list, size := "", 0
	switch q.Type {
	case wire.TypeA:
		list, size = h.v4, 4
	case wire.TypeAAAA:
		list, size = h.v6, 16
	}
	start := len(dst)
	dst = appendHead(dst, q)
	count := 0
	for ; list != ""; list = list[size:] {
		dst = appendOwn(dst, q.Type, ttl, list[:size])
		count++
	}
	binary.BigEndian.PutUint16(dst[start+6:], uint16(count))
	return dst
}

// appendPointers appends the answer to a query for a reverse name.
func appendPointers(dst []byte, q *wire.Query, ttl uint32, names string) []byte {
	start := len(dst)
	dst = appendHead(dst, q)
	count := 0
	for q.Type == wire.TypePTR && names != "" {
		end := nameEnd(names)
		dst = appendOwn(dst, wire.TypePTR, ttl, names[:end])
		names = names[end:]
		count++
	}
	binary.BigEndian.PutUint16(dst[start+6:], uint16(count))
	return dst
}

// nameEnd returns the length in bytes of the first of the names.
func nameEnd(names string) int {
	off := 0
	for names[off] != 0 {
		off += 1 + int(names[off])
	}
	return off + 1
}

// appendHead appends the header and the question.
func appendHead(dst []byte, q *wire.Query) []byte {
	const bitsAnswer = 0x84 // QR, AA
	return q.AppendQuestion(append(dst, 0, 0, bitsAnswer, 0, 0, 1, 0, 0, 0, 0, 0, 0))
}

// appendOwn appends a record owned by the name in the question.
func appendOwn(dst []byte, rrtype uint16, ttl uint32, data string) []byte {
	dst = append(dst, 0xc0, wire.HeaderLen, byte(rrtype>>8), byte(rrtype), 0, byte(wire.ClassIN),
		byte(ttl>>24), byte(ttl>>16), byte(ttl>>8), byte(ttl), byte(len(data)>>8), byte(len(data)))
	return append(dst, data...)
}
