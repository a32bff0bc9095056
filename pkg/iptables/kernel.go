// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/dataplane"
	"github.com/nodecache/node-cache/pkg/rules"
)

// kernelTables reads the tables of a variant without running a program.
type kernelTables interface {
	// chainExists reports whether a chain, possibly a built-in one, exists.
	chainExists(v6 bool, table, name string) (bool, error)
	// fingerprint returns a short text for each family. It changes whenever rules are added to
	// or removed from our chains or the built-in chains that jump to them.
	fingerprint() ([2]string, error)
	close() error
}

// legacyKernel reads the tables of iptables-legacy with socket options. It never names a
// table that does not exist: the kernel would create it.
type legacyKernel struct {
	namespace netns.NsHandle
	fd4, fd6  int // fd6: -1 without IPv6
}

func openLegacy(in netns.NsHandle) (*legacyKernel, error) {
	fd4, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a socket: %w", err)
	}
	fd6, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		fd6 = -1
	}
	return &legacyKernel{namespace: in, fd4: fd4, fd6: fd6}, nil
}

func (k *legacyKernel) close() error {
	if k.fd6 >= 0 {
		_ = unix.Close(k.fd6)
	}
	return unix.Close(k.fd4)
}

// tableNames returns the existing tables.
func (k *legacyKernel) tableNames(v6 bool) (names []string, err error) {
	err = inNamespace(k.namespace, func() (err error) {
		names, err = dataplane.LegacyTables(v6)
		return err
	})
	return names, err
}

// chainExists checks only the table: each table has all its built-in chains.
func (k *legacyKernel) chainExists(v6 bool, table, _ string) (bool, error) {
	names, err := k.tableNames(v6)
	return slices.Contains(names, table), err
}

func (k *legacyKernel) fingerprint() (marks [2]string, err error) {
	for i, family := range []struct {
		v6        bool
		fd, level int
	}{{false, k.fd4, unix.SOL_IP}, {true, k.fd6, unix.SOL_IPV6}} {
		names, err := k.tableNames(family.v6)
		if err != nil {
			return marks, err
		}
		for _, table := range tables() {
			if family.fd < 0 || !slices.Contains(names, table) {
				continue
			}
			info, err := dataplane.LegacyTableInfo(family.fd, family.level, table)
			if err != nil {
				return marks, fmt.Errorf("reading the size of table %s: %w", table, err)
			}
			marks[i] += fmt.Sprintf("%s %x\n", table, info)
		}
	}
	return marks, nil
}

// nftKernel reads the tables of iptables-nft over netlink.
type nftKernel struct {
	conn *netlink.Conn
	last struct { // guarded by variantTables.readLock
		generation uint32
		marks      [2]string
	}
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

func (k *nftKernel) close() error { return k.conn.Close() }

// message returns a request to nftables for a family, with string attributes.
func message(kind uint16, flags netlink.HeaderFlags, v6 bool, texts map[uint16]string) (netlink.Message, error) {
	family := byte(unix.AF_INET)
	if v6 {
		family = unix.AF_INET6
	}
	encoder := netlink.NewAttributeEncoder()
	for id, text := range texts {
		encoder.String(id, text)
	}
	attributes, err := encoder.Encode()
	if err != nil {
		return netlink.Message{}, err
	}
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attributes...),
	}, nil
}

// query requests one object and returns its attributes, or nil if it does not exist.
func (k *nftKernel) query(kind uint16, v6 bool, texts map[uint16]string) (*netlink.AttributeDecoder, error) {
	m, err := message(kind, 0, v6, texts)
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
	decoder, err := netlink.NewAttributeDecoder(answers[0].Data[4:])
	if err == nil {
		decoder.ByteOrder = binary.BigEndian
	}
	return decoder, err
}

// accept is a built-in chain's policy: NF_ACCEPT.
const accept = 1

// generation returns the generation of the ruleset, which every change increments.
func (k *nftKernel) generation() (n uint32, err error) {
	d, err := k.query(unix.NFT_MSG_GETGEN, false, nil)
	if err != nil || d == nil {
		return 0, err
	}
	for d.Next() {
		if d.Type() == unix.NFTA_GEN_ID {
			n = d.Uint32()
		}
	}
	return n, d.Err()
}

func (k *nftKernel) tableExists(v6 bool, tableExists string) (bool, error) {
	d, err := k.query(unix.NFT_MSG_GETTABLE, v6, map[uint16]string{unix.NFTA_TABLE_NAME: tableExists})
	return d != nil, err
}

func (k *nftKernel) chainExists(v6 bool, table, name string) (bool, error) {
	c, err := k.chain(v6, table, name)
	return c != nftChain{}, err
}

// An nftChain identifies a chain and changes with its rules.
type nftChain struct {
	handle uint64 // never 0
	policy uint32 // of a built-in chain
	use    uint32 // number of its rules and of the jumps to it
}

// chain returns the zero value if the chain does not exist.
func (k *nftKernel) chain(v6 bool, table, name string) (c nftChain, err error) {
	d, err := k.query(unix.NFT_MSG_GETCHAIN, v6, map[uint16]string{unix.NFTA_CHAIN_TABLE: table, unix.NFTA_CHAIN_NAME: name})
	if err != nil || d == nil {
		return c, err
	}
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_CHAIN_HANDLE:
			c.handle = d.Uint64()
		case unix.NFTA_CHAIN_POLICY:
			c.policy = d.Uint32()
		case unix.NFTA_CHAIN_USE:
			c.use = d.Uint32()
		}
	}
	return c, d.Err()
}

func (k *nftKernel) fingerprint() (marks [2]string, err error) {
	generation, err := k.generation()
	if err != nil {
		return marks, err
	}
	if k.last.marks[0] != "" && generation == k.last.generation {
		return k.last.marks, nil
	}
	for i, v6 := range []bool{false, true} {
		for _, c := range plan(&rules.Rules{}, v6, false) {
			for _, name := range append([]string{c.name}, c.hooks...) {
				now, err := k.chain(v6, c.table, name)
				if err != nil {
					return marks, err
				}
				marks[i] += fmt.Sprintln(c.table, name, now)
			}
		}
	}
	k.last.generation, k.last.marks = generation, marks
	return marks, nil
}

// deleteEmpty deletes a built-in chain, or without a name a table, if it is empty and its
// policy is to accept.
func (k *nftKernel) deleteEmpty(v6 bool, table, name string) error {
	if name != "" {
		if c, err := k.chain(v6, table, name); err != nil || c.policy != accept {
			return err
		}
	}
	kind, texts := uint16(unix.NFT_MSG_DELCHAIN), map[uint16]string{unix.NFTA_CHAIN_TABLE: table, unix.NFTA_CHAIN_NAME: name}
	if name == "" {
		kind, texts = unix.NFT_MSG_DELTABLE, map[uint16]string{unix.NFTA_TABLE_NAME: table}
	}
	const nonrec = 0x100 // NLM_F_NONREC: only if it is empty
	m, err := message(kind, netlink.Acknowledge|nonrec, v6, texts)
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
