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
	tableOwner    = 7   // NFTA_TABLE_OWNER: the port of that socket
	chainFlags    = 0xa // NFTA_CHAIN_FLAGS
	chainBase     = 0x1 // NFT_CHAIN_BASE
	verdictAccept = 1   // NF_ACCEPT
	verdictDrop   = 0   // NF_DROP
	typeInteger   = 4   // of a set's key or data, in the numbering of the program nft
	typeIPv4      = 7   //
	typeIPv6      = 8   //
	typeService   = 13  //
	typeShift     = 6   // bits per type in a concatenation
	hostByteOrder = 1   // of a set's key, in the numbering of the program nft
)

// A batch is a transaction: the kernel carries out all of its messages or none.
type batch struct {
	messages []netlink.Message
	names    []string // what each message does, for errors
	err      error    // the first encoding error
	setID    uint32   // of the last added set
}

// add appends one message of the inet family.
func (b *batch) add(what string, kind int, flags netlink.HeaderFlags, attrs ...netlink.Attribute) {
	data, err := netlink.MarshalAttributes(attrs)
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("%s: %w", what, err)
	}
	b.messages = append(b.messages, netlink.Message{
		Header: netlink.Header{Type: messageType(kind), Flags: netlink.Request | flags},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, data...),
	})
	b.names = append(b.names, what)
}

// table adds a table if it does not exist, owned by the sending socket or by none.
func (b *batch) table(name string, flags uint32) {
	b.add("adding table "+name, unix.NFT_MSG_NEWTABLE, netlink.Create,
		text(unix.NFTA_TABLE_NAME, name), number(unix.NFTA_TABLE_FLAGS, flags))
}

// deleteTable deletes an existing table.
func (b *batch) deleteTable(name string) {
	b.add("deleting table "+name, unix.NFT_MSG_DELTABLE, 0, text(unix.NFTA_TABLE_NAME, name))
}

// chain adds a chain if it does not exist.
func (b *batch) chain(table string, c chain) {
	attrs := []netlink.Attribute{text(unix.NFTA_CHAIN_TABLE, table), text(unix.NFTA_CHAIN_NAME, c.name)}
	if c.kind != "" {
		attrs = append(attrs,
			nested(unix.NFTA_CHAIN_HOOK, number(unix.NFTA_HOOK_HOOKNUM, c.hook), number(unix.NFTA_HOOK_PRIORITY, uint32(c.priority))),
			number(unix.NFTA_CHAIN_POLICY, verdictAccept),
			text(unix.NFTA_CHAIN_TYPE, c.kind), number(chainFlags, chainBase))
	}
	b.add("adding chain "+c.name, unix.NFT_MSG_NEWCHAIN, netlink.Create, attrs...)
}

// deleteChain deletes a chain with its rules.
func (b *batch) deleteChain(table, name string) {
	b.add("deleting chain "+name, unix.NFT_MSG_DELCHAIN, 0, text(unix.NFTA_CHAIN_TABLE, table), text(unix.NFTA_CHAIN_NAME, name))
}

// deleteRules deletes all rules of a table.
func (b *batch) deleteRules(table string) {
	b.add("deleting the rules of "+table, unix.NFT_MSG_DELRULE, 0, text(unix.NFTA_RULE_TABLE, table))
}

// rule appends a rule to its chain, after the rule's own anonymous set, if any.
func (b *batch) rule(table string, r rule) {
	what := fmt.Sprintf("adding a rule to %s (%s)", r.chain, r.comment)
	if r.targets != nil {
		b.set(table, *r.targets)
	}
	list := make([]netlink.Attribute, len(r.exprs))
	for i, e := range r.exprs {
		if l, ok := e.(*expr.Lookup); ok && r.targets != nil && l.SetName == r.targets.name {
			own := *l
			own.SetID = b.setID // the kernel generates the name
			e = &own
		}
		data, err := encode(e)
		if err != nil && b.err == nil {
			b.err = fmt.Errorf("%s: %w", what, err)
		}
		list[i] = netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: data}
	}
	b.add(what, unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append,
		text(unix.NFTA_RULE_TABLE, table), text(unix.NFTA_RULE_CHAIN, r.chain),
		nested(unix.NFTA_RULE_EXPRESSIONS, list...),
		netlink.Attribute{Type: unix.NFTA_RULE_USERDATA, Data: userdata.AppendString(nil, userdata.TypeComment, r.comment)})
}

// set adds a set or map if it does not exist.
func (b *batch) set(table string, s set) {
	b.setID++
	attrs := []netlink.Attribute{
		text(unix.NFTA_SET_TABLE, table), text(unix.NFTA_SET_NAME, s.name),
		number(unix.NFTA_SET_FLAGS, s.flags),
		number(unix.NFTA_SET_KEY_TYPE, s.key), number(unix.NFTA_SET_KEY_LEN, s.keyLen),
		number(unix.NFTA_SET_ID, b.setID),
	}
	if s.flags&unix.NFT_SET_MAP != 0 {
		order := userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, hostByteOrder)
		attrs = append(attrs, number(unix.NFTA_SET_DATA_TYPE, s.data), number(unix.NFTA_SET_DATA_LEN, s.dataLen),
			nested(unix.NFTA_SET_DESC, number(unix.NFTA_SET_DESC_SIZE, uint32(len(s.elements)))),
			netlink.Attribute{Type: unix.NFTA_SET_USERDATA, Data: order})
	}
	if s.size != 0 {
		attrs = append(attrs, nested(unix.NFTA_SET_DESC, number(unix.NFTA_SET_DESC_SIZE, s.size)))
	}
	if s.timeout != 0 {
		attrs = append(attrs, milliseconds(unix.NFTA_SET_TIMEOUT, s.timeout))
	}
	b.add("adding set "+s.name, unix.NFT_MSG_NEWSET, netlink.Create, attrs...)
	if len(s.elements) > 0 {
		b.elements("filling", unix.NFT_MSG_NEWSETELEM, netlink.Create, table, s.name, b.setID, s.elements...)
	}
}

// An element is an element of a set or map.
type element struct {
	key, data []byte        // data: maps only
	timeout   time.Duration // 0: none
}

// elements adds or deletes elements, by the message kind. The id is that of a set that
// the same batch adds, or else 0.
func (b *batch) elements(verb string, kind int, flags netlink.HeaderFlags, table, set string, id uint32, elements ...element) {
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
		text(unix.NFTA_SET_ELEM_LIST_TABLE, table), text(unix.NFTA_SET_ELEM_LIST_SET, set),
		nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list...),
	}
	if id != 0 {
		attrs = append(attrs, number(unix.NFTA_SET_ELEM_LIST_SET_ID, id))
	}
	b.add(verb+" set "+set, kind, flags, attrs...)
}

// replaceElements sets the timeouts of elements that may or may not exist. Older kernels
// keep the timeout of an element that is added again, and a missing element cannot be
// deleted. So it adds, deletes and adds again; packets see only the result.
func (b *batch) replaceElements(table, set string, elements ...element) {
	b.deleteElements(table, set, elements...)
	b.elements("filling", unix.NFT_MSG_NEWSETELEM, netlink.Create, table, set, 0, elements...)
}

// deleteElements deletes elements that may or may not exist.
func (b *batch) deleteElements(table, set string, elements ...element) {
	b.elements("filling", unix.NFT_MSG_NEWSETELEM, netlink.Create, table, set, 0, elements...)
	bare := slices.Clone(elements)
	for i := range bare {
		bare[i].timeout = 0
	}
	b.elements("emptying", unix.NFT_MSG_DELSETELEM, 0, table, set, 0, bare...)
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

func messageType(kind int) netlink.HeaderType {
	return netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind)
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

// nested panics for more than 64 KiB of attributes. Rules of this package are far smaller.
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
func encode(e expr.Any) ([]byte, error) {
	r, ok := e.(*raw)
	if !ok {
		return expr.Marshal(unix.NFPROTO_INET, e)
	}
	return netlink.MarshalAttributes([]netlink.Attribute{text(unix.NFTA_EXPR_NAME, r.name), nested(unix.NFTA_EXPR_DATA, r.attrs...)})
}
