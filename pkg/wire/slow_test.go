// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Why a message is refused. The first group is refused by the oracle too.
const (
	badLabel   = "label type"
	badLength  = "name above 255 bytes"
	badChain   = "too many pointers"
	badCut     = "record cut"
	badAddress = "address size"
	badData    = "names do not fill the RDATA"

	badSize     = "message size"
	badCount    = "not one question"
	badQuestion = "question cut or compressed"
	badMissing  = "fewer records than promised"
	badPointer  = "pointer to no name before"
	badEmpty    = "empty RDATA"
	badShort    = "RDATA that ends between two fields"
	badOPT      = "OPT out of place"
	badOptions  = "options do not fill the OPT"
	badSteps    = "too much behind pointers"
)

// oracleTakes reports whether the oracle reads what is refused for this reason.
func oracleTakes(reason string) bool {
	switch reason {
	case badSize, badCount, badQuestion, badMissing, badPointer, badEmpty, badShort, badOPT, badOptions, badSteps:
		return true
	}
	return false
}

// slow is a second reading of the rules, plain and with maps.
type slow struct {
	msg    []byte
	labels map[int]bool // where a label of a name begins
	opaque [][2]int     // RDATA that is not looked into
	opt    bool
	steps  int // labels and pointers passed behind pointers
}

// explain says why msg is refused, or nothing.
func explain(msg []byte) string {
	if len(msg) < 12 || len(msg) > 65535 {
		return badSize
	}
	if binary.BigEndian.Uint16(msg[4:]) != 1 {
		return badCount
	}
	s := &slow{msg: msg, labels: map[int]bool{}}
	off, reason := s.name(12)
	if reason == badLabel || reason == badLength {
		return reason
	}
	if reason != "" || off+4 > len(msg) {
		return badQuestion
	}
	off += 4
	for section := range 3 {
		for range binary.BigEndian.Uint16(msg[6+2*section:]) {
			if off, reason = s.record(off, section); reason != "" {
				return reason
			}
		}
	}
	return ""
}

func (s *slow) record(off, section int) (next int, reason string) {
	if off == len(s.msg) {
		return 0, badMissing
	}
	end, reason := s.name(off)
	if reason != "" {
		return 0, reason
	}
	if end+10 > len(s.msg) {
		return 0, badCut
	}
	rrtype := binary.BigEndian.Uint16(s.msg[end:])
	data := end + 10
	next = data + int(binary.BigEndian.Uint16(s.msg[end+8:]))
	if next > len(s.msg) {
		return 0, badCut
	}
	switch names, ok := namesIn[rrtype]; {
	case rrtype == dns.TypeOPT:
		if section != 2 || s.opt || s.msg[off] != 0 {
			return 0, badOPT
		}
		s.opt = true
		if slowOptions(s.msg[data:next]) == nil {
			return 0, badOptions
		}
	case rrtype == dns.TypeA || rrtype == dns.TypeAAAA || ok:
		if next == data {
			return 0, badEmpty
		}
		return next, s.data(rrtype, names, data, next)
	default:
		s.opaque = append(s.opaque, [2]int{data, next})
	}
	return next, ""
}

// namesIn gives bytes before, names, and bytes behind in RDATA.
var namesIn = map[uint16][3]int{
	dns.TypeNS: {0, 1, 0}, dns.TypeMD: {0, 1, 0}, dns.TypeMF: {0, 1, 0}, dns.TypeCNAME: {0, 1, 0},
	dns.TypeMB: {0, 1, 0}, dns.TypeMG: {0, 1, 0}, dns.TypeMR: {0, 1, 0}, dns.TypePTR: {0, 1, 0},
	dns.TypeDNAME: {0, 1, 0}, dns.TypeSOA: {0, 2, 20}, dns.TypeMINFO: {0, 2, 0}, dns.TypeRP: {0, 2, 0},
	dns.TypeMX: {2, 1, 0}, dns.TypeAFSDB: {2, 1, 0}, dns.TypeRT: {2, 1, 0}, dns.TypeKX: {2, 1, 0},
	dns.TypePX: {2, 2, 0}, dns.TypeSRV: {6, 1, 0},
}

func (s *slow) data(rrtype uint16, names [3]int, off, end int) (reason string) {
	switch {
	case rrtype == dns.TypeA && end-off == 4, rrtype == dns.TypeAAAA && end-off == 16:
		return ""
	case rrtype == dns.TypeA, rrtype == dns.TypeAAAA:
		return badAddress
	}
	part := &slow{msg: s.msg[:end], labels: s.labels, opaque: s.opaque, steps: s.steps}
	defer func() { s.steps = part.steps }()
	off += names[0]
	for range names[1] {
		if off >= end {
			return badShort
		}
		if off, reason = part.name(off); reason != "" {
			return reason
		}
	}
	switch {
	case off+names[2] > end:
		return badShort
	case off+names[2] < end:
		return badData
	}
	return ""
}

// name walks the name at off.
func (s *slow) name(off int) (end int, reason string) {
	start, size, pointers := off, 1, 0
	var own []int
	for {
		if off >= len(s.msg) {
			return 0, badCut
		}
		if pointers == 0 {
			own = append(own, off)
		} else if s.steps++; s.steps > wire.MaxSteps {
			return 0, badSteps
		}
		c := s.msg[off]
		switch c >> 6 {
		case 0:
			if c == 0 {
				for _, at := range own {
					s.labels[at] = at < 1<<14
				}
				if pointers == 0 {
					end = off + 1
				}
				return end, ""
			}
			if size += int(c) + 1; size > 255 {
				return 0, badLength
			}
			off += int(c) + 1
		case 3:
			if off+1 >= len(s.msg) {
				return 0, badCut
			}
			if pointers++; pointers == 1 {
				end = off + 2
			}
			off = int(c&0x3f)<<8 | int(s.msg[off+1])
			if pointers > wire.MaxPointers {
				return 0, badChain
			}
			if off >= start || !s.labels[off] && !s.stands(off) {
				return 0, badPointer
			}
		default:
			return 0, badLabel
		}
	}
}

// stands reports whether a name without pointers stands at off inside RDATA that
// is not looked into.
func (s *slow) stands(off int) bool {
	for _, r := range s.opaque {
		if off < r[0] || off >= r[1] {
			continue
		}
		part := &slow{msg: s.msg[:r[1]], labels: map[int]bool{}}
		end, reason := part.name(off)
		return reason == "" && end <= r[1]
	}
	return false
}

// slowOption is one EDNS option.
type slowOption struct {
	code uint16
	data []byte
}

// slowOptions reads EDNS options; it is nil if they do not fill data.
func slowOptions(data []byte) []slowOption {
	list := []slowOption{}
	for len(data) > 0 {
		if len(data) < 4 || len(data) < 4+int(binary.BigEndian.Uint16(data[2:])) {
			return nil
		}
		n := 4 + int(binary.BigEndian.Uint16(data[2:]))
		list = append(list, slowOption{binary.BigEndian.Uint16(data), data[4:n]})
		data = data[n:]
	}
	return list
}

// blur gives the walked message with the type of every record that is not
// looked into changed to one that the oracle does not know either, so that it
// reads their RDATA as mere bytes; the OPT record becomes a TYPE65281.
func blur(m *wire.Message) []byte {
	raw := append([]byte{}, m.Raw...)
	for _, r := range m.Records {
		if _, ok := namesIn[r.Type]; !ok && r.Type != dns.TypeA && r.Type != dns.TypeAAAA {
			binary.BigEndian.PutUint16(raw[r.TTL-4:], 65280)
		}
	}
	if m.HasOPT() {
		binary.BigEndian.PutUint16(raw[optAt(m)+1:], 65281)
	}
	return raw
}

// optAt is where the OPT record of a walked message is: in the gap that the
// other records leave.
func optAt(m *wire.Message) int {
	off := questionEnd(m.Raw)
	for _, r := range m.Records {
		if int(r.Owner) != off {
			return off
		}
		off = r.Data() + int(r.Size)
	}
	return off
}

// questionEnd is the offset after the question of a well-formed message.
func questionEnd(msg []byte) int {
	off := 12
	for msg[off] != 0 {
		off += int(msg[off]) + 1
	}
	return off + 5
}

// slowCut is how many records of each section of the walked message fit room
// bytes at whole RRsets, or at whole addresses of the answer, how many bytes that
// is, and whether TC is due.
func slowCut(tb testing.TB, m *wire.Message, room int) (counts [3]int, size int, truncated bool) {
	tb.Helper()
	set := func(r wire.Record) string {
		name, _, err := dns.UnpackDomainName(m.Raw, int(r.Owner))
		if err != nil {
			tb.Fatalf("owner at %d: %v", r.Owner, err)
		}
		return strings.ToLower(name) + string(u16(uint16(r.Section), r.Type, r.Class))
	}
	size = questionEnd(m.Raw)
	for i := 0; i < len(m.Records); {
		end, section := i+1, m.Records[i].Section
		alone := section == wire.Answer && (m.Records[i].Type == wire.TypeA || m.Records[i].Type == wire.TypeAAAA)
		for end < len(m.Records) && !alone && set(m.Records[end]) == set(m.Records[i]) {
			end++
		}
		last := m.Records[end-1]
		if last.Data()+int(last.Size) > room {
			return counts, size, section != wire.Additional
		}
		counts[section] += end - i
		size = last.Data() + int(last.Size)
		i = end
	}
	return counts, size, false
}
