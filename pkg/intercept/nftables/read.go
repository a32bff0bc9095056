// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// attributes returns the attributes of a message of the kernel, or none if it is malformed.
func attributes(data []byte) []netlink.Attribute {
	list, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		return nil
	}
	for i := range list {
		list[i].Type &^= unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
	}
	return list
}

// find returns the data of an attribute, by its path of nested attributes, or nil.
func find(data []byte, path ...uint16) []byte {
	for _, kind := range path {
		list := attributes(data)
		i := slices.IndexFunc(list, func(a netlink.Attribute) bool { return a.Type == kind })
		if i < 0 {
			return nil
		}
		data = list[i].Data
	}
	return data
}

// findText returns the text of an attribute, or "".
func findText(data []byte, kind uint16) string { return unix.ByteSliceToString(find(data, kind)) }

// tableOf returns the name of the table that a message is about. It is the first
// attribute of all kinds of messages.
func tableOf(data []byte) string { return findText(data, unix.NFTA_TABLE_NAME) }

// listTables lists the tables of agents, each with the port of the netlink socket that owns it, or 0.
func (s *socket) listTables() (map[string]uint32, error) {
	list, err := s.dump(unix.NFT_MSG_GETTABLE)
	if err != nil {
		return nil, fmt.Errorf("listing tables: %w", err)
	}
	all := map[string]uint32{}
	for _, t := range list {
		if name := tableOf(t); isAgentTable(name) || name == TraceTable {
			all[name] = 0
			if port := find(t, tableOwner); len(port) == 4 {
				all[name] = binary.BigEndian.Uint32(port)
			}
		}
	}
	return all, nil
}

// list lists the chains, rules or sets of a table. It omits the message headers: they
// contain the generation of the ruleset, which every change of any table and each renewal
// of a lease increments.
func (s *socket) list(kind int, table string) ([][]byte, error) {
	all, err := s.dump(kind, text(unix.NFTA_TABLE_NAME, table))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // no such table
	}
	if err != nil {
		return nil, fmt.Errorf("reading table %s: %w", table, err)
	}
	// Older kernels list the chains of all tables.
	return slices.DeleteFunc(all, func(m []byte) bool { return tableOf(m) != table }), nil
}

// listNames lists the names of a table's chains or sets. name is the type of the netlink attribute that holds the name of each.
func (s *socket) listNames(kind int, table string, name uint16) (names []string, err error) {
	all, err := s.list(kind, table)
	for _, m := range all {
		names = append(names, findText(m, name))
	}
	return names, err
}

// listElements lists the elements of a table's sets of both families, with their remaining timeouts.
func (s *socket) listElements(table string, sets ...string) (all []element, err error) {
	for _, set := range sets {
		for _, f := range []family{familyOf(false), familyOf(true)} {
			list, err := s.listSet(table, set+f.suffix)
			if err != nil {
				return nil, err
			}
			all = append(all, list...)
		}
	}
	return all, nil
}

// listSet lists the elements of a set or map.
func (s *socket) listSet(table, set string) (all []element, err error) {
	messages, err := s.dump(unix.NFT_MSG_GETSETELEM,
		text(unix.NFTA_SET_ELEM_LIST_TABLE, table), text(unix.NFTA_SET_ELEM_LIST_SET, set))
	if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: it was deleted after it was listed
		return nil, fmt.Errorf("listing the elements of %s: %w", set, err)
	}
	for _, m := range messages {
		for _, a := range attributes(find(m, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			all = append(all, parseElement(a.Data))
		}
	}
	return all, nil
}

func parseElement(data []byte) element {
	e := element{
		key:  find(data, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE),
		data: find(data, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE),
	}
	if left := find(data, unix.NFTA_SET_ELEM_EXPIRATION); len(left) == 8 {
		e.timeout = time.Duration(binary.BigEndian.Uint64(left)) * time.Millisecond
	}
	return e
}

// State reads the tables of all agents.
func (b *Backend) State(ctx context.Context) (rules.State, error) {
	s := rules.State{Leases: map[netip.Addr]time.Duration{}}
	all, err := b.reader.listTables()
	if err = errors.Join(ctx.Err(), err); err != nil {
		return rules.State{}, err
	}
	for name := range all {
		if name == TraceTable {
			continue
		}
		s.Present = true
		if err := b.addTable(name, &s); err != nil {
			return rules.State{}, err
		}
	}
	return s, nil
}

// addTable adds what a table of an agent says to the state.
func (b *Backend) addTable(table string, into *rules.State) error {
	list, err := b.reader.list(unix.NFT_MSG_GETRULE, table)
	if err != nil {
		return err
	}
	into.Count += len(list)
	if table == fallbackTable {
		if into.Owner, err = b.reader.fallbackOwner(); err != nil {
			return err
		}
		into.Fallback, err = b.reader.fallbackTargets()
		return err
	}
	into.LeasesInUse = into.LeasesInUse || len(list) > 0 && table == b.ownTable()
	held, err := b.reader.listElements(table, leaseSet)
	for _, e := range held {
		if a, ok := netip.AddrFromSlice(e.key); ok {
			into.Leases[a] = max(into.Leases[a], e.timeout)
		}
	}
	return err
}

// fallbackOwner returns the name of the agent that wrote the fallback table, or "".
func (s *socket) fallbackOwner() (string, error) {
	chains, err := s.listNames(unix.NFT_MSG_GETCHAIN, fallbackTable, unix.NFTA_CHAIN_NAME)
	for _, name := range chains {
		if owner, ok := strings.CutPrefix(name, ownerPrefix); ok {
			return owner, err
		}
	}
	return "", err
}

// fallbackTargets returns the targets in the fallback table, in the order of the rules.
func (s *socket) fallbackTargets() (list []netip.AddrPort, err error) {
	maps, err := s.listNames(unix.NFT_MSG_GETSET, fallbackTable, unix.NFTA_SET_NAME)
	if err != nil {
		return nil, err
	}
	slices.Sort(maps)
	for _, name := range maps {
		elements, err := s.listSet(fallbackTable, name)
		if err != nil {
			return nil, err
		}
		slices.SortFunc(elements, func(a, b element) int { return cmp.Compare(targetIndex(a), targetIndex(b)) })
		for _, e := range elements {
			if t, ok := parseTarget(e.data); ok && !slices.Contains(list, t) { // each rule has its own map of the same targets
				list = append(list, t)
			}
		}
	}
	return list, nil
}

// targetIndex returns the number of a target in its map.
func targetIndex(e element) uint32 {
	if len(e.key) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(e.key)
}
