// SPDX-License-Identifier: Apache-2.0

package main

// none is no id.
const none = ^uint32(0)

// A list is ids in order, linked both ways, so that one can leave from the middle.
type list struct {
	newer, older   []uint32 // neighbours by id
	newest, oldest uint32
}

func newList(ids int) list {
	return list{newer: make([]uint32, ids), older: make([]uint32, ids), newest: none, oldest: none}
}

// push puts id at the newest end.
func (l *list) push(id uint32) {
	l.newer[id], l.older[id] = none, l.newest
	if l.newest == none {
		l.oldest = id
	} else {
		l.newer[l.newest] = id
	}
	l.newest = id
}

func (l *list) remove(id uint32) {
	newer, older := l.newer[id], l.older[id]
	if newer == none {
		l.newest = older
	} else {
		l.older[newer] = older
	}
	if older == none {
		l.oldest = newer
	} else {
		l.newer[older] = newer
	}
}
