// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A slice is an EndpointSlice object, packed into one string. It is immutable.
//
// Every address of every endpoint is an entry. Entries are sorted: IPv4 before IPv6, then by address, then by name. A
// second list sorts the entries with a name of their own by that name. Regions of data, in order:
//
//	IPv4 addresses   4 bytes each
//	IPv6 addresses   16 bytes each
//	marks            2 bytes per entry: ready, kind of name, number of the topology zone
//	name offsets     4 bytes per entry, if any entry has a name
//	name order       4 bytes per entry with a name: the entry's number
//	names            labels in wire form
//	cluster          the id of the cluster, a label in wire form, if it has one
//	zones            per topology zone one byte of length and its labels in wire form
//	ports            a portList
type slice struct {
	key  string // key of its service's node, see nodeKey
	name string // name of the EndpointSlice
	data string // the regions above
	id   uint32 // the slice's number in the store

	n4, n6, named uint32 // number of IPv4 entries, of IPv6 entries, and of entries with a name
	ready         uint32 // number of ready entries
	marksAt       uint32 // the fields that end in At are offsets in data
	namesAt       uint32
	clusterAt     uint32
	zonesAt       uint32
	portsAt       uint32

	hasDuplicates bool  // an address or a name may occur more than once, see findDuplicates
	protocols     uint8 // protocols of the named ports, one bit each
}

// Bits of an entry's mark.
const (
	markReady = 1 << 15   // the endpoint is ready
	markHost  = 1 << 14   // the entry's own name is the endpoint's hostname
	markPod   = 1 << 13   // the entry's own name is the pod's name
	markZone  = 1<<13 - 1 // the number of its topology zone; 0: none
)

// maxEntries bounds the entries of a slice. Kubernetes allows 1,000 endpoints in one.
const maxEntries = 1 << 16

// maxTopologyZones bounds the topology zones of a slice. Entries in further zones count as without a zone.
const maxTopologyZones = 127

// An entry is one address of one endpoint, before packing.
type entry struct {
	addr netip.Addr
	name string // hostname or pod; empty: none
	zone string // topology zone in lower case; empty: none
	mark uint16
}

// packSlice packs the slice for the node with the key.
func packSlice(s Slice, key string) *slice {
	entries := make([]entry, 0, len(s.Endpoints))
	for i := range s.Endpoints {
		entries = appendEntries(entries, &s.Endpoints[i])
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.name, b.name), cmp.Compare(a.mark, b.mark), cmp.Compare(a.zone, b.zone))
	})
	entries = slices.Compact(entries)
	entries = entries[:min(len(entries), maxEntries)]
	zones := numberZones(entries)
	packed := &slice{key: key, name: s.Name}
	data := packed.packEntries(make([]byte, 0, 6*len(entries)), entries)
	data = packed.packNames(data, entries)
	packed.clusterAt = uint32(len(data))
	if cluster := asLabel(s.Cluster); cluster != "" {
		data = appendLabel(data, cluster)
	}
	packed.zonesAt = uint32(len(data))
	for _, zone := range zones {
		at := len(data)
		data, _ = appendLabels(append(data, 0), zone)
		data[at] = byte(len(data) - at - 1)
	}
	packed.portsAt = uint32(len(data))
	packed.data = string(packPorts(data, s.Ports))
	packed.hasDuplicates, packed.protocols = packed.findDuplicates(), packed.ports().protocols()
	return packed
}

// appendEntries appends the endpoint's addresses. The name is the hostname or else the pod name, if it is a label.
func appendEntries(entries []entry, e *Endpoint) []entry {
	var mark uint16
	if e.Ready {
		mark = markReady
	}
	name := asLabel(e.Hostname)
	if name != "" {
		mark |= markHost
	} else if name = asLabel(e.Pod); name != "" {
		mark |= markPod
	}
	var buf [wire.MaxName]byte
	zone := strings.ToLower(e.Zone)
	if _, err := appendLabels(buf[:0], zone); err != nil {
		zone = ""
	}
	for _, a := range e.Addrs {
		if a.IsValid() {
			entries = append(entries, entry{addr: a.Unmap().WithZone(""), name: name, zone: zone, mark: mark})
		}
	}
	return entries
}

// numberZones numbers the topology zones from 1 in the order of the entries, adds the numbers to the marks, and returns the zones.
func numberZones(entries []entry) (zones []string) {
	for i := range entries {
		e := &entries[i]
		number := slices.Index(zones, e.zone)
		if number < 0 && e.zone != "" && len(zones) < maxTopologyZones {
			zones, number = append(zones, e.zone), len(zones)
		}
		e.mark |= uint16(number + 1)
	}
	return zones
}

// packEntries appends addresses and marks.
func (s *slice) packEntries(data []byte, entries []entry) []byte {
	for i := range entries {
		data = append(data, entries[i].addr.AsSlice()...)
		if entries[i].addr.Is4() {
			s.n4++
		} else {
			s.n6++
		}
	}
	s.marksAt = uint32(len(data))
	for i := range entries {
		if entries[i].mark&markReady != 0 {
			s.ready++
		}
		data = binary.BigEndian.AppendUint16(data, entries[i].mark)
	}
	return data
}

// packNames appends the regions of names.
func (s *slice) packNames(data []byte, entries []entry) []byte {
	var order []uint32
	for i := range entries {
		if entries[i].name != "" {
			order = append(order, uint32(i))
		}
	}
	s.namesAt = uint32(len(data))
	if len(order) == 0 {
		return data
	}
	s.named = uint32(len(order))
	offset := uint32(0)
	for i := range entries {
		data = binary.BigEndian.AppendUint32(data, offset)
		if entries[i].name != "" {
			offset += uint32(len(entries[i].name)) + 1
		}
	}
	slices.SortStableFunc(order, func(a, b uint32) int { return cmp.Compare(entries[a].name, entries[b].name) })
	for _, i := range order {
		data = binary.BigEndian.AppendUint32(data, i)
	}
	s.namesAt = uint32(len(data))
	for i := range entries {
		if entries[i].name != "" {
			data = appendLabel(data, entries[i].name)
		}
	}
	return data
}

func (s *slice) count() int { return int(s.n4 + s.n6) }

// mark returns the mark of entry e.
func (s *slice) mark(e int) uint16 { return u16(s.data, int(s.marksAt)+2*e) }

// addr returns the address of entry e.
func (s *slice) addr(e int) string {
	if n4 := int(s.n4); e >= n4 {
		at := 4*n4 + 16*(e-n4)
		return s.data[at : at+16]
	}
	return s.data[4*e : 4*e+4]
}

// addrs returns the addresses of addrLen bytes each, in the order of their entries.
func (s *slice) addrs(addrLen int) string {
	if addrLen == 4 {
		return s.data[:4*s.n4]
	}
	return s.data[4*s.n4 : s.marksAt]
}

// label returns the own name of entry e, which has one.
func (s *slice) label(e int) string {
	at := int(s.namesAt) + int(u32(s.data, int(s.marksAt)+2*s.count()+4*e))
	return s.data[at+1 : at+1+int(s.data[at])]
}

// entryByName returns the number of the k-th entry in the order of names.
func (s *slice) entryByName(k int) int { return int(u32(s.data, int(s.namesAt)-4*int(s.named)+4*k)) }

// zone returns the number of a topology zone, whose name is in wire form; 0: the slice does not have it.
func (s *slice) zone(name []byte) uint16 {
	list := s.data[s.zonesAt:s.portsAt]
	for i := uint16(1); list != ""; i++ {
		n := int(list[0]) + 1
		if list[1:n] == string(name) {
			return i
		}
		list = list[n:]
	}
	return 0
}

// cluster returns the id of the cluster as a label in wire form, or "".
func (s *slice) cluster() string { return s.data[s.clusterAt:s.zonesAt] }

func (s *slice) ports() portList { return portList(s.data[s.portsAt:]) }

// equal reports whether both slices pack the same object.
func (s *slice) equal(o *slice) bool {
	return s.key == o.key && s.n4 == o.n4 && s.n6 == o.n6 && s.named == o.named && s.clusterAt == o.clusterAt && s.zonesAt == o.zonesAt &&
		s.portsAt == o.portsAt && s.data == o.data
}

// family returns the range of entries whose address has addrLen bytes; 0: all entries.
func (s *slice) family(addrLen int) (first, end int) {
	switch addrLen {
	case 4:
		return 0, int(s.n4)
	case 16:
		return int(s.n4), s.count()
	}
	return 0, s.count()
}

// rangeByAddr returns the entries with the address.
func (s *slice) rangeByAddr(addr []byte) (first, end int) {
	first, end = s.family(len(addr))
	first += sort.Search(end-first, func(i int) bool { return s.addr(first+i) >= string(addr) })
	if first == end || s.addr(first) != string(addr) {
		return first, first
	}
	if first+1 == end || s.addr(first+1) != string(addr) {
		return first, first + 1 // the usual case: one entry has the address
	}
	return first, first + sort.Search(end-first, func(i int) bool { return s.addr(first+i) > string(addr) })
}

// rangeByName returns the entries with the own name, as a range of k for entryByName.
func (s *slice) rangeByName(label []byte) (first, end int) {
	named := int(s.named)
	first = sort.Search(named, func(k int) bool { return s.label(s.entryByName(k)) >= string(label) })
	if first == named || s.label(s.entryByName(first)) != string(label) {
		return first, first
	}
	if first+1 == named || s.label(s.entryByName(first+1)) != string(label) {
		return first, first + 1 // the usual case: one entry has the name
	}
	return first, first + sort.Search(named-first, func(k int) bool { return s.label(s.entryByName(first+k)) > string(label) })
}

// findDuplicates reports whether an address or own name occurs more than once. An own name that spells an address counts
// as a duplicate: an endpoint without its own name may have that address.
func (s *slice) findDuplicates() bool {
	for e := 1; e < s.count(); e++ {
		if s.addr(e) == s.addr(e-1) {
			return true
		}
	}
	var label [64]byte
	var addr [16]byte
	for k := range int(s.named) {
		name := s.label(s.entryByName(k))
		if k > 0 && name == s.label(s.entryByName(k-1)) || addrOfLabel(label[:copy(label[:], name)], &addr) != nil {
			return true
		}
	}
	return false
}

func u16(s string, at int) uint16 { return uint16(s[at])<<8 | uint16(s[at+1]) }

func u32(s string, at int) uint32 {
	return uint32(s[at])<<24 | uint32(s[at+1])<<16 | uint32(s[at+2])<<8 | uint32(s[at+3])
}

func (s *slice) refused() bool { return s != nil && s.clusterAt > 0 && s.count() == 0 }

// addrAt returns the address of entry e, or "" if there is none.
func (s *slice) addrAt(e int) string {
	if s == nil || e >= s.count() {
		return ""
	}
	return s.addr(e)
}

// runEnd returns the number after the last of the consecutive entries with the address, which start at e.
func (s *slice) runEnd(addr string, e int) int {
	for s.addrAt(e) == addr {
		e++
	}
	return e
}
