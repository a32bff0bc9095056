// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Constants that the system headers of some machines lack.
const (
	headerSize    = 4   // struct nfgenmsg
	tableOwned    = 0x2 // NFT_TABLE_F_OWNER: the kernel deletes the table with the socket that made it
	tableOwner    = 7   // NFTA_TABLE_OWNER: the netlink port of that socket
	chainFlags    = 0xa // NFTA_CHAIN_FLAGS
	chainBase     = 0x1 // NFT_CHAIN_BASE
	verdictAccept = 1   // NF_ACCEPT
	verdictDrop   = 0   // NF_DROP
	typeInteger   = 4   // datatype integer of a set's key or data, as the program nft numbers it
	typeIPv4      = 7   // datatype ipv4_addr
	typeIPv6      = 8   // datatype ipv6_addr
	typeService   = 13  // datatype inet_service
	typeShift     = 6   // bits per type in a concatenation
	hostByteOrder = 1   // byte order of a set's key, as the program nft numbers it
)

// A batch is a transaction: the kernel carries out all of its messages or none. The methods that add something panic for more
// than 64 KiB of attributes, and for an expression that cannot be encoded. What this package adds is far smaller.
type batch struct {
	table    string // table that gets the chains, sets, elements and rules
	messages []netlink.Message
	names    []string // what each message does, for errors
	rules    int      // number of rules that the batch adds
	setID    uint32   // ID of the last added set; 0: none
}

// add appends one message of the inet family.
func (b *batch) add(what string, kind int, flags netlink.HeaderFlags, attrs ...netlink.Attribute) {
	b.messages = append(b.messages, message(kind, flags, attrs...))
	b.names = append(b.names, what)
}

// addTable adds a table if it does not exist. With the flag tableOwned the sending socket owns it. Later calls add to this table.
func (b *batch) addTable(name string, flags uint32) {
	b.table = name
	b.add("adding table "+name, unix.NFT_MSG_NEWTABLE, netlink.Create,
		text(unix.NFTA_TABLE_NAME, name), number(unix.NFTA_TABLE_FLAGS, flags))
}

// deleteTable deletes an existing table.
func (b *batch) deleteTable(name string) {
	b.add("deleting table "+name, unix.NFT_MSG_DELTABLE, 0, text(unix.NFTA_TABLE_NAME, name))
}

// chain adds a chain if it does not exist.
func (b *batch) chain(name string, attrs ...netlink.Attribute) {
	attrs = append([]netlink.Attribute{text(unix.NFTA_CHAIN_TABLE, b.table), text(unix.NFTA_CHAIN_NAME, name)}, attrs...)
	b.add("adding chain "+name, unix.NFT_MSG_NEWCHAIN, netlink.Create, attrs...)
}

// baseChain adds a chain of a kind ("filter", "nat", "route") that packets pass at a hook.
func (b *batch) baseChain(name, kind string, hook uint32, priority int32) {
	b.chain(name, nested(unix.NFTA_CHAIN_HOOK, number(unix.NFTA_HOOK_HOOKNUM, hook), number(unix.NFTA_HOOK_PRIORITY, uint32(priority))),
		number(unix.NFTA_CHAIN_POLICY, verdictAccept), text(unix.NFTA_CHAIN_TYPE, kind), number(chainFlags, chainBase))
}

// clear deletes all rules of the table, and these chains.
func (b *batch) clear(chains []string) {
	b.add("deleting the rules of "+b.table, unix.NFT_MSG_DELRULE, 0, text(unix.NFTA_RULE_TABLE, b.table))
	for _, name := range chains {
		b.add("deleting chain "+name, unix.NFT_MSG_DELCHAIN, 0, text(unix.NFTA_CHAIN_TABLE, b.table), text(unix.NFTA_CHAIN_NAME, name))
	}
}

// rule appends a rule to a chain. The kernel stores the comment with it.
func (b *batch) rule(chain, comment string, parts ...match) {
	exprs := slices.Concat(parts...)
	list := make([]netlink.Attribute, len(exprs))
	for i, e := range exprs {
		list[i] = netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: encode(e)}
	}
	b.add(fmt.Sprintf("adding a rule to %s (%s)", chain, comment), unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append,
		text(unix.NFTA_RULE_TABLE, b.table), text(unix.NFTA_RULE_CHAIN, chain),
		nested(unix.NFTA_RULE_EXPRESSIONS, list...),
		netlink.Attribute{Type: unix.NFTA_RULE_USERDATA, Data: userdata.AppendString(nil, userdata.TypeComment, comment)})
	b.rules++
}

// set adds a set or map if it does not exist. key is the datatype of its keys, as the program nft numbers it.
func (b *batch) set(name string, flags, key, keyLen uint32, attrs ...netlink.Attribute) {
	b.setID++
	b.add("adding set "+name, unix.NFT_MSG_NEWSET, netlink.Create, append([]netlink.Attribute{
		text(unix.NFTA_SET_TABLE, b.table), text(unix.NFTA_SET_NAME, name), number(unix.NFTA_SET_FLAGS, flags),
		number(unix.NFTA_SET_KEY_TYPE, key), number(unix.NFTA_SET_KEY_LEN, keyLen), number(unix.NFTA_SET_ID, b.setID),
	}, attrs...)...)
}

// An element is an element of a set or map.
type element struct {
	key, data []byte        // data: maps only
	timeout   time.Duration // 0: none
}

// elements adds elements to a set or deletes them from it, as the message kind says. id is the ID of a set that the
// same batch adds; 0: the set exists already.
func (b *batch) elements(verb string, kind int, flags netlink.HeaderFlags, set string, id uint32, elements ...element) {
	list := make([]netlink.Attribute, len(elements))
	for i, e := range elements {
		attrs := []netlink.Attribute{nested(unix.NFTA_SET_ELEM_KEY, netlink.Attribute{Type: unix.NFTA_DATA_VALUE, Data: e.key})}
		if e.data != nil {
			attrs = append(attrs, nested(unix.NFTA_SET_ELEM_DATA, netlink.Attribute{Type: unix.NFTA_DATA_VALUE, Data: e.data}))
		}
		if e.timeout != 0 {
			attrs = append(attrs, milliseconds(unix.NFTA_SET_ELEM_TIMEOUT, e.timeout))
		}
		list[i] = nested(unix.NFTA_LIST_ELEM, attrs...)
	}
	attrs := []netlink.Attribute{
		text(unix.NFTA_SET_ELEM_LIST_TABLE, b.table), text(unix.NFTA_SET_ELEM_LIST_SET, set),
		nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list...),
	}
	if id != 0 {
		attrs = append(attrs, number(unix.NFTA_SET_ELEM_LIST_SET_ID, id))
	}
	b.add(verb+" set "+set, kind, flags, attrs...)
}

// addElements adds elements to a set.
func (b *batch) addElements(set string, id uint32, elements ...element) {
	b.elements("filling", unix.NFT_MSG_NEWSETELEM, netlink.Create, set, id, elements...)
}

// replaceElement sets the timeout of an element that may or may not exist. Older kernels
// keep the timeout of an element that is added again, and a missing element cannot be
// deleted. So it adds, deletes and adds again; packets see only the result.
func (b *batch) replaceElement(set string, key []byte, timeout time.Duration) {
	b.deleteElement(set, key)
	b.addElements(set, 0, element{key: key, timeout: timeout})
}

// deleteElement deletes an element that may or may not exist.
func (b *batch) deleteElement(set string, key []byte) {
	b.addElements(set, 0, element{key: key, timeout: time.Hour}) // any timeout: it is deleted at once
	b.elements("emptying", unix.NFT_MSG_DELSETELEM, 0, set, 0, element{key: key})
}

// framed returns the messages between those that begin and end a transaction.
func (b *batch) framed() []netlink.Message {
	border := func(kind uint16) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request},
			Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES},
		}
	}
	return slices.Concat([]netlink.Message{border(unix.NFNL_MSG_BATCH_BEGIN)}, b.messages, []netlink.Message{border(unix.NFNL_MSG_BATCH_END)})
}

// message returns a message to nf_tables for the inet family.
func message(kind int, flags netlink.HeaderFlags, attrs ...netlink.Attribute) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, nested(0, attrs...).Data...),
	}
}

func text(kind uint16, s string) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: append([]byte(s), 0)}
}

func number(kind uint16, n uint32) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: binary.BigEndian.AppendUint32(nil, n)}
}

// milliseconds encodes d as at least 1 ms: 0 would mean no timeout.
func milliseconds(kind uint16, d time.Duration) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: binary.BigEndian.AppendUint64(nil, uint64(max(d.Milliseconds(), 1)))}
}

func nested(kind uint16, attrs ...netlink.Attribute) netlink.Attribute {
	data, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		panic(err)
	}
	return netlink.Attribute{Type: unix.NLA_F_NESTED | kind, Data: data}
}

// A raw expression is one that the library cannot encode: a write to an IPv6 header,
// which has no checksum, and the original destination of a connection in a table of the
// family inet.
type raw struct {
	expr.Any // nil, to implement the interface
	name     string
	attrs    []netlink.Attribute
}

// encode returns the netlink encoding of an expression.
func encode(e expr.Any) []byte {
	if r, ok := e.(*raw); ok {
		return nested(0, text(unix.NFTA_EXPR_NAME, r.name), nested(unix.NFTA_EXPR_DATA, r.attrs...)).Data
	}
	data, err := expr.Marshal(unix.NFPROTO_INET, e)
	if err != nil {
		panic(err)
	}
	return data
}
