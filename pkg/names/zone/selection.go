// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"iter"
	"math"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A selection selects entries of a node's slices: the published ones, all or those of one name.
type selection struct {
	r        *reply // the reply under construction; a walk spends its budget of steps
	node     *node
	rotation uint32     // where walks start, see rotationStart
	ports    portFilter // only slices with a matching port
	zone     []byte     // only entries in this topology zone, labels in wire form; nil: all
	cluster  []byte     // only slices of this cluster, a label in wire form; nil: all

	byName  bool // only entries whose name is label
	label   []byte
	addr    [16]byte // the address that the label spells
	addrLen int      // length of addr in bytes; 0: the label spells no address

	// The following fields belong to the current slice, see enter.
	allPorts   portList // the ports that the two next fields are computed from
	portCount  int      // number of matching ports; negative: not counted yet
	firstPort  portList // allPorts from the first matching port on
	zoneNumber uint16   // the slice's number for zone
}

// newSelection returns the selection of all published endpoints of the node.
func newSelection(r *reply, n *node) selection {
	return selection{r: r, node: n, rotation: r.rotation, portCount: -1}
}

// Costs in steps, each about 3 ns.
const (
	stepsEntry = 1 // cost of reading an entry
	stepsSlice = 8 // cost of entering a slice
)

// withLabel returns the selection reduced to the entries whose name is label. It keeps a reference to label.
func (sel selection) withLabel(label []byte) selection {
	sel.byName, sel.label = true, label
	var buf [16]byte
	sel.addrLen = copy(sel.addr[:], addrOfLabel(label, &buf))
	return sel
}

// addrOfLabel parses the address that the label names, into buf, or returns nil. Only the one spelling that
// appendDashed makes names the address.
func addrOfLabel(label []byte, buf *[16]byte) []byte {
	addr := parseDashed(label, buf)
	if addr == nil {
		return nil
	}
	var text [maxDashed + 1]byte
	if string(appendDashed(text[:0], addr)) != string(label) {
		return nil
	}
	return addr
}

// hasOwnName reports whether entry e is named by its hostname or its pod, and not by its address.
func (sel *selection) hasOwnName(s *slice, e int) bool {
	mark := s.mark(e)
	return mark&markHost != 0 || sel.r.z.cfg.PodNames && mark&markPod != 0
}

// appendName appends the label of entry e, and that of its cluster if it has one.
func (sel *selection) appendName(dst []byte, s *slice, e int) []byte {
	if sel.hasOwnName(s, e) {
		return append(appendLabel(dst, s.label(e)), s.cluster()...)
	}
	var addr [16]byte
	at := len(dst)
	dst = append(dst, 0)
	dst = appendDashed(dst, addr[:copy(addr[:], s.addr(e))])
	dst[at] = byte(len(dst) - at - 1)
	return append(dst, s.cluster()...)
}

// notEmpty reports whether there is an entry. It may be true if the budget ended before one was found.
func (sel *selection) notEmpty() (found bool) {
	sel.walk(0, func(*slice, int) bool {
		found = true
		return false
	})
	return found || sel.r.steps < 0
}

// count returns the sum, over the entries, of the matching ports of their slices. It stops once the sum exceeds most.
func (sel *selection) count(most int) (n int) {
	sel.walk(0, func(*slice, int) bool {
		n += sel.portCount
		return n <= most
	})
	return n
}

// walk calls yield with each entry whose address has addrLen bytes, 0 for any, until it returns false. It goes slice by
// slice, starts at another entry with each rotation, and wraps around. Every step costs part of the answer's budget, and
// the walk ends when that is spent.
func (sel *selection) walk(addrLen int, yield func(s *slice, e int) bool) {
	if sel.byName {
		sel.walkNamed(addrLen, yield)
		return
	}
	list := sel.node.slices
	first, fraction := rotationStart(sel.rotation, len(list))
	for i := range list {
		s := list[(first+i)%len(list)]
		if !sel.r.spend(stepsSlice) {
			return
		}
		if !sel.enter(s) {
			continue
		}
		from, end := s.family(addrLen)
		for k := range rotated(from, end, fraction) {
			if !sel.r.spend(stepsEntry) || sel.matches(s, k) && !yield(s, k) {
				return
			}
		}
	}
}

// walkNamed is walk for a selected label: it looks up the slices with label as an own name, then those with the address it spells.
func (sel *selection) walkNamed(addrLen int, yield func(s *slice, e int) bool) {
	if sel.r.ownSlices {
		sel.walkOwn(addrLen, yield)
		return
	}
	store := sel.r.z.cfg.Store
	chain, fraction := newCandidateChain(&store.slicesByLabel, store.labelHash(sel.node.key, string(sel.label)), sel.rotation)
	for own := true; ; {
		id, ok := chain.next()
		switch {
		case !ok && own && sel.addrLen > 0:
			own = false
			chain, _ = newCandidateChain(&store.slicesByAddr, store.hash(sel.addr[:sel.addrLen]), 0)
			continue
		case !ok, !sel.r.spend(stepsSlice):
			return
		}
		if s := sel.node.slice(id); s != nil && sel.enter(s) && !sel.walkSlice(s, own, fraction, addrLen, yield) {
			return
		}
	}
}

// walkOwn is walkNamed without the store's indexes: it reads all slices of the node.
func (sel *selection) walkOwn(addrLen int, yield func(s *slice, e int) bool) {
	for _, own := range []bool{true, false} {
		for _, s := range sel.node.slices {
			if (own || sel.addrLen > 0) && sel.enter(s) && !sel.walkSlice(s, own, 0, addrLen, yield) {
				return
			}
		}
	}
}

// walkSlice is walkNamed for one slice: for entries with label as own name or, without own, with its address. It reports whether to go on.
func (sel *selection) walkSlice(s *slice, own bool, fraction uint32, addrLen int, yield func(s *slice, e int) bool) bool {
	from, end := s.rangeByAddr(sel.addr[:sel.addrLen])
	if own {
		from, end = s.rangeByName(sel.label)
	}
	for e := range rotated(from, end, fraction) {
		if own {
			e = s.entryByName(e)
		}
		if !sel.r.spend(stepsEntry) {
			return false
		}
		if (addrLen == 0 || len(s.addr(e)) == addrLen) && sel.hasOwnName(s, e) == own && sel.matches(s, e) && !yield(s, e) {
			return false
		}
	}
	return true
}

// rotated returns the numbers from, ..., end-1. It starts at fraction/2^32 of the range and wraps around.
func rotated(from, end int, fraction uint32) iter.Seq[int] {
	return func(yield func(int) bool) {
		middle := from + int(uint64(fraction)*uint64(end-from)>>32)
		for i := middle; i < end; i++ {
			if !yield(i) {
				return
			}
		}
		for i := from; i < middle; i++ {
			if !yield(i) {
				return
			}
		}
	}
}

// enter makes the slice the current one. It reports false if nothing in it can match.
func (sel *selection) enter(s *slice) bool {
	if s.ready == 0 && !sel.node.svc.publish || sel.cluster != nil && s.cluster() != string(sel.cluster) {
		return false
	}
	if sel.zone != nil {
		if sel.zoneNumber = s.zone(sel.zone); sel.zoneNumber == 0 {
			return false
		}
	}
	if all := s.ports(); sel.portCount < 0 || all != sel.allPorts { // most slices of a service have the same ports
		sel.allPorts = all
		sel.firstPort, sel.portCount = sel.ports.selectFrom(all)
		sel.r.spend(len(all) / stepsSlice)
	}
	return sel.portCount > 0 || !sel.ports.byName
}

// matches reports whether entry e is published, and in the selected topology zone.
func (sel *selection) matches(s *slice, e int) bool {
	mark := s.mark(e)
	return (mark&markReady != 0 || sel.node.svc.publish) && (sel.zone == nil || mark&markZone == sel.zoneNumber)
}

// numbered reports whether a matching port has a number. Ports without a number come first.
func (sel *selection) numbered() bool {
	for l := sel.firstPort; l != ""; l = l.rest() {
		if l.number() != 0 && sel.ports.match(l) {
			return true
		}
	}
	return false
}

// rotationStart returns where the walk of a set of n slices starts if a message cannot hold the set: the slice, and the
// position in it as a fraction of 2^32. The starts of consecutive rotations, and of every k-th rotation, are evenly
// distributed: they are multiples of the golden ratio.
func rotationStart(turn uint32, n int) (place int, rest uint32) {
	const golden = 2654435769 // 2^32 divided by the golden ratio
	at := uint64(turn*golden) * uint64(n)
	return int(at >> 32), uint32(at)
}

// appendAddrs appends the addresses of the selection without duplicates, those of the node's topology zone first.
func (sel *selection) appendAddrs(addrLen int) {
	r := sel.r
	sel.beginDedup(int(sel.node.total))
	defer r.endDedup()
	if int(sel.node.total) <= (r.maxSize-(len(r.dst)-r.start))/addressRecordLen(addrLen) {
		sel.rotation = 0 // all addresses fit: r.rotate rotates the records below
	}
	near, first := 0, len(r.dst)
	if r.z.nodeZone != nil && sel.zone == nil {
		sel.zone = r.z.nodeZone
		near = sel.appendGroup(addrLen, false)
		sel.zone = nil
	}
	far, second := 0, len(r.dst)
	if !r.truncated() {
		far = sel.appendGroup(addrLen, near > 0)
	}
	r.answer += near + far
	r.near = near
	if !r.truncated() { // a truncated set is rotated by where its walks start
		r.rotate(first, near, addrLen)
		r.rotate(second, far, addrLen)
	}
}

// appendGroup appends the addresses of the selection and returns their number. With onlyFar it skips those in the node's topology zone.
func (sel *selection) appendGroup(addrLen int, onlyFar bool) int {
	r := sel.r
	n, near, last := 0, uint16(0), (*slice)(nil)
	sel.walk(addrLen, func(s *slice, e int) bool {
		if onlyFar {
			if s != last {
				last, near = s, s.zone(r.z.nodeZone)
			}
			if near != 0 && s.mark(e)&markZone == near {
				return true
			}
		}
		at := len(r.dst)
		r.appendAddress(r.at, s.addr(e), r.ttl)
		switch {
		case r.dropDuplicate(at):
			return true
		case r.tooLong(at):
			r.truncate()
			return false
		}
		n++
		return true
	})
	r.endWalk()
	return n
}

// appendSRV appends the SRV records of the selection, one per endpoint name and port number, and the endpoints'
// addresses. left is the number of labels left of the service's name.
func (sel *selection) appendSRV(left int) {
	r := sel.r
	at := int(r.offsets[left])
	suffix := r.name[at:]
	weight := weightOf(max(1, sel.count(minRecordsOfWeightOne)))
	before := r.answer
	sel.beginDedup(maxMessageRecords)
	defer r.endDedup()
	sel.walk(0, func(s *slice, e int) bool { return sel.appendEntrySRV(s, e, weight, suffix) })
	r.endWalk()
	if r.answer == before || r.truncated() {
		return
	}
	sel.walk(0, func(s *slice, e int) bool { return !sel.numbered() || sel.appendTarget(s, e, r.at+at, len(suffix)) })
}

// appendEntrySRV appends the SRV records of entry e of the current slice. It reports false if the message is full.
func (sel *selection) appendEntrySRV(s *slice, e int, weight uint16, suffix []byte) bool {
	r := sel.r
	var buf [2 * (1 + wire.MaxLabel)]byte
	label := sel.appendName(buf[:0], s, e)
	size := len(label) + len(suffix)
	if size > wire.MaxName {
		return true // the name would be too long
	}
	last := uint16(0)
	for l, left := sel.firstPort, sel.portCount; left > 0 && l != ""; l = l.rest() {
		if !sel.ports.match(l) {
			continue
		}
		left--
		if l.number() == last {
			continue
		}
		if !r.spend(stepsEntry) {
			return false
		}
		last = l.number()
		at := len(r.dst)
		r.appendSRV(r.at, r.ttl, weight, last, size)
		r.dst = append(append(r.dst, label...), suffix...)
		if r.dropDuplicate(at) {
			continue
		}
		if r.tooLong(at) {
			r.truncate()
			return false
		}
		r.answer++
	}
	return true
}

// appendTarget appends the address record of entry e. Its owner is the entry's label and a pointer to the rest of the name, which is at
// that offset in the message and has rest bytes. It reports false if the message is full.
func (sel *selection) appendTarget(s *slice, e, at, rest int) bool {
	r := sel.r
	begin := len(r.dst)
	r.dst = sel.appendName(r.dst, s, e)
	if len(r.dst)-begin+rest > wire.MaxName {
		r.dst = r.dst[:begin]
		return true
	}
	r.appendAddress(at, s.addr(e), r.ttl)
	if r.dropDuplicate(begin) {
		return true
	}
	if r.tooLong(begin) {
		return false
	}
	r.extra++
	return true
}

// beginDedup starts the detection of duplicates for up to most records of the selection, if there may be any.
func (sel *selection) beginDedup(most int) {
	r := sel.r
	if !sel.node.mayHaveDuplicates() {
		return
	}
	records := min(most, r.maxSize/minRecordLen)
	if r.maxSize == math.MaxInt { // a transfer has no limit
		records = 0
		for _, s := range sel.node.slices {
			records += s.count() * max(1, sel.ports.count(s.ports()))
		}
	}
	slots := 64
	for slots < 2*records {
		slots *= 2
	}
	t := dedupTables.Get().(*dedupTable)
	if slots <= maxDedupSlots {
		t.slots = t.buf[:slots]
		clear(t.slots)
	} else {
		t.slots = make([]uint32, slots)
	}
	r.dedup = t
}

// minRecordsOfWeightOne is the number of SRV records from which on each has a weight of 1.
const minRecordsOfWeightOne = 51

// weightOf returns the weight of each of n SRV records, as in CoreDNS.
func weightOf(n int) uint16 { return uint16(max(1, 100/n)) }
