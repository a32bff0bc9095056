// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// failureReply is the kernel's reply to message seq with an error text, which follows the
// first repeated bytes of the message.
func failureReply(errno unix.Errno, seq uint32, message string, repeated int) syscall.NetlinkMessage {
	m := syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.NLMSG_ERROR, Seq: seq}}
	m.Data = binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))
	if errno == 0 {
		m.Data = make([]byte, 4)
	}
	m.Data = binary.NativeEndian.AppendUint32(m.Data, uint32(unix.SizeofNlMsghdr+repeated))
	m.Data = append(m.Data, make([]byte, unix.SizeofNlMsghdr-4+(repeated+3)&^3)...)
	if message != "" {
		m.Header.Flags = unix.NLM_F_ACK_TLVS
		if repeated == 0 {
			m.Header.Flags |= unix.NLM_F_CAPPED
		}
		m.Data = append(m.Data, nested(0, text(unix.NLMSGERR_ATTR_MSG, message)).Data...)
	}
	return m
}

func TestFirstFailure(t *testing.T) {
	t.Parallel()
	names := map[uint32]string{1: "adding table node-cache", 2: "adding chain fallback-output", 3: "adding a rule to input (why)", 4: "filling set lease4"}
	tests := []struct {
		name    string
		replies []syscall.NetlinkMessage
		is      error
		want    string // part of the error; empty: no error
	}{
		{name: "nothing"},
		{name: "an acknowledgement", replies: []syscall.NetlinkMessage{failureReply(0, 1, "", 0)}},
		{name: "something else", replies: []syscall.NetlinkMessage{{Header: syscall.NlMsghdr{Type: unix.NLMSG_DONE}}}},
		{name: "cut short", replies: []syscall.NetlinkMessage{{Header: syscall.NlMsghdr{Type: unix.NLMSG_ERROR}, Data: []byte{1}}}},
		{name: "no right", replies: []syscall.NetlinkMessage{failureReply(unix.EPERM, 99, "", 0)}, is: unix.EPERM, want: "writing rules: operation not permitted: it needs the capability NET_ADMIN"},
		{name: "no nf_tables", replies: []syscall.NetlinkMessage{failureReply(unix.EOPNOTSUPP, 99, "", 0)}, is: unix.EOPNOTSUPP, want: "CONFIG_NF_TABLES"},
		{name: "no inet", replies: []syscall.NetlinkMessage{failureReply(unix.EOPNOTSUPP, 1, "", 0)}, is: unix.EOPNOTSUPP, want: "CONFIG_NF_TABLES_INET"},
		{name: "no NAT, after what went well", replies: []syscall.NetlinkMessage{failureReply(0, 1, "", 0), failureReply(unix.ENOENT, 2, "", 0)}, is: unix.ENOENT, want: "adding chain fallback-output: no such file or directory: the kernel lacks NAT"},
		{name: "no reject", replies: []syscall.NetlinkMessage{failureReply(unix.ENOENT, 3, "", 0)}, is: unix.ENOENT, want: "CONFIG_NFT_REJECT_INET"},
		{name: "the kernel's message", replies: []syscall.NetlinkMessage{failureReply(unix.EBUSY, 4, "it is in use", 0)}, is: unix.EBUSY, want: "filling set lease4: device or resource busy (it is in use)"},
		{name: "the kernel's message behind our own", replies: []syscall.NetlinkMessage{failureReply(unix.EBUSY, 4, "it is in use", 37)}, is: unix.EBUSY, want: "filling set lease4: device or resource busy (it is in use)"},
		{name: "the first of several", replies: []syscall.NetlinkMessage{failureReply(unix.EBUSY, 4, "", 0), failureReply(unix.EPERM, 1, "", 0)}, is: unix.EBUSY, want: "filling set lease4"},
	}
	for _, tt := range tests {
		err := firstFailure(tt.replies, names)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) || !errors.Is(err, tt.is) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestWithHint(t *testing.T) {
	t.Parallel()
	tests := []struct {
		doing string
		err   error
		want  string
	}{
		{doing: "opening a netlink socket", err: unix.EPROTONOSUPPORT, want: "CONFIG_NETFILTER_NETLINK"},
		{doing: "deleting table node-cache-a1", err: unix.EPERM, want: "a running process owns it"},
		{doing: "adding a rule to query (why)", err: unix.ENOENT, want: "CONFIG_NFT_CT"},
		{doing: "adding a rule to fallback (why)", err: unix.ENOENT, want: "CONFIG_NFT_NUMGEN"},
		{doing: "filling set lease4", err: unix.ENOENT, want: "filling set lease4: no such file or directory"},
	}
	for _, tt := range tests {
		if got := withHint(tt.doing, tt.err); !errors.Is(got, tt.err) || !strings.Contains(got.Error(), tt.want) {
			t.Errorf("got %v, want %q", got, tt.want)
		}
	}
}

// FuzzExtendedAck parses arbitrary replies of the kernel.
func FuzzExtendedAck(f *testing.F) {
	for _, message := range []string{"", "it is in use"} {
		m := failureReply(unix.EBUSY, 1, message, 5)
		f.Add(m.Header.Flags, m.Data)
	}
	f.Fuzz(func(t *testing.T, flags uint16, data []byte) {
		m := syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.NLMSG_ERROR, Flags: flags}, Data: data}
		if message := extendedAck(m); message != "" && !strings.Contains(string(data), message) {
			t.Errorf("%q is not the kernel's message", message)
		}
		_ = firstFailure([]syscall.NetlinkMessage{m}, nil)
	})
}

// FuzzElement parses elements as the kernel lists them.
func FuzzElement(f *testing.F) {
	f.Add([]byte{10, 0, 0, 1}, []byte{1}, uint64(3000))
	f.Add(make([]byte, 16), []byte{}, uint64(0))
	f.Fuzz(func(t *testing.T, key, data []byte, ms uint64) {
		if len(key)+len(data) > 1000 {
			return
		}
		e := parseElement(nested(0,
			nested(unix.NFTA_SET_ELEM_KEY, netlink.Attribute{Type: unix.NFTA_DATA_VALUE, Data: key}),
			nested(unix.NFTA_SET_ELEM_DATA, netlink.Attribute{Type: unix.NFTA_DATA_VALUE, Data: data}),
			netlink.Attribute{Type: unix.NFTA_SET_ELEM_EXPIRATION, Data: binary.BigEndian.AppendUint64(nil, ms%1e12)},
		).Data)
		if string(e.key) != string(key) || string(e.data) != string(data) || e.timeout.Milliseconds() != int64(ms%1e12) {
			t.Errorf("%x, %x, %d is read as %+v", key, data, ms, e)
		}
	})
}

// FuzzFlow parses arbitrary data as a conntrack entry.
func FuzzFlow(f *testing.F) {
	f.Add([]byte{4, 0, 1, 0x80})
	f.Add(nested(0, nested(flowReply,
		nested(tupleIP, netlink.Attribute{Type: tupleSource, Data: []byte{10, 0, 0, 1}}),
		nested(tupleProto, netlink.Attribute{Type: protoSource, Data: []byte{0, 53}}))).Data)
	f.Fuzz(func(t *testing.T, data []byte) {
		if c := parseFlow(data); c.to.Port() != 0 && c.to.Addr() != (netip.Addr{}) && !c.to.Addr().IsValid() {
			t.Errorf("a flow to %s", c.to)
		}
	})
}
