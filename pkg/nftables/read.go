// SPDX-License-Identifier: Apache-2.0

package nftables

import (
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

	"github.com/nodecache/node-cache/pkg/rules"
)

// A kernelTable is an agent's table in the kernel.
type kernelTable struct {
	name      string
	ownerPort uint32 // of the netlink socket that owns it; 0: none
}

// listTables lists the tables of agents.
func (s *socket) listTables() ([]kernelTable, error) {
	messages, err := s.dump(unix.NFT_MSG_GETTABLE)
	if err != nil {
		return nil, fmt.Errorf("listing tables: %w", err)
	}
	var all []kernelTable
	for _, m := range messages {
		var t kernelTable
		err := attributes(m.Data, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_TABLE_NAME:
				t.name = ad.String()
			case tableOwner:
				t.ownerPort = ad.Uint32()
			}
		})
		if err != nil {
			return nil, fmt.Errorf("listing tables: %w", err)
		}
		if isAgentTable(t.name) || t.name == TraceTable {
			all = append(all, t)
		}
	}
	return all, nil
}

// attributes calls f for each attribute of an nf_tables message.
func attributes(data []byte, f func(*netlink.AttributeDecoder)) error {
	if len(data) < headerSize {
		return fmt.Errorf("a message of %d bytes is too short", len(data))
	}
	ad, err := netlink.NewAttributeDecoder(data[headerSize:])
	if err != nil {
		return err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		f(ad)
	}
	return ad.Err()
}

// tableOf returns the name of the table that a message is about. It is the first
// attribute of all kinds of messages.
func tableOf(data []byte) string {
	var name string
	_ = attributes(data, func(ad *netlink.AttributeDecoder) { // a message that cannot be parsed names no table
		if ad.Type() == unix.NFTA_TABLE_NAME {
			name = ad.String()
		}
	})
	return name
}

// listChains lists the names of a table's chains, and their attributes. It omits the
// message headers: they contain the generation of the ruleset, which every change of any
// table and each renewal of a lease increments.
func (s *socket) listChains(table string) (names []string, content []byte, err error) {
	messages, err := s.dump(unix.NFT_MSG_GETCHAIN, text(unix.NFTA_CHAIN_TABLE, table))
	if err != nil {
		return nil, nil, fmt.Errorf("listing the chains of %s: %w", table, err)
	}
	for _, m := range messages {
		if tableOf(m.Data) != table { // older kernels list the chains of all tables
			continue
		}
		content = append(content, m.Data[headerSize:]...)
		err := attributes(m.Data, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == unix.NFTA_CHAIN_NAME {
				names = append(names, ad.String())
			}
		})
		if err != nil {
			return nil, nil, fmt.Errorf("listing the chains of %s: %w", table, err)
		}
	}
	return names, content, nil
}

// listRules counts a table's rules, and returns their attributes.
func (s *socket) listRules(table string) (count int, content []byte, err error) {
	messages, err := s.dump(unix.NFT_MSG_GETRULE, text(unix.NFTA_RULE_TABLE, table))
	if err != nil {
		return 0, nil, fmt.Errorf("listing the rules of %s: %w", table, err)
	}
	for _, m := range messages {
		if tableOf(m.Data) == table {
			count++
			content = append(content, m.Data[headerSize:]...)
		}
	}
	return count, content, nil
}

// listSets lists the names of a table's sets.
func (s *socket) listSets(table string) ([]string, error) {
	messages, err := s.dump(unix.NFT_MSG_GETSET, text(unix.NFTA_SET_TABLE, table))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // no such table; the other dumps return no error for that
	}
	if err != nil {
		return nil, fmt.Errorf("listing the sets of %s: %w", table, err)
	}
	var names []string
	for _, m := range messages {
		err := attributes(m.Data, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == unix.NFTA_SET_NAME {
				names = append(names, ad.String())
			}
		})
		if err != nil {
			return nil, fmt.Errorf("listing the sets of %s: %w", table, err)
		}
	}
	slices.Sort(names)
	return names, nil
}

// listElements lists the elements of a set, with their remaining timeouts.
func (s *socket) listElements(table, set string) ([]element, error) {
	messages, err := s.dump(unix.NFT_MSG_GETSETELEM,
		text(unix.NFTA_SET_ELEM_LIST_TABLE, table), text(unix.NFTA_SET_ELEM_LIST_SET, set))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // it was deleted after it was listed
	}
	if err != nil {
		return nil, fmt.Errorf("listing the elements of %s: %w", set, err)
	}
	var all []element
	for _, m := range messages {
		err := attributes(m.Data, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				ad.Nested(func(ad *netlink.AttributeDecoder) error {
					for ad.Next() {
						var e element
						ad.Nested(e.read)
						all = append(all, e)
					}
					return ad.Err()
				})
			}
		})
		if err != nil {
			return nil, fmt.Errorf("listing the elements of %s: %w", set, err)
		}
	}
	return all, nil
}

// read parses the attributes of an element.
func (e *element) read(ad *netlink.AttributeDecoder) error {
	value := func(into *[]byte) {
		ad.Nested(func(ad *netlink.AttributeDecoder) error {
			for ad.Next() {
				if ad.Type() == unix.NFTA_DATA_VALUE {
					*into = slices.Clone(ad.Bytes())
				}
			}
			return ad.Err()
		})
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_KEY:
			value(&e.key)
		case unix.NFTA_SET_ELEM_DATA:
			value(&e.data)
		case unix.NFTA_SET_ELEM_EXPIRATION:
			e.timeout = time.Duration(ad.Uint64()) * time.Millisecond
		}
	}
	return ad.Err()
}

// tableContents returns the parts of a table that only a change of its rules changes:
// chains, rules with their handles, names of sets, and elements of maps. It counts no
// rules if the table does not exist.
func (s *socket) tableContents(table string) (text string, rules int, err error) {
	_, chains, err := s.listChains(table)
	if err != nil {
		return "", 0, err
	}
	rules, list, err := s.listRules(table)
	if err != nil {
		return "", 0, err
	}
	sets, err := s.listSets(table)
	if err != nil {
		return "", 0, err
	}
	var content strings.Builder
	fmt.Fprintf(&content, "%s%s%q", chains, list, sets)
	for _, name := range sets {
		if !strings.HasPrefix(name, targetMap) {
			continue
		}
		elements, err := s.listElements(table, name)
		if err != nil {
			return "", 0, err
		}
		slices.SortFunc(elements, func(a, b element) int { return strings.Compare(string(a.key), string(b.key)) })
		for _, e := range elements {
			fmt.Fprintf(&content, "%x:%x ", e.key, e.data)
		}
	}
	return content.String(), rules, nil
}

// State reads the tables of all agents.
func (b *Backend) State(ctx context.Context) (rules.State, error) {
	s := rules.State{Leases: map[netip.Addr]time.Duration{}}
	all, err := b.reader.listTables()
	if err != nil {
		return rules.State{}, err
	}
	own := ""
	if table := b.table.Load(); table != nil {
		own = *table
	}
	for _, t := range all {
		if t.name == TraceTable {
			continue
		}
		if err := ctx.Err(); err != nil {
			return rules.State{}, err
		}
		if err := b.reader.addTable(t.name, own, &s); err != nil {
			return rules.State{}, err
		}
	}
	return s, nil
}

// addTable adds what a table of an agent says to the state. own is the name of this agent's table, or "".
func (s *socket) addTable(table, own string, into *rules.State) error {
	into.Present = true
	count, _, err := s.listRules(table)
	if err != nil {
		return err
	}
	into.Count += count
	into.LeasesInUse = into.LeasesInUse || count > 0 && table == own
	if table != fallbackTable {
		return s.addLeases(table, into.Leases)
	}
	if into.Owner, err = s.fallbackOwner(); err != nil {
		return err
	}
	into.Fallback, err = s.fallbackTargets()
	return err
}

// addLeases adds the remaining time of each lease in a table.
func (s *socket) addLeases(table string, into map[netip.Addr]time.Duration) error {
	for _, set := range []string{leaseSet + "4", leaseSet + "6"} {
		elements, err := s.listElements(table, set)
		if err != nil {
			return err
		}
		for _, e := range elements {
			if a, ok := netip.AddrFromSlice(e.key); ok {
				into[a] = max(into[a], e.timeout)
			}
		}
	}
	return nil
}

// hasLeases reports whether a lease table has any lease or drain.
func (s *socket) hasLeases(table string) (bool, error) {
	for _, set := range []string{leaseSet + "4", leaseSet + "6", drainSet + "4", drainSet + "6"} {
		if elements, err := s.listElements(table, set); err != nil || len(elements) > 0 {
			return len(elements) > 0, err
		}
	}
	return false, nil
}

// fallbackOwner returns the name of the agent that wrote the fallback table, or "".
func (s *socket) fallbackOwner() (string, error) {
	chains, _, err := s.listChains(fallbackTable)
	for _, name := range chains {
		if owner, ok := strings.CutPrefix(name, ownerPrefix); ok {
			return owner, err
		}
	}
	return "", err
}

// fallbackTargets returns the targets in the fallback table, in the order of the rules.
func (s *socket) fallbackTargets() ([]netip.AddrPort, error) {
	sets, err := s.listSets(fallbackTable)
	if err != nil {
		return nil, err
	}
	var list []netip.AddrPort
	for _, set := range sets {
		elements, err := s.listElements(fallbackTable, set)
		if err != nil {
			return nil, err
		}
		slices.SortFunc(elements, func(a, b element) int { return targetIndex(a) - targetIndex(b) })
		for _, e := range elements {
			if t, ok := parseTarget(e.data); ok && !slices.Contains(list, t) { // each address has a map of its own
				list = append(list, t)
			}
		}
	}
	return list, nil
}

// targetIndex returns the number of a target in its map.
func targetIndex(e element) int {
	if len(e.key) != 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(e.key))
}
