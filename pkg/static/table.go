// SPDX-License-Identifier: Apache-2.0

package static

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	// maxAddresses of one name and family are answered; a message of 64 KiB holds them.
	maxAddresses = 1024
	// maxPointers is how many names an address leads back to. Lists of names that are to
	// lead nowhere give one address to all of them.
	maxPointers = 64
	// maxReply is the octets an answer may have before an OPT record is appended.
	maxReply = wire.MaxMessage - 128
)

// A table is all names with addresses. It does not change once it is made.
type table struct {
	names     map[string]host   // by canonical name
	pointers  map[string]string // by canonical name of the address: names, one behind the other
	wild      bool              // there are names that begin with an asterisk
	addresses int
}

// A host is the addresses of one name, packed.
type host struct {
	v4, v6 string
}

// A builder makes a table.
type builder struct {
	names    map[string]*building
	pointers map[netip.Addr]*strings.Builder
	counts   map[netip.Addr]int
	closed   map[string]bool // names that have all they get
	reverse  bool
	room     []byte
}

type building struct{ v4, v6 []byte }

func newBuilder(reverse bool) *builder {
	return &builder{names: map[string]*building{}, pointers: map[netip.Addr]*strings.Builder{}, counts: map[netip.Addr]int{}, closed: map[string]bool{}, reverse: reverse}
}

// add gives a name an address, unless it is closed. It is false if that is no name.
func (b *builder) add(text string, addr netip.Addr) bool {
	name, ok := appendName(b.room[:0], text)
	b.room = name
	if !ok {
		return false
	}
	if b.closed[string(name)] {
		return true
	}
	h := b.names[string(name)]
	if h == nil {
		h = &building{}
		b.names[string(name)] = h
	}
	addr = addr.Unmap().WithZone("")
	list, octets := &h.v6, addr.AsSlice()
	if addr.Is4() {
		list = &h.v4
	}
	if len(*list) == maxAddresses*len(octets) || holds(*list, octets) {
		return true
	}
	*list = append(*list, octets...)
	b.point(addr, name)
	return true
}

// close has no name that is there get more addresses.
func (b *builder) close() {
	for name := range b.names {
		b.closed[name] = true
	}
}

// holds tells whether an address is in a list of such.
func holds(list, addr []byte) bool {
	for ; len(list) > 0; list = list[len(addr):] {
		if string(list[:len(addr)]) == string(addr) {
			return true
		}
	}
	return false
}

// point has an address lead back to a name. What stands for nowhere, and what may
// stand for any name, does not.
func (b *builder) point(addr netip.Addr, name []byte) {
	if !b.reverse || addr.IsUnspecified() || isWild(name) || b.counts[addr] == maxPointers {
		return
	}
	to := b.pointers[addr]
	if to == nil {
		to = &strings.Builder{}
		b.pointers[addr] = to
	}
	b.counts[addr]++
	to.Write(name)
}

// table gives what was built.
func (b *builder) table() *table {
	t := &table{names: make(map[string]host, len(b.names)), pointers: make(map[string]string, len(b.pointers))}
	for name, h := range b.names {
		t.names[name] = host{v4: string(h.v4), v6: string(h.v6)}
		t.addresses += len(h.v4)/4 + len(h.v6)/16
		t.wild = t.wild || isWild([]byte(name))
	}
	for addr, names := range b.pointers {
		t.pointers[string(wire.AppendReverse(nil, addr.AsSlice()))] = names.String()
	}
	return t
}

// isWild tells whether a name stands for those with any first label in its place.
func isWild(name []byte) bool { return name[0] == 1 && name[1] == '*' }

// answer appends the answer to q if its name is one of the table's.
func (t *table) answer(q *wire.Query, ttl uint32, dst []byte) ([]byte, bool) {
	name := q.Name()
	if h, ok := t.find(name); ok {
		return appendAddresses(dst, q, ttl, h), true
	}
	if len(t.pointers) > 0 {
		if names, ok := t.pointers[string(name)]; ok {
			return appendPointers(dst, q, ttl, names), true
		}
	}
	return dst, false
}

// find is the host with a name, or with an asterisk for its first label.
func (t *table) find(name []byte) (host, bool) {
	h, ok := t.names[string(name)]
	if ok || !t.wild || name[0] == 0 {
		return h, ok
	}
	var room [wire.MaxName + 2]byte
	h, ok = t.names[string(append(append(room[:0], 1, '*'), name[1+int(name[0]):]...))]
	return h, ok
}

// appendAddresses appends the answer from the addresses of a name.
func appendAddresses(dst []byte, q *wire.Query, ttl uint32, h host) []byte {
	list, octets := "", 0
	switch q.Type {
	case wire.TypeA:
		list, octets = h.v4, 4
	case wire.TypeAAAA:
		list, octets = h.v6, 16
	}
	start := len(dst)
	dst = appendHead(dst, q)
	count := 0
	for ; list != ""; list = list[octets:] {
		dst = appendOwn(dst, q.Type, ttl, list[:octets])
		count++
	}
	binary.BigEndian.PutUint16(dst[start+6:], uint16(count))
	return dst
}

// appendPointers appends the answer from the names of an address.
func appendPointers(dst []byte, q *wire.Query, ttl uint32, names string) []byte {
	start := len(dst)
	dst = appendHead(dst, q)
	count := 0
	for q.Type == wire.TypePTR && names != "" {
		end := 1
		for off := 0; names[off] != 0; end = off + 1 {
			off += 1 + int(names[off])
		}
		dst = appendOwn(dst, wire.TypePTR, ttl, names[:end])
		names = names[end:]
		count++
	}
	binary.BigEndian.PutUint16(dst[start+6:], uint16(count))
	return dst
}

// appendHead appends header and question.
func appendHead(dst []byte, q *wire.Query) []byte {
	const bitsAnswer = 0x84 // QR, AA
	return q.AppendQuestion(append(dst, 0, 0, bitsAnswer, 0, 0, 1, 0, 0, 0, 0, 0, 0))
}

// appendOwn appends a record of the name that is asked for.
func appendOwn(dst []byte, rrtype uint16, ttl uint32, data string) []byte {
	dst = append(dst, 0xc0, wire.HeaderLen, byte(rrtype>>8), byte(rrtype), 0, byte(wire.ClassIN),
		byte(ttl>>24), byte(ttl>>16), byte(ttl>>8), byte(ttl), byte(len(data)>>8), byte(len(data)))
	return append(dst, data...)
}

// appendName appends the canonical wire form of a name. It is false for what is no name
// of visible ASCII, and for the root.
func appendName(dst []byte, text string) ([]byte, bool) {
	start := len(dst)
	text = strings.TrimSuffix(text, ".")
	for label := range strings.SplitSeq(text, ".") {
		if label == "" || len(label) > wire.MaxLabel {
			return dst[:start], false
		}
		dst = append(dst, byte(len(label)))
		for i := range len(label) {
			c := label[i]
			switch {
			case c <= ' ' || c > '~' || c == '\\':
				return dst[:start], false
			case 'A' <= c && c <= 'Z':
				c |= 0x20
			}
			dst = append(dst, c)
		}
		if len(dst)-start >= wire.MaxName {
			return dst[:start], false
		}
	}
	return append(dst, 0), true
}
