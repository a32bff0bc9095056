// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"slices"
)

// Note says of one part of what is converted that it has no counterpart, or not quite.
type Note struct {
	File string // as it was given, for a ConfigMap of kube-dns its key
	Line int    // from 1; 0: the whole file
	What string // is meant, as it is written there
	Why  string // it is not there, or what is different
	Hint string // what to do instead; empty: nothing

	// Kept tells that there is a counterpart, which differs in what Why says. False: there is none.
	Kept bool
}

// String returns the note on one line, without its hint: Corefile:12: what: why.
func (n Note) String() string {
	place := n.File
	if n.Line > 0 {
		place = fmt.Sprintf("%s:%d", n.File, n.Line)
	}
	return place + ": " + n.What + ": " + n.Why
}

// inOrder sorts notes by their place, those of one line as they came.
func inOrder(notes []Note) []Note {
	slices.SortStableFunc(notes, func(a, b Note) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return notes
}
