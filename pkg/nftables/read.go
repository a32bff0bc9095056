// SPDX-License-Identifier: Apache-2.0

//go:build linux

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
func (b *Backend) listTables() ([]kernelTable, error) {
	messages, err := b.reader.dump(unix.NFT_MSG_GETTABLE)
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
		if isAgentTable(t.name) || t.name == traceTable {
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
func (b *Backend) listChains(table string) (names []string, content []byte, err error) {
	messages, err := b.reader.dump(unix.NFT_MSG_GETCHAIN, text(unix.NFTA_CHAIN_TABLE, table))
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
func (b *Backend) listRules(table string) (count int, content []byte, err error) {
	messages, err := b.reader.dump(unix.NFT_MSG_GETRULE, text(unix.NFTA_RULE_TABLE, table))
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
func (b *Backend) listSets(table string) ([]string, error) {
	messages, err := b.reader.dump(unix.NFT_MSG_GETSET, text(unix.NFTA_SET_TABLE, table))
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
func (b *Backend) listElements(table, set string) ([]element, error) {
	messages, err := b.reader.dump(unix.NFT_MSG_GETSETELEM,
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
func (b *Backend) tableContents(table string) (text string, rules int, err error) {
	_, chains, err := b.listChains(table)
	if err != nil {
		return "", 0, err
	}
	rules, list, err := b.listRules(table)
	if err != nil {
		return "", 0, err
	}
	sets, err := b.listSets(table)
	if err != nil {
		return "", 0, err
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%s%s%q", chains, list, sets)
	for _, name := range sets {
		if !strings.HasPrefix(name, targetMap) {
			continue
		}
		elements, err := b.listElements(table, name)
		if err != nil {
			return "", 0, err
		}
		slices.SortFunc(elements, func(a, b element) int { return strings.Compare(string(a.key), string(b.key)) })
		for _, e := range elements {
			fmt.Fprintf(&s, "%x:%x ", e.key, e.data)
		}
	}
	return s.String(), rules, nil
}

// State reads the tables of all agents.
func (b *Backend) State(ctx context.Context) (rules.State, error) {
	s := rules.State{Leases: map[netip.Addr]time.Duration{}}
	all, err := b.listTables()
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
		count, _, err := b.listRules(t.name)
		if err != nil {
			return rules.State{}, err
		}
		s.Count += count
		s.LeasesInUse = s.LeasesInUse || count > 0 && b.isOwn(t.name)
		if t.name != fallbackTable {
			err = b.addLeases(t.name, s.Leases)
		} else if s.Owner, err = b.fallbackOwner(); err == nil {
			s.Fallback, err = b.fallbackTargets()
		}
		if err != nil {
			return rules.State{}, err
		}
	}
	return s, nil
}

// isOwn reports whether Renew writes leases to the table.
func (b *Backend) isOwn(table string) bool {
	own := b.table.Load()
	return own != nil && *own == table
}

// fallbackOwner returns the name of the agent that wrote the fallback table, or "".
func (b *Backend) fallbackOwner() (string, error) {
	chains, _, err := b.listChains(fallbackTable)
	for _, name := range chains {
		if owner, ok := strings.CutPrefix(name, ownerPrefix); ok {
			return owner, err
		}
	}
	return "", err
}

// fallbackTargets returns the targets in the fallback table, in the order of the rules.
func (b *Backend) fallbackTargets() ([]netip.AddrPort, error) {
	sets, err := b.listSets(fallbackTable)
	if err != nil {
		return nil, err
	}
	var list []netip.AddrPort
	for _, set := range sets {
		elements, err := b.listElements(fallbackTable, set)
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
