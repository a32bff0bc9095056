// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"cmp"
	"slices"
)

// A portList is ports, packed and sorted by number: per port two octets of
// number, one of protocol, and the name as a label in wire form, whose length is
// 0 for a port without a name.
type portList string

// portFixed is the octets of a port before its name.
const portFixed = 3

// maxPorts bounds the ports of a service or slice.
const maxPorts = 1 << 12

// packPorts appends the ports to dst. A name that cannot be a label counts as none.
func packPorts(dst []byte, ports []Port) []byte {
	sorted := slices.Clone(ports)
	for i := range sorted {
		sorted[i].Name = asLabel(sorted[i].Name)
	}
	slices.SortFunc(sorted, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Name, b.Name))
	})
	for _, p := range sorted[:min(len(sorted), maxPorts)] {
		dst = append(dst, byte(p.Number>>8), byte(p.Number), byte(p.Protocol))
		dst = appendLabel(dst, p.Name)
	}
	return dst
}

// number is the first port's number.
func (l portList) number() uint16 { return uint16(l[0])<<8 | uint16(l[1]) }

func (l portList) protocol() Protocol { return Protocol(l[2]) }

func (l portList) name() string { return string(l[portFixed+1 : portFixed+1+int(l[portFixed])]) }

// rest is the list without its first port.
func (l portList) rest() portList { return l[portFixed+1+int(l[portFixed]):] }

// A portFilter says which ports are meant. The zero value means all.
type portFilter struct {
	byName   bool // only those with this name and protocol
	name     []byte
	protocol Protocol
}

// match tells whether the list's first port is meant.
func (f *portFilter) match(l portList) bool {
	return !f.byName || l.protocol() == f.protocol && l.name() != "" && l.name() == string(f.name)
}

// countIn is how many ports of the list are meant. A list without ports counts
// as one port without name and number, as it does in CoreDNS.
func (f *portFilter) count(l portList) int {
	if l == "" && !f.byName {
		return 1
	}
	n := 0
	for ; l != ""; l = l.rest() {
		if f.match(l) {
			n++
		}
	}
	return n
}

// find gives the list from its first port on that is meant, and how many are.
func (f *portFilter) selectFrom(l portList) (first portList, n int) {
	if !f.byName {
		return l, f.count(l)
	}
	for ; l != ""; l = l.rest() {
		if f.match(l) {
			if n == 0 {
				first = l
			}
			n++
		}
	}
	return first, n
}

// protocols are the protocols of the ports that have a name, a bit each.
func (l portList) protocols() (set uint8) {
	for ; l != ""; l = l.rest() {
		if l.name() != "" {
			set |= 1 << l.protocol()
		}
	}
	return set
}

// portName takes the label of a port or protocol apart from its underscore, which
// may be missing. A bare underscore is no label of either.
func portName(label []byte) []byte {
	if len(label) > 1 && label[0] == '_' {
		return label[1:]
	}
	return label
}

// protocolOf reads the label of a protocol.
func protocolOf(label []byte) (Protocol, bool) {
	switch string(portName(label)) {
	case "tcp":
		return TCP, true
	case "udp":
		return UDP, true
	case "sctp":
		return SCTP, true
	}
	return 0, false
}
