// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A seen is a table of ours that the kernel holds.
type seen struct {
	name   string
	socket uint32 // the port of the socket that owns it; 0: nobody does
}

// tables lists those of ours.
func (b *Backend) tables() ([]seen, error) {
	messages, err := b.reader.dump(unix.NFT_MSG_GETTABLE)
	if err != nil {
		return nil, fmt.Errorf("listing tables: %w", err)
	}
	var all []seen
	for _, m := range messages {
		var t seen
		err := attributes(m.Data, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_TABLE_NAME:
				t.name = ad.String()
			case tableOwner:
				t.socket = ad.Uint32()
			}
		})
		if err != nil {
			return nil, fmt.Errorf("listing tables: %w", err)
		}
		if ours(t.name) || t.name == traceTable {
			all = append(all, t)
		}
	}
	return all, nil
}

// attributes calls f with each attribute of a message of nf_tables.
func attributes(data []byte, f func(*netlink.AttributeDecoder)) error {
	if len(data) < headerSize {
		return fmt.Errorf("a message of %d octets is too short", len(data))
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

// tableOf returns the name of the table that a message is about. All kinds of them
// begin with it.
func tableOf(data []byte) string {
	var name string
	_ = attributes(data, func(ad *netlink.AttributeDecoder) { // what cannot be read names none
		if ad.Type() == unix.NFTA_TABLE_NAME {
			name = ad.String()
		}
	})
	return name
}

// chains lists the names of a table's chains, and their attributes. The header before
// these is left out: it has the generation of all rules of the node, which every change
// of any table and each renewal of a lease counts up.
func (b *Backend) chains(table string) (names []string, content []byte, err error) {
	messages, err := b.reader.dump(unix.NFT_MSG_GETCHAIN, text(unix.NFTA_CHAIN_TABLE, table))
	if err != nil {
		return nil, nil, fmt.Errorf("listing the chains of %s: %w", table, err)
	}
	for _, m := range messages {
		if tableOf(m.Data) != table { // older kernels list those of all tables
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

// rules counts a table's rules, and returns their attributes.
func (b *Backend) rules(table string) (count int, content []byte, err error) {
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

// sets lists the names of a table's sets.
func (b *Backend) sets(table string) ([]string, error) {
	messages, err := b.reader.dump(unix.NFT_MSG_GETSET, text(unix.NFTA_SET_TABLE, table))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // the kernel minds only here that there is no such table
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

// elements lists those of a set. The time-outs are what is left of them.
func (b *Backend) elements(table, set string) ([]element, error) {
	messages, err := b.reader.dump(unix.NFT_MSG_GETSETELEM,
		text(unix.NFTA_SET_ELEM_LIST_TABLE, table), text(unix.NFTA_SET_ELEM_LIST_SET, set))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // it went since it was listed
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

// read fills e from the attributes of an element.
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

// content is all of a table that only a change of its rules changes: its chains, its
// rules with their handles, the names of its sets, and what is in its maps. It is
// without rules if there is no such table.
func (b *Backend) content(table string) (text string, rules int, err error) {
	_, chains, err := b.chains(table)
	if err != nil {
		return "", 0, err
	}
	rules, list, err := b.rules(table)
	if err != nil {
		return "", 0, err
	}
	sets, err := b.sets(table)
	if err != nil {
		return "", 0, err
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%s%s%q", chains, list, sets)
	for _, name := range sets {
		if !strings.HasPrefix(name, targetMap) {
			continue
		}
		elements, err := b.elements(table, name)
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
