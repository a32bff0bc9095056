// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// An nftKernel reads the tables of iptables-nft over netlink.
type nftKernel struct {
	conn           *netlink.Conn
	lastGeneration uint32    // generation of the ruleset when lastMarks was read
	lastMarks      [2]string // last result of fingerprint; empty: none yet
}

func openNft() (*nftKernel, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	k := &nftKernel{conn: conn}
	if _, err := k.generation(); err != nil {
		_ = conn.Close()
		if errors.Is(err, syscall.EPERM) {
			return nil, fmt.Errorf("reading nftables: %w: it needs the capability NET_ADMIN", err)
		}
		return nil, fmt.Errorf("reading nftables: %w: the kernel may lack the modules nf_tables and nft_compat", err)
	}
	return k, nil
}

// message returns a request to nftables for a family, with the names of a table and of a chain, unless they are empty.
func message(kind uint16, flags netlink.HeaderFlags, v6 bool, table, chain string) (netlink.Message, error) {
	family := byte(unix.AF_INET)
	if v6 {
		family = unix.AF_INET6
	}
	encoder := netlink.NewAttributeEncoder()
	if table != "" {
		encoder.String(unix.NFTA_TABLE_NAME, table) // in messages about chains, too
	}
	if chain != "" {
		encoder.String(unix.NFTA_CHAIN_NAME, chain)
	}
	attributes, err := encoder.Encode()
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attributes...),
	}, err
}

// get returns the attributes of one object, by their type, or nil if it does not exist.
func (k *nftKernel) get(kind uint16, v6 bool, table, chain string) (map[uint16][]byte, error) {
	m, err := message(kind, 0, v6, table, chain)
	if err != nil {
		return nil, err
	}
	answers, err := k.conn.Execute(m)
	if errors.Is(err, syscall.ENOENT) {
		return nil, nil //nolint:nilnil // it does not exist
	}
	if err != nil {
		return nil, err
	}
	if len(answers) != 1 || len(answers[0].Data) < 4 {
		return nil, errors.New("the kernel's answer has no message")
	}
	list, err := netlink.UnmarshalAttributes(answers[0].Data[4:])
	object := map[uint16][]byte{}
	for _, a := range list {
		object[a.Type] = a.Data
	}
	return object, err
}

// generation returns the generation of the ruleset, which every change increments.
func (k *nftKernel) generation() (uint32, error) {
	object, err := k.get(unix.NFT_MSG_GETGEN, false, "", "")
	if id := object[unix.NFTA_GEN_ID]; len(id) == 4 {
		return binary.BigEndian.Uint32(id), err
	}
	return 0, err
}

// exists reports whether a table exists or, with a name, a chain of it.
func (k *nftKernel) exists(v6 bool, table, chain string) (bool, error) {
	kind := uint16(unix.NFT_MSG_GETTABLE)
	if chain != "" {
		kind = unix.NFT_MSG_GETCHAIN
	}
	object, err := k.get(kind, v6, table, chain)
	return object != nil, err
}

// fingerprint returns, for each family, the handles of our chains and of the built-in chains that jump to them, their
// policies and how many rules and jumps use them.
func (k *nftKernel) fingerprint() (marks [2]string, err error) {
	generation, err := k.generation()
	if err != nil {
		return marks, err
	}
	if k.lastMarks[0] != "" && generation == k.lastGeneration {
		return k.lastMarks, nil
	}
	for i, v6 := range []bool{false, true} {
		for _, c := range plan(&rules.Rules{}, v6, false) {
			for _, name := range append([]string{c.name}, c.hooks...) {
				o, err := k.get(unix.NFT_MSG_GETCHAIN, v6, c.table, name)
				if err != nil {
					return marks, err
				}
				marks[i] += fmt.Sprintf("%s %s %x %x %x\n", c.table, name, o[unix.NFTA_CHAIN_HANDLE], o[unix.NFTA_CHAIN_POLICY], o[unix.NFTA_CHAIN_USE])
			}
		}
	}
	k.lastGeneration, k.lastMarks = generation, marks
	return marks, nil
}

// deleteEmpty deletes a built-in chain, or without a name a table, if it is empty and its
// policy is to accept.
func (k *nftKernel) deleteEmpty(v6 bool, table, chain string) error {
	kind := uint16(unix.NFT_MSG_DELTABLE)
	if chain != "" {
		kind = unix.NFT_MSG_DELCHAIN
		o, err := k.get(unix.NFT_MSG_GETCHAIN, v6, table, chain)
		if policy := o[unix.NFTA_CHAIN_POLICY]; err != nil || len(policy) != 4 || binary.BigEndian.Uint32(policy) != accept {
			return err
		}
	}
	const nonrec = 0x100 // NLM_F_NONREC: only if it is empty
	m, err := message(kind, netlink.Acknowledge|nonrec, v6, table, chain)
	if err != nil {
		return err
	}
	edge := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
		}
	}
	if _, err = k.conn.SendMessages([]netlink.Message{edge(unix.NFNL_MSG_BATCH_BEGIN), m, edge(unix.NFNL_MSG_BATCH_END)}); err != nil {
		return err
	}
	_, err = k.conn.Receive()
	if errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.ENOENT) {
		return nil // another program uses it now, or has deleted it
	}
	return err
}

// accept is the policy NF_ACCEPT of a built-in chain.
const accept = 1
