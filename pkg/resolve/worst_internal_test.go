// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A heap is an answer under construction that is to be as dear to judge as 64 KiB
// can be. Its names have 126 labels each, and they and as many pointers are passed
// before two of them are seen to differ, which they do in the last label.
type heap struct {
	msg   []byte
	n     int // records
	steps int // labels and pointers behind pointers, of which no message may have more than 262,144
}

const (
	depth = 126           // labels and pointers of a name: one pointer more is refused
	climb = 2*depth + 1   // steps of a pointer to such a name
	stop  = 1<<18 - climb // no room for one more
)

func newHeap(rrtype uint16) *heap {
	h := &heap{msg: []byte{0, 0, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}}
	for range depth - 1 {
		h.msg = append(h.msg, 1, 'x')
	}
	h.msg = append(h.msg, 1, 'a', 0, byte(rrtype>>8), byte(rrtype), 0, 1)
	return h
}

func (h *heap) add(owner []byte, rrtype uint16, data ...byte) bool {
	if len(h.msg)+len(owner)+10+len(data) > wire.MaxMessage || h.steps > stop {
		return false
	}
	if len(owner) == 2 {
		h.steps += climb
	}
	switch rrtype {
	case wire.TypeCNAME, wire.TypeNS, wire.TypeSRV:
		h.steps += climb
	}
	h.msg = append(h.msg, owner...)
	h.msg = append(h.msg, byte(rrtype>>8), byte(rrtype), 0, 1, 0, 0, 0, 60, byte(len(data)>>8), byte(len(data)))
	h.msg = append(h.msg, data...)
	h.n++
	return true
}

// ladder adds records whose owners are each a label more than the one before, on
// top of the label end, and returns a pointer to the last.
func (h *heap) ladder(end byte) []byte {
	at := len(h.msg)
	h.add([]byte{1, end, 0}, 65280)
	for range depth - 1 {
		owner := link(at)
		at = len(h.msg)
		h.add(append([]byte{1, 'x'}, owner...), 65280)
	}
	h.steps += depth * (depth + 1)
	return link(at)
}

// fill adds a record as often as it fits.
func (h *heap) fill(owner []byte, rrtype uint16, data ...byte) {
	for more := true; more && h.n < maxRecords; {
		more = h.add(owner, rrtype, data...)
	}
}

func link(at int) []byte { return binary.BigEndian.AppendUint16(nil, 0xc000|uint16(at)) }

// count writes the counts of the sections, of which the last takes what is left.
func (h *heap) count(an, ns int) []byte {
	binary.BigEndian.PutUint16(h.msg[6:], uint16(an))
	binary.BigEndian.PutUint16(h.msg[8:], uint16(ns))
	binary.BigEndian.PutUint16(h.msg[10:], uint16(h.n-an-ns))
	return h.msg
}

// worst are messages that try each loop of a bailiwick.
func worst() map[string][]byte {
	list := map[string][]byte{}

	h := newHeap(65280)
	h.fill(h.ladder('a'), 65280)
	list["data of a name that stands twice"] = h.count(h.n, 0)

	h = newHeap(wire.TypeA)
	h.add(link(12), wire.TypeA, 1, 2, 3, 4)
	h.fill(h.ladder('b'), wire.TypeA, 1, 2, 3, 4)
	list["addresses of another name"] = h.count(h.n, 0)

	h = newHeap(wire.TypeA)
	h.add(link(12), wire.TypeA, 1, 2, 3, 4)
	h.fill([]byte{1, 'b', 0}, wire.TypeA, 1, 2, 3, 4)
	list["64 KiB of addresses of another name"] = h.count(h.n, 0)

	h = newHeap(65280)
	same, b, c := h.ladder('a'), h.ladder('b'), h.ladder('c')
	for range maxAliases - maxChain {
		h.add(c, wire.TypeCNAME, c...)
	}
	for range maxChain / 2 {
		h.add(same, wire.TypeCNAME, b...)
		h.add(b, wire.TypeCNAME, same...)
	}
	an := h.n
	for range maxAuthority {
		h.add(c, wire.TypeNS, c...)
	}
	list["aliases, and zones that none of them is in"] = h.count(an, h.n-an)

	h = newHeap(wire.TypeSRV)
	h.add(h.msg[12:13+2*depth], wire.TypeSRV, append(make([]byte, 6), link(12)...)...)
	for more := true; more; {
		target := slices.Concat(make([]byte, 6), []byte{2, byte(h.n >> 8), byte(h.n)}, h.msg[12:12+depth], []byte{0})
		more = h.add(link(12), wire.TypeSRV, target...)
	}
	list["long names in full"] = h.count(h.n, 0)

	h = newHeap(wire.TypeSRV)
	same = h.ladder('a')
	for range 350 {
		h.add(same, wire.TypeSRV, append(make([]byte, 6), same...)...)
	}
	an = h.n
	h.fill(same, wire.TypeA, 1, 2, 3, 4)
	list["services and their addresses"] = h.count(an, 0)
	return list
}

// TestWorst validates the most expensive answers of 64 KiB. The bound only catches quadratic time.
func TestWorst(t *testing.T) {
	t.Parallel()
	for name, msg := range worst() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.NoError(t, new(dns.Msg).Unpack(msg))
			var m wire.Message
			began := time.Now()
			if err := m.Parse(slices.Clone(msg)); err != nil || len(m.Records) < 300 {
				t.Fatalf("%d records, error %v", len(m.Records), err)
			}
			_, err := new(validator).validate(testBounds(), &m)
			took := time.Since(began)
			t.Logf("%d bytes, of which %d are left, in %s, error %v", len(msg), len(m.Raw), took, err)
			if took > time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
}
