// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/rules"
)

// State reads what is there, of all agents.
func (b *Backend) State(ctx context.Context) (rules.State, error) {
	s := rules.State{Leases: map[netip.Addr]time.Duration{}}
	all, err := b.tables()
	if err != nil {
		return rules.State{}, err
	}
	for _, t := range all {
		if t.name == traceTable {
			continue
		}
		if err := ctx.Err(); err != nil {
			return rules.State{}, err
		}
		s.Present = true
		count, _, err := b.rules(t.name)
		if err != nil {
			return rules.State{}, err
		}
		s.Count += count
		s.LeasesInUse = s.LeasesInUse || count > 0 && b.isOwn(t.name)
		if t.name != fallbackTable {
			err = b.leases(t.name, s.Leases)
		} else if s.Owner, err = b.lastOwner(); err == nil {
			s.Fallback, err = b.fallback()
		}
		if err != nil {
			return rules.State{}, err
		}
	}
	return s, nil
}

// isOwn tells whether Renew puts leases into the table.
func (b *Backend) isOwn(table string) bool {
	own := b.table.Load()
	return own != nil && *own == table
}

// lastOwner returns the name of the agent that put the fallback there, or nothing.
func (b *Backend) lastOwner() (string, error) {
	chains, _, err := b.chains(fallbackTable)
	for _, name := range chains {
		if owner, ok := strings.CutPrefix(name, ownerPrefix); ok {
			return owner, err
		}
	}
	return "", err
}

// fallback returns its targets, in the order of the rules that they were made from.
func (b *Backend) fallback() ([]netip.AddrPort, error) {
	sets, err := b.sets(fallbackTable)
	if err != nil {
		return nil, err
	}
	var list []netip.AddrPort
	for _, set := range sets {
		elements, err := b.elements(fallbackTable, set)
		if err != nil {
			return nil, err
		}
		slices.SortFunc(elements, func(a, b element) int { return place(a) - place(b) })
		for _, e := range elements {
			if t, ok := target(e.data); ok && !slices.Contains(list, t) { // each address has its own map
				list = append(list, t)
			}
		}
	}
	return list, nil
}

// place is the number of a target.
func place(e element) int {
	if len(e.key) != 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(e.key))
}
