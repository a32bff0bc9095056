// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// whyNoQuery says why a packet that the oracle reads as m is no query, or
// nothing if it is one.
func whyNoQuery(pkt []byte, m *dns.Msg) string {
	counts := func(at int) uint16 { return binary.BigEndian.Uint16(pkt[at:]) }
	switch {
	case counts(4) != 1 || len(m.Question) != 1:
		return "not one question"
	case len(pkt) < questionEndOf(pkt):
		return "question cut or compressed"
	case counts(6)|counts(8) != 0 && !slowVersion(pkt, m):
		return "records before the additional section"
	case counts(10) > 2:
		return "more than two additional records"
	case int(counts(10)) != len(m.Extra):
		return "fewer records than promised"
	}
	opts := 0
	for _, rr := range m.Extra {
		o, ok := rr.(*dns.OPT)
		if !ok {
			continue
		}
		if opts++; opts > 1 || o.Hdr.Name != "." {
			return "OPT out of place"
		}
	}
	return whyNoOPT(pkt)
}

// whyNoOPT is the part of whyNoQuery that reads the OPT record's bytes.
func whyNoOPT(pkt []byte) string {
	off := questionEndOf(pkt)
	for range int(binary.BigEndian.Uint16(pkt[8:])) + int(binary.BigEndian.Uint16(pkt[10:])) {
		end := ownerEndOf(pkt, off)
		if end < 0 || end+10 > len(pkt) {
			return "owner cut"
		}
		next := end + 10 + int(binary.BigEndian.Uint16(pkt[end+8:]))
		if next > len(pkt) {
			return "record cut"
		}
		if binary.BigEndian.Uint16(pkt[end:]) == dns.TypeOPT {
			if pkt[off] != 0 {
				return "OPT out of place"
			}
			if pkt[end+5] != 0 {
				return "version"
			}
			list := slowOptions(pkt[end+10 : next])
			if list == nil || len(list) > 64 {
				return "options"
			}
			for _, o := range list {
				n := len(o.data)
				if o.code == 10 && n != 8 && (n < 16 || n > 40) || o.code == 8 && !slowSubnet(o.data) {
					return "option length"
				}
			}
		}
		off = next
	}
	return ""
}

// slowVersion reports whether the records before the additional section are one SOA
// record of an IXFR query, whole.
func slowVersion(pkt []byte, m *dns.Msg) bool {
	if m.Question[0].Qtype != dns.TypeIXFR || len(m.Answer) != 0 || len(m.Ns) != 1 || binary.BigEndian.Uint16(pkt[8:]) != 1 {
		return false
	}
	if _, ok := m.Ns[0].(*dns.SOA); !ok {
		return false
	}
	data := ownerEndOf(pkt, questionEndOf(pkt)) + 10
	end := data + int(m.Ns[0].Header().Rdlength)
	for range 2 {
		if data = ownerEndOf(pkt[:end], data); data < 0 {
			return false
		}
	}
	return data+20 == end
}

// ownerEndOf is the offset after the name at off, negative if there is none.
func ownerEndOf(pkt []byte, off int) int {
	_, end, err := dns.UnpackDomainName(pkt, off)
	if err != nil {
		return -1 << 20
	}
	return end
}

// slowSubnet reports whether a client-subnet option says as many bits as it has
// bytes for, by listing every length that may be.
func slowSubnet(data []byte) bool {
	for family, bits := range map[byte]int{0: 0, 1: 32, 2: 128} {
		for prefix := 0; prefix <= bits; prefix++ {
			size := prefix / 8
			if prefix%8 != 0 {
				size++
			}
			if len(data) == 4+size && data[0] == 0 && data[1] == family && int(data[2]) == prefix && data[3] == 0 {
				return true
			}
		}
	}
	return false
}

// questionEndOf is the offset after the plain name of a packet's question, its
// type and its class, or beyond every packet.
func questionEndOf(pkt []byte) int {
	off := 12
	for off < len(pkt) && pkt[off] != 0 {
		if pkt[off] > 63 {
			return 1 << 20
		}
		off += int(pkt[off]) + 1
	}
	return off + 5
}
