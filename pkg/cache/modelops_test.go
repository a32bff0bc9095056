// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/wire"
)

// reconcile drops key from the model if the cache evicted it, and reports whether it is stored.
func (m *model) reconcile(key []byte) (*stored, bool) {
	m.tb.Helper()
	held, e := m.c.Holds(key), m.entries[string(key)]
	if held && e == nil {
		m.tb.Fatalf("%x is held and was never stored", key)
	}
	if !held {
		delete(m.entries, string(key))
	}
	return m.entries[string(key)], held
}

// drop removes key from the model and reports whether it was stored.
func (m *model) drop(key []byte) bool {
	m.tb.Helper()
	_, held := m.reconcile(key)
	delete(m.entries, string(key))
	return held
}

// state returns the freshness of e at a time, without PrefetchDue.
func (m *model) state(e *stored, now time.Time) cache.Freshness {
	if e == nil {
		return cache.Absent
	}
	late := now.Sub(m.end(e))
	switch {
	case m.outdated(e):
		return cache.Absent
	case late < 0 && e.failure:
		return cache.Failed
	case late < 0:
		return cache.Fresh
	case e.failure || late >= m.stale.Window:
		return cache.Absent
	case now.Before(e.rest):
		return cache.StaleBackoff
	default:
		return cache.Stale
	}
}

// outdated reports whether an answer may predate its owner's last change.
func (m *model) outdated(e *stored) bool {
	if e.answer.Owner == nil {
		return false
	}
	event, ok := m.events[m.c.Tag(e.answer.Owner)]
	if e.kept {
		return ok && !e.at.After(event)
	}
	return ok && e.asked.Before(event.Add(time.Second))
}

// vouchedAt returns the last call of Vouch for e.
func (m *model) vouchedAt(e *stored) time.Time {
	if e.answer.Msg[6]|e.answer.Msg[7] == 0 {
		return m.vouched[1]
	}
	return m.vouched[0]
}

func (m *model) vouch(denials bool) {
	m.c.Vouch(m.now, denials)
	m.vouched[0] = m.now
	if denials {
		m.vouched[1] = m.now
	}
}

// end returns when e expires.
func (m *model) end(e *stored) time.Time {
	end := e.at.Add(e.life)
	if kept := m.vouchedAt(e).Add(max(5*time.Second, e.life)); e.kept && kept.After(end) {
		return kept
	}
	return end
}

// age returns the age by which the TTLs of e are counted down.
func (m *model) age(e *stored, now time.Time) time.Duration {
	from := e.at
	if vouched := m.vouchedAt(e); e.kept {
		if now.Sub(vouched) < 5*time.Second {
			return 0
		}
		if vouched.After(from) {
			from = vouched
		}
	}
	return max(0, now.Sub(from))
}

// unkeep makes e ordinary; nil: there is none.
func (m *model) unkeep(e *stored) {
	if e == nil || !e.kept {
		return
	}
	if !m.outdated(e) {
		if vouched := m.vouchedAt(e); vouched.After(e.at) {
			e.at, e.asked = vouched, vouched
		}
		e.rest = time.Time{}
	}
	e.kept = false
}

func (m *model) changed(key []byte, ago int) {
	m.tb.Helper()
	owner := ownerOf(nameOf(key))
	if owner == nil {
		return
	}
	at, tag := m.now.Add(-time.Duration(ago)*100*time.Millisecond), m.c.Tag(owner)
	m.c.OwnerChanged(owner, at)
	if event, ok := m.events[tag]; !ok || event.Before(at) {
		m.events[tag] = at
	}
	for _, since := range []time.Time{m.now, at, at.Add(-1), epoch} {
		if want, got := m.events[tag].After(since), m.c.ChangedSince(owner, since); got != want {
			m.tb.Fatalf("outdated since %v: %t, want %t", since, got, want)
		}
	}
}

func (m *model) put(key []byte, shape, life, more int) {
	m.tb.Helper()
	lives := []int{1, 2, 5, 7, 30, 100, 300, 0}
	a := m.answer(key, shape, time.Duration(lives[life%len(lives)])*time.Second)
	a.Kept = shape >= 128
	a.Owner, a.QueriedAt = ownerOf(nameOf(key)), m.now.Add(-time.Duration(more)*200*time.Millisecond/3)
	if more%7 == 0 {
		a.QueriedAt = time.Time{} // just now
	}
	target := key
	rcode, inAuthority := byte(wire.RcodeSuccess), more%3 == 0
	switch more % 12 {
	case 0, 3: // the name does not exist
		a.AllTypes, rcode = true, wire.RcodeNXDomain
		target = denialKeyOf(key)
	case 1, 6: // aliases that end in a name that does not exist; the name does not exist, says the answer for this type
		rcode = wire.RcodeNXDomain
	}
	a.Msg[3] |= rcode
	if inAuthority { // the name exists, and has no such records, if it is not denied
		copy(a.Msg[8:10], a.Msg[6:8])
		a.Msg[6], a.Msg[7] = 0, 0
	}
	e := &stored{answer: a, at: m.now, asked: m.now, life: a.Lifetime}
	e.kept = a.Kept && a.Owner != nil
	if !a.QueriedAt.IsZero() && !e.kept {
		e.asked = m.now.Add(-(m.now.Sub(a.QueriedAt) + 100*time.Millisecond - 1).Truncate(100 * time.Millisecond))
	}
	had := map[string]bool{}
	for _, key := range [][]byte{key, denialKeyOf(key)} {
		_, had[string(key)] = m.reconcile(key)
	}
	m.c.Put(key, a, m.now)
	switch {
	case a.Owner != nil && (m.now.Sub(e.asked) > 25500*time.Millisecond || m.outdated(e)):
		m.want.Outdated++
		return
	case typeOf(target) == 0 && !a.AllTypes:
		m.want.Rejected++
		return
	}
	for _, other := range [][]byte{key, denialKeyOf(key)} {
		if !bytes.Equal(other, target) && (typeOf(other) == 0 || typeOf(target) == 0) && had[string(other)] {
			m.replaced++
			delete(m.entries, string(other))
		}
	}
	m.stored(target, e, had[string(target)])
}

// stored records that e was put into the cache under key.
func (m *model) stored(key []byte, e *stored, held bool) {
	m.tb.Helper()
	if !m.c.Fits(key, e.answer) || e.life < time.Second {
		m.want.Rejected++
		if held {
			m.replaced++
			delete(m.entries, string(key))
		}
		return
	}
	m.want.Insertions++
	if !held {
		m.added++
	}
	m.entries[string(key)] = e
	if !m.c.Holds(key) {
		m.tb.Fatalf("%x was stored and is not held", key)
	}
}

// answer returns a unique answer of one of many shapes.
func (m *model) answer(key []byte, shape int, life time.Duration) *cache.Answer {
	mark := binary.BigEndian.AppendUint64(nil, m.want.Insertions)
	var records []rr
	if shape%3 == 0 {
		records = append(records, rr{rrtype: 5, ttl: uint32(shape), rdata: mark})
	}
	first, count := len(records), shape%7
	size := 4
	if shape%2 == 0 {
		size = 16
	}
	for i := range count {
		records = append(records, rr{rrtype: 1, ttl: 60, rdata: fmt.Appendf(nil, "%-*d", size, i)[:size]})
	}
	records = append(records, rr{rrtype: 16, ttl: uint32(life / time.Second), rdata: append(mark, make([]byte, shape/16*70)...)})
	a := answerTo(key, life, records...)
	if count > 0 {
		a.RotateFirst, a.RotateCount = first, count
	}
	return a
}

func (m *model) putFailure(key []byte, choice int) {
	m.tb.Helper()
	first, limit := time.Second, time.Duration(1+choice%6)*time.Second
	a := answerTo(key, first)
	e, held := m.reconcile(key)
	denial, _ := m.reconcile(denialKeyOf(key))
	usable := m.recordFailure(e, first)
	if denial != e {
		usable = m.recordFailure(denial, first) || usable
	}
	m.c.PutFailure(key, a.Msg, first, limit, m.now)
	if usable || typeOf(key) == 0 {
		return
	}
	if e != nil && e.failure && m.now.Sub(e.at) < 2*e.life {
		a.Lifetime = min(2*e.life, limit)
	}
	m.stored(key, &stored{answer: a, at: m.now, life: a.Lifetime, failure: true}, held)
}

// recordFailure puts e into backoff after a failure, if it is usable.
func (m *model) recordFailure(e *stored, first time.Duration) bool {
	switch m.state(e, m.now) {
	case cache.Fresh, cache.Stale, cache.StaleBackoff:
		rest := first
		for range e.failures {
			rest = min(2*rest, m.stale.TTL)
		}
		e.rest = m.now.Add(min(rest, m.stale.TTL))
		e.failures++
		return true
	default:
		return false
	}
}

func (m *model) delayRefresh(key []byte, choice int) {
	m.tb.Helper()
	until := m.now.Add(time.Duration(choice-10) * 100 * time.Millisecond)
	e, _ := m.reconcile(key)
	denial, _ := m.reconcile(denialKeyOf(key))
	m.c.DelayRefresh(key, until, m.now)
	for _, e := range []*stored{e, denial} {
		if state := m.state(e, m.now); (state == cache.Stale || state == cache.StaleBackoff) && e.rest.Before(until) {
			e.rest = until
		}
	}
}

// find returns the entry for the question of key in the order of Lookup, or an unusable one.
func (m *model) find(key []byte, now time.Time) (e *stored, found cache.Freshness) {
	m.tb.Helper()
	exact, _ := m.reconcile(key)
	denial, _ := m.reconcile(denialKeyOf(key))
	newer, older := exact, denial
	if exact == nil || denial != nil && !denial.at.Before(exact.at) {
		newer, older = denial, exact
	}
	order := []struct {
		e      *stored
		states []cache.Freshness
	}{
		{exact, []cache.Freshness{cache.Fresh}},
		{denial, []cache.Freshness{cache.Fresh}},
		{newer, []cache.Freshness{cache.Stale, cache.StaleBackoff}},
		{older, []cache.Freshness{cache.Stale, cache.StaleBackoff}},
		{exact, []cache.Freshness{cache.Failed}},
	}
	for _, o := range order {
		if state := m.state(o.e, now); slices.Contains(o.states, state) {
			return o.e, state
		}
	}
	if exact != nil {
		return exact, cache.Absent
	}
	return denial, cache.Absent
}

// lookup looks key up with a clock that is behind.
func (m *model) lookup(key []byte, late time.Duration) {
	m.tb.Helper()
	now := m.now.Add(-late)
	e, want := m.find(key, now)
	prefix := []byte("before")
	got, found := m.c.Lookup(key, now, prefix)
	if diff := cmp.Diff("before", string(got[:len(prefix)])); diff != "" {
		m.tb.Fatalf("bytes in front changed (-want +got)\n%s", diff)
	}
	got = got[len(prefix):]
	switch want {
	case cache.Absent, cache.Stale:
		m.want.Misses++
		switch {
		case e == nil:
		case m.outdated(e):
			m.want.Invalidated++
		default:
			m.want.Expired++
		}
		if found != want || len(got) > 0 {
			m.tb.Fatalf("%x: found %d %x, want %d and nothing", key, found, got, want)
		}
		if want == cache.Stale {
			e.hits++
		}
		return
	case cache.StaleBackoff:
		m.want.Stale++
		e.hits++
	default:
		m.want.Hits++
		want = m.freshness(e, now)
	}
	if found != want {
		m.tb.Fatalf("%x: freshness %d, want %d of %+v", key, found, want, e)
	}
	m.compare(e, key, want == cache.StaleBackoff, now, got)
}

// compare checks got, the answer of e to the question of key.
func (m *model) compare(e *stored, key []byte, stale bool, now time.Time, got []byte) {
	m.tb.Helper()
	want := e.asOf(m.age(e, now))
	if stale {
		for _, off := range e.answer.TTLs {
			binary.BigEndian.PutUint32(want[off:], uint32(m.stale.TTL/time.Second))
		}
	}
	binary.BigEndian.PutUint16(want[wire.HeaderLen+len(nameOf(key)):], typeOf(key))
	if diff := cmp.Diff(want, got); diff != "" {
		m.tb.Fatalf("%x (-want +got)\n%s", key, diff)
	}
	e.turn++
}

func (m *model) lookupStale(key []byte) {
	m.tb.Helper()
	e, state := m.find(key, m.now)
	got, found := m.c.LookupStale(key, m.now, nil)
	stale := state == cache.Stale || state == cache.StaleBackoff
	if want := stale || state == cache.Fresh; found != want {
		m.tb.Fatalf("%x: found %t, want %t of %+v", key, found, want, e)
	}
	if stale {
		m.want.Stale++
	}
	if found {
		m.compare(e, key, stale, m.now, got)
	}
}

// denialOfName returns the fresh denial of a name, all types before A before AAAA, the last one there is, and its key.
// Another fresh answer of these types contradicts it.
func (m *model) denialOfName(key []byte) (denial *stored, under []byte) {
	m.tb.Helper()
	for _, rrtype := range []uint16{0, wire.TypeA, wire.TypeAAAA} {
		key := bytes.Clone(key)
		binary.BigEndian.PutUint16(key[len(nameOf(key)):], rrtype)
		if !slices.ContainsFunc(m.all, func(k []byte) bool { return bytes.Equal(k, key) }) {
			continue
		}
		e, _ := m.reconcile(key)
		if m.state(e, m.now) != cache.Fresh {
			continue
		}
		if rrtype != 0 && (e.answer.Msg[3]&15 != wire.RcodeNXDomain || e.answer.Msg[7] > 0) {
			return nil, nil
		}
		denial, under = e, key
	}
	return denial, under
}

// lookupNXDomainCut looks for the denial of an ancestor of name.
func (m *model) lookupNXDomainCut(name []byte, floor int, flags byte) {
	m.tb.Helper()
	floor %= 20
	var e *stored
	var denial []byte
	for parent := name; e == nil && parent[0] != 0; {
		parent = parent[1+parent[0]:]
		if parent[0] == 0 || len(parent) < floor {
			continue
		}
		e, denial = m.denialOfName(append(bytes.Clone(parent), 0, 0, flags))
	}
	got, found := m.c.LookupNXDomainCut(name, floor, flags, m.now, nil)
	if found != (e != nil) {
		m.tb.Fatalf("%x from %d: found %t %x, want %+v", name, floor, found, got, e)
	}
	if found {
		m.want.NXDomainCut++
		e.hits++
		m.compare(e, denial, false, m.now, got)
	}
}

func (m *model) remove(key []byte) {
	m.tb.Helper()
	if m.drop(key) {
		m.want.Removed++
	}
	if typeOf(key) != 0 && m.drop(denialKeyOf(key)) {
		m.want.Removed++
	}
	m.c.Remove(key)
}

func (m *model) flush(name []byte, tree bool) {
	m.tb.Helper()
	want := 0
	for _, key := range m.all {
		if (bytes.Equal(nameOf(key), name) || tree && below(nameOf(key), name)) && m.drop(key) {
			want++
		}
	}
	m.want.Removed += uint64(want)
	if got := m.c.Flush(name, tree); got != want {
		m.tb.Fatalf("flushed %d of %x (and below: %t), want %d", got, name, tree, want)
	}
}

func (m *model) expire(zone []byte) {
	for key, e := range m.entries {
		if !below(nameOf([]byte(key)), zone) {
			continue
		}
		m.unkeep(e)
		if age := max(0, m.now.Sub(e.at)); age < e.life {
			e.life = age.Truncate(time.Second)
		}
		e.rest = time.Time{}
	}
	m.c.Expire(zone, m.now)
}

// freshness counts a lookup of e and returns its expected freshness.
func (m *model) freshness(e *stored, now time.Time) cache.Freshness {
	e.hits++
	if e.failure {
		return cache.Failed
	}
	left := e.life - now.Sub(e.at)
	if e.kept || m.prefetch.Hits <= 0 || e.hits < m.prefetch.Hits || e.due || float64(left) >= float64(e.life)*min(1, max(0, m.prefetch.Remaining)) {
		return cache.Fresh
	}
	e.due = true
	return cache.PrefetchDue
}

// asOf returns the answer as Lookup returns it at an age.
func (e *stored) asOf(since time.Duration) []byte {
	msg := append([]byte(nil), e.answer.Msg...)
	age := uint32(since / time.Second)
	for _, off := range e.answer.TTLs {
		ttl := binary.BigEndian.Uint32(msg[off:])
		binary.BigEndian.PutUint32(msg[off:], ttl-min(ttl, age))
	}
	rdata := rdataOf(e.answer, e.answer.Msg)
	first, count := e.answer.RotateFirst, e.answer.RotateCount
	for i := range count {
		copy(msg[e.answer.TTLs[first+i]+6:], rdata[first+(i+e.turn)%count])
	}
	return msg
}

func (m *model) setStale(choice int) {
	m.stale = cache.ServeStale{
		Window: []time.Duration{0, 2 * time.Second, 10 * time.Second, time.Hour}[choice%4],
		TTL:    []time.Duration{time.Second, 3 * time.Second, 30 * time.Second}[choice/4%3],
	}
	m.c.SetServeStale(m.stale)
}

func (m *model) setPrefetch(choice int) {
	m.prefetch = cache.Prefetch{Hits: choice%5 - 1, Remaining: []float64{0.1, 0.5, 1, 0, -1, 7}[choice/5%6]}
	m.c.SetPrefetch(m.prefetch)
}

func (m *model) resize(choice int) {
	m.tb.Helper()
	for _, key := range m.all {
		m.reconcile(key)
	}
	old := m.c
	var err error
	switch choice % 8 {
	case 0:
		m.c, err = old.Resize(cache.MinSize, m.now)
	default:
		m.c, err = old.ResizeTiny(1<<(10+choice%8), 1<<(choice/8%3), m.now)
	}
	assert.NoError(m.tb, err)
	if choice%8 == 0 {
		for _, key := range m.all {
			before := m.entries[string(key)]
			if _, held := m.reconcile(key); before != nil && m.state(before, m.now) != cache.Absent && !held {
				m.tb.Fatalf("%x was usable and is missing in the larger cache", key)
			}
		}
	}
	if choice%3 == 0 {
		m.c = old // leads on
	}
	s := m.c.Stats()
	m.want = cache.Stats{}
	m.replaced = 0
	m.added = uint64(s.Entries) + s.Evictions + s.Expirations
}
