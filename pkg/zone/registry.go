// SPDX-License-Identifier: Apache-2.0

package zone

import "sync/atomic"

// A registry gives immutable records a number that stays while they are replaced
// by newer versions. There is one writer at a time; readers take no lock.
type records[T any] struct {
	table atomic.Pointer[[]atomic.Pointer[T]]
	next  uint32   // numbers from here on were never given out
	free  []uint32 // numbers given back
}

func (g *records[T]) init() {
	records := make([]atomic.Pointer[T], minSlots)
	g.table.Store(&records)
}

// load gives the record that has the number now, or nil.
func (g *records[T]) load(id uint32) *T {
	records := *g.table.Load()
	if int(id) >= len(records) {
		return nil
	}
	return records[id].Load()
}

// add gives the record a number.
func (g *records[T]) add(record *T) uint32 {
	if n := len(g.free); n > 0 {
		id := g.free[n-1]
		g.free = g.free[:n-1]
		g.set(id, record)
		return id
	}
	id := g.next
	g.next++
	if records := *g.table.Load(); int(id) == len(records) {
		grown := make([]atomic.Pointer[T], len(records)+len(records)/2)
		for i := range records {
			grown[i].Store(records[i].Load())
		}
		g.table.Store(&grown)
	}
	g.set(id, record)
	return id
}

// set replaces the record with the number.
func (g *records[T]) set(id uint32, record *T) { (*g.table.Load())[id].Store(record) }

// drop takes the record out and the number back.
func (g *records[T]) drop(id uint32) {
	g.set(id, nil)
	g.free = append(g.free, id)
}

// each calls f for every record until it returns false. The writer may call it
// and change the record it is called with.
func (g *records[T]) each(f func(id uint32, record *T) bool) {
	records := *g.table.Load()
	for id := range records {
		if r := records[id].Load(); r != nil && !f(uint32(id), r) {
			return
		}
	}
}
