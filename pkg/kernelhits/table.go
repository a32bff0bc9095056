// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Bits of a key's variant.
const (
	variantAD   = 1
	variantEDNS = 2
	variantDO   = 4
)

// forgetAfter is how long, in ns, an answer stays in the table after its last use, and after it has expired.
const forgetAfter = 10 * uint64(time.Second)

// maxSeen bounds the questions whose offers are counted.
const maxSeen = 4096

// maxInVain limits how often between two sweeps fill asks in vain for the answer to a question: the kernel cannot give the answer, or
// it changed before the kernel gave it. Without the limit a flood of such queries, or of changes, would keep a CPU busy.
const maxInVain = 8

// A table is what the agent knows of the answers in the kernel. The goroutine of Run owns it, but for the fields under mu.
type table struct {
	k       *Responder
	most    int // maximum number of answers
	entries map[hitsKey]*entry
	free    []uint32           // unused indices of counters
	seen    map[hitsKey]offers // questions since the last sweep
	ranked  []*entry           // if the table is full: the entries at the last sweep, least used first, without those replaced since
	msg     wire.Message
	reply   []byte
	query   []byte
	counts  []uint64 // buffer for the values of one counter, by CPU

	mu       sync.Mutex // guards the fields below
	stats    Stats
	lastFull time.Time // when stats.Full last rose; zero: never
}

// Stats describe a table. The counters are since Open.
type Stats struct {
	Answers  int    `json:"answers"`  // in the kernel
	Capacity int    `json:"capacity"` // maximum of Answers
	Hits     uint64 `json:"hits"`     // queries answered by the kernel, as of the last sweep
	Filled   uint64 `json:"filled"`   // answers written
	Full     uint64 `json:"full"`     // questions not taken because all answers were in use
	Panics   uint64 `json:"panics"`   // recovered, each also logged with its stack
}

// offers of a question since the last sweep.
type offers struct {
	count  uint64 // offers while the kernel had no answer
	inVain int    // times that fill asked in vain, see maxInVain
}

// An entry is an answer in the kernel.
type entry struct {
	key     hitsKey
	hits    Hits      // what the method count reports; IPv4 and IPv6 are not set here
	index   uint32    // index of its counters
	counted [2]uint64 // counters at the last count: IPv4, IPv6
	epoch   uint32    // epoch, slot and version are those of the answer
	slot    [2]uint32
	version [2]uint32
	until   uint64 // the kernel gives the answer until then, in ns of CLOCK_BOOTTIME
	used    uint64 // when a sweep last found queries, or about the time of the first write; in ns of CLOCK_BOOTTIME
	recent  uint64 // queries since the last sweep: hits, and the offers before the first write
	last    uint64 // value of recent at the last sweep
}

func (t *table) init(k *Responder, most int) {
	t.k, t.most = k, most
	t.entries, t.seen = map[hitsKey]*entry{}, map[hitsKey]offers{}
	for i := range most {
		t.free = append(t.free, uint32(most-1-i))
	}
	t.stats.Capacity = most
	t.counts = make([]uint64, ebpf.MustPossibleCPU())
}

// keyOf returns the key of a plain query, see isPlain. It returns false if the name is invalid, or the class is not IN.
func keyOf(query []byte) (key hitsKey, nameLen int, ok bool) {
	nameLen = len(query) - 12 - 4 - optLen*int(query[11])
	key.NameLen = uint8(nameLen)
	wire.Canonical(key.Name[:nameLen], query[12:12+nameLen])
	end := 0
	for end < nameLen && key.Name[end] != 0 {
		end += 1 + int(key.Name[end])
	}
	key.Type = networkOrder(binary.BigEndian.Uint16(query[12+nameLen:]))
	if query[3]&0x20 != 0 {
		key.Variant |= variantAD
	}
	if query[11] != 0 {
		key.Variant |= variantEDNS
		if query[len(query)-optLen+7] != 0 {
			key.Variant |= variantDO
		}
	}
	class := binary.BigEndian.Uint16(query[12+nameLen+2:])
	return key, nameLen, end == nameLen-1 && class == wire.ClassIN
}

// fill writes the answer to an offered query, if it is one that the kernel may give.
func (t *table) fill(query []byte) {
	key, nameLen, ok := keyOf(query)
	if !ok {
		return
	}
	e := t.entries[key]
	if t.seen[key].inVain >= maxInVain || e == nil && !t.admit(key) {
		return
	}
	if e != nil && t.current(e) {
		return // the kernel has the answer, but does not serve this client
	}
	if e != nil && t.count(e) == 0 { // it changed before the kernel gave it; count also reports hits, which may make a refresh due
		t.addInVain(key)
	}
	// Every version is read before the answer: a change in between makes it outdated.
	a := hitsAnswer{Epoch: atomic.LoadUint32(&t.k.control.Epoch)}
	name := key.Name[:nameLen]
	owner := t.k.cfg.Owner(name)
	own, owned, space, zones := t.version(name), t.version(owner), t.version(parent(owner)), t.versionIn(zoneSlot)
	boot, now := bootTime(), t.k.cfg.Now() // in this order, so that no TTL of the kernel is longer than that of the agent
	reply, shared, ok := t.k.cfg.Source.SharedReply(t.widest(query), now, t.reply[:0])
	t.reply = reply
	if !ok || !t.encode(&a, reply, &shared, boot, 12+nameLen+4) {
		t.remove(key)
		t.addInVain(key)
		return
	}
	switch {
	case shared.Source != resolve.SourceZone:
	case shared.Single:
		own = space // the version of the namespace; the answer does not depend on the cache
	default:
		own, owned = zones, zones
	}
	a.Slot, a.Version = [2]uint32{own.slot, owned.slot}, [2]uint32{own.version, owned.version}
	t.write(key, e, &a, len(reply), &shared)
}

// A versionAt is a version that an answer depends on.
type versionAt struct{ slot, version uint32 }

// version returns the version of a name or an owner. Nil means no owner: its version changes only if a name has the same slot.
func (t *table) version(name []byte) versionAt {
	return t.versionIn(t.k.slot(name))
}

func (t *table) versionIn(slot uint32) versionAt {
	return versionAt{slot, uint32(atomic.LoadUint64(&t.k.version[slot]))}
}

// parent returns a name without its first label.
func parent(name []byte) []byte {
	if len(name) < 2 {
		return nil
	}
	return name[1+int(name[0]):]
}

// current reports whether the BPF program may still give the answer.
func (t *table) current(e *entry) bool {
	for i, slot := range e.slot {
		if uint32(atomic.LoadUint64(&t.k.version[slot])) != e.version[i] {
			return false
		}
	}
	return e.epoch == atomic.LoadUint32(&t.k.control.Epoch) && bootTime() < e.until
}

// admit reports whether to take a question that the kernel does not answer yet: at its second offer between two sweeps. For a full
// table it must have been offered more often than the least used answer, which it replaces. So a pod that asks for many names keeps
// out only names that are asked less often than each of these.
func (t *table) admit(key hitsKey) bool {
	if _, known := t.seen[key]; !known && len(t.seen) >= maxSeen {
		for other := range t.seen { // any
			delete(t.seen, other)
			break
		}
	}
	offered := t.seen[key]
	offered.count++
	t.seen[key] = offered
	if offered.count < 2 {
		return false
	}
	if len(t.free) > 0 || len(t.ranked) > 0 && t.ranked[0].last < offered.count {
		return true
	}
	t.update(func(s *Stats) {
		s.Full++
		t.lastFull = t.k.cfg.Now()
	})
	return false
}

func (t *table) addInVain(key hitsKey) {
	offered := t.seen[key]
	offered.inVain++
	t.seen[key] = offered
}

// widest returns query with the largest EDNS payload size, if it has EDNS.
func (t *table) widest(query []byte) []byte {
	t.query = append(t.query[:0], query...)
	if query[11] != 0 {
		binary.BigEndian.PutUint16(t.query[len(query)-optLen+3:], 0xffff)
	}
	return t.query
}

// encode sets in a what the BPF program sends. It returns false for a reply that this program cannot send.
func (t *table) encode(a *hitsAnswer, reply []byte, shared *resolve.Shared, boot uint64, questionEnd int) bool {
	data := reply[questionEnd:]
	if t.msg.Parse(reply) != nil || t.msg.Truncated() || len(data) > maxData || len(t.msg.Records) > maxRecords {
		return false
	}
	// A zone's denial ends when a zone changes or is old: most names of search lists are denied, and each end is a query to the agent.
	lasts := shared.Source == resolve.SourceZone && reply[6]|reply[7] == 0
	left := shared.Left
	for i, r := range t.msg.Records {
		if !lasts {
			left = min(left, time.Duration(t.msg.RecordTTL(r))*time.Second)
		}
		a.Ttl[i] = r.TTL - uint16(questionEnd)
	}
	if left <= 0 {
		return false
	}
	a.Until, a.Base = boot+uint64(left), boot-uint64(shared.Age%time.Second)
	a.Ttls = uint8(len(t.msg.Records))
	if first, count := t.msg.AddressRun(); count > 1 {
		a.RotateFirst, a.RotateCount, a.RotateSize = uint8(first), uint8(count), uint8(t.msg.Records[first].Size)
		a.RotateNear = uint8(shared.Near)
	}
	if shared.Source == resolve.SourceCache {
		a.CountsDown = 1
	} else {
		a.Zone = 1
	}
	if shared.Inside {
		a.Searched = 1
	}
	a.Flags, a.Len = binary.NativeEndian.Uint16(reply[2:]), uint16(len(data))
	for i := range a.Counts {
		a.Counts[i] = binary.NativeEndian.Uint16(reply[6+2*i:])
	}
	copy(a.Data[:], data)
	return true
}

// write puts the answer into the kernel. e is the entry of its key; nil: the kernel has no answer for this key yet.
func (t *table) write(key hitsKey, e *entry, a *hitsAnswer, size int, shared *resolve.Shared) {
	if e == nil {
		if len(t.free) == 0 {
			t.remove(t.ranked[0].key)
		}
		last := len(t.free) - 1
		e = &entry{key: key, index: t.free[last], used: a.Base, recent: t.seen[key].count}
		e.counted = t.read(e.index)
		t.free = t.free[:last]
		t.entries[key] = e
		delete(t.seen, key)
	}
	a.Index = e.index
	e.epoch, e.slot, e.version, e.until = a.Epoch, a.Slot, a.Version, a.Until
	e.hits = Hits{
		Key: append(e.hits.Key[:0], shared.Key...), Source: shared.Source, Type: networkOrder(key.Type), Rcode: int(networkOrder(a.Flags) & 0x0f),
		Inside: shared.Inside, Bytes: size,
	}
	if err := t.change(&key, func() error { return t.k.objects.Answers.Put(&key, a) }); err != nil {
		t.remove(key)
		return
	}
	t.update(func(s *Stats) {
		s.Filled++
		s.Answers = len(t.entries)
	})
}

// change calls do, which changes the answer in the kernel. Meanwhile queries for the name go to the agent.
func (t *table) change(key *hitsKey, do func() error) error {
	writes := &t.k.control.Writes[hashOf(key)>>56]
	atomic.AddUint32(writes, 1) // odd: a change is under way
	defer atomic.AddUint32(writes, 1)
	return do()
}

// hashOf returns the hash of the key's name.
func hashOf(key *hitsKey) (hash uint64) {
	for name := key.Name[:min(maxName, int(key.NameLen)+7)]; len(name) >= 8; name = name[8:] {
		hash = (hash ^ binary.NativeEndian.Uint64(name)) * nameHash
	}
	return hash
}

// remove removes the answer from the kernel.
func (t *table) remove(key hitsKey) {
	e := t.entries[key]
	if e == nil {
		return
	}
	_ = t.change(&key, func() error { return t.k.objects.Answers.Delete(&key) }) // the answer may be missing
	t.count(e)
	t.free = append(t.free, e.index)
	delete(t.entries, key)
	if i := slices.Index(t.ranked, e); i >= 0 {
		t.ranked = slices.Delete(t.ranked, i, i+1)
	}
	t.update(func(s *Stats) { s.Answers = len(t.entries) })
}

// read returns the counts of the answer with these counters: IPv4, IPv6.
func (t *table) read(index uint32) (sums [2]uint64) {
	for i := range sums {
		if t.k.objects.Hits.Lookup(2*index+uint32(i), &t.counts) == nil {
			for _, n := range t.counts {
				sums[i] += n
			}
		}
	}
	return sums
}

// count reports the hits since its last call to Config.Count, and returns their number.
func (t *table) count(e *entry) uint64 {
	now := t.read(e.index)
	h := e.hits
	h.IPv4, h.IPv6 = now[0]-e.counted[0], now[1]-e.counted[1]
	e.counted = now
	n := h.IPv4 + h.IPv6
	if n > 0 {
		t.update(func(s *Stats) { s.Hits += n })
		t.k.cfg.Count(h)
	}
	e.recent += n
	return n
}

// sweep counts the hits, removes answers that are unused (see forgetAfter), and ranks the others if the table is full.
func (t *table) sweep() {
	clear(t.seen)
	t.ranked = t.ranked[:0]
	now := bootTime()
	for key, e := range t.entries {
		t.count(e)
		if e.recent > 0 {
			e.used = now
		} else if now > max(e.used, e.until)+forgetAfter {
			t.remove(key)
		}
		e.last, e.recent = e.recent, 0
	}
	if len(t.free) > 0 {
		return
	}
	t.ranked = slices.AppendSeq(t.ranked, maps.Values(t.entries))
	slices.SortFunc(t.ranked, func(a, b *entry) int { return cmp.Compare(a.last, b.last) })
}

func (t *table) update(f func(*Stats)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.stats)
}

// LastFull returns when Stats.Full last rose, the zero time if it never has.
func (k *Responder) LastFull() time.Time {
	k.table.mu.Lock()
	defer k.table.mu.Unlock()
	return k.table.lastFull
}

// Stats returns the counters. Any goroutine may call it.
func (k *Responder) Stats() Stats {
	k.table.mu.Lock()
	defer k.table.mu.Unlock()
	s := k.table.stats
	s.Panics = k.panics.Load()
	return s
}

// Has reports whether the kernel has a current answer to a question: a name in canonical wire form and its type.
func (k *Responder) Has(name []byte, rrtype uint16) bool {
	if len(name) > maxName {
		return false
	}
	key := hitsKey{Type: networkOrder(rrtype), NameLen: uint8(len(name))}
	copy(key.Name[:], name)
	for key.Variant = range uint8(2 * variantDO) {
		var a hitsAnswer
		if k.objects.Answers.Lookup(&key, &a) == nil && k.isCurrent(&a) {
			return true
		}
	}
	return false
}

// isCurrent is current of bpf/hits.c, but does not check whether a zone is changing.
func (k *Responder) isCurrent(a *hitsAnswer) bool {
	if bootTime() >= a.Until || a.Epoch != atomic.LoadUint32(&k.control.Epoch) {
		return false
	}
	for i, slot := range a.Slot {
		if uint32(atomic.LoadUint64(&k.version[slot])) != a.Version[i] {
			return false
		}
	}
	return true
}
