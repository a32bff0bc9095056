// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// writeTable is the kernel's side of chainNames: each chain's first entry, a rule
// after it, and the table's last entry.
func writeTable(targets int, chains []string) []byte {
	head := (targets + 4 + 4 + 16 + 7) &^ 7
	entry := func(target string, data []byte) []byte {
		e := make([]byte, (head+32+len(data)+7)&^7)
		binary.NativeEndian.PutUint16(e[targets:], uint16(head))
		binary.NativeEndian.PutUint16(e[targets+2:], uint16(len(e)))
		binary.NativeEndian.PutUint16(e[head:], uint16(len(e)-head))
		copy(e[head+2:head+31], target)
		copy(e[head+32:], data)
		return e
	}
	name := func(s string) []byte {
		b := make([]byte, 30)
		copy(b[:29], s)
		return b
	}
	table := entry("", make([]byte, 4)) // the policy of a built-in chain
	for _, c := range chains {
		table = append(table, entry("ERROR", name(c))...)
		table = append(table, entry("DNAT", make([]byte, 24))...)
		table = append(table, entry("", make([]byte, 4))...)
	}
	return append(table, entry("ERROR", name("ERROR"))...)
}

func FuzzChainNames(f *testing.F) {
	f.Add("KUBE-SERVICES,KUBE-MARK-MASQ", true, 0, byte(0))
	f.Add("", false, 0, byte(0))
	f.Add("a", false, 90, byte(255))
	f.Fuzz(func(t *testing.T, list string, v6 bool, at int, to byte) {
		var want []string
		for c := range strings.SplitSeq(list, ",") {
			if c != "" && c != "ERROR" && len(c) < 30 && !strings.Contains(c, "\x00") {
				want = append(want, c)
			}
		}
		targets := families46()[0].targets
		if v6 {
			targets = families46()[1].targets
		}
		table := writeTable(targets, want)
		if got := chainNames(table, targets); !cmp.Equal(want, got) {
			t.Errorf("chainNames = %q, want %q", got, want)
		}
		// Of a damaged table it reads what it can, and no more than there is.
		if at >= 0 {
			table[at%len(table)] = to
		}
		layout := families46()[0]
		if v6 {
			layout = families46()[1]
		}
		if got := layout.untrackedBy(table[:len(table)-at&7]); len(got) > 2*len(want)+1 {
			t.Errorf("%d chains out of a table of %d exempt packets", len(got), len(want))
		}
		if chains, err := layout.rawChains(table[:len(table)-at&7]); err != nil || len(chains) > 2*len(want)+1 {
			t.Errorf("%d chains out of a table of %d, %v", len(chains), len(want), err)
		} else {
			b := rawBase{chains, preroutingChain, priorityRaw, yes, "", strings.ToUpper}
			flows := testFlows()
			b.notracks(flows.packets())
		}
		if got := chainNames(table[:len(table)-at&7], targets); len(got) > 2*len(want)+1 {
			t.Errorf("%d chains out of a table of %d", len(got), len(want))
		}
	})
}
