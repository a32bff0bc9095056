// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// receiveBuffer has room for the events of a large transaction of another program, such
// as kube-proxy.
const receiveBuffer = 4 << 20

// dumpAttempts bounds the repetitions of a dump that changes interrupt.
const dumpAttempts = 20

// wholeBatch names the operation when the kernel refuses a transaction as a whole.
const wholeBatch = "writing rules"

// A socket is a netlink socket to netfilter.
type socket struct {
	conn *netlink.Conn
	mu   sync.Mutex // serializes requests and their replies on conn
}

func dial() (*socket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, withHint("opening a netlink socket", err)
	}
	// Both are best effort: without NET_ADMIN the buffer has the default size, and old
	// kernels return no error texts.
	_ = conn.SetReadBuffer(receiveBuffer)
	_ = conn.SetOption(netlink.ExtendedAcknowledge, true)
	return &socket{conn: conn}, nil
}

// commit sends a batch. The kernel carries out all of it or, with an error, nothing.
//
// The kernel processes a batch while it is being sent. So all replies can be read at
// once, and none is left for the next batch. No message requests an acknowledgement: the
// kernel reports failures only.
func (s *socket) commit(b *batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent, err := s.conn.SendMessages(b.framed())
	if err != nil {
		return withHint("sending a transaction", err)
	}
	replies, err := s.receivePending()
	if err != nil {
		return withHint("reading the result of a transaction", err)
	}
	names := make(map[uint32]string, len(b.names))
	for i, name := range b.names {
		names[sent[i+1].Header.Sequence] = name
	}
	return firstFailure(replies, names)
}

// receivePending reads all queued messages without waiting.
func (s *socket) receivePending() ([]syscall.NetlinkMessage, error) {
	rc, err := s.conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var all []syscall.NetlinkMessage
	buf := make([]byte, 64<<10)
	for {
		var n int
		var errno error
		err := rc.Read(func(fd uintptr) bool {
			n, _, errno = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
			return true
		})
		switch {
		case err != nil:
			return nil, err
		case errors.Is(errno, unix.EAGAIN):
			return all, nil
		case errors.Is(errno, unix.EINTR):
			continue
		case errno != nil:
			return nil, errno
		}
		messages, err := syscall.ParseNetlinkMessage(slices.Clone(buf[:n]))
		if err != nil {
			return nil, err
		}
		all = append(all, messages...)
	}
}

// firstFailure returns the first failure among the replies to a batch. names has the
// names of the messages by sequence number.
func firstFailure(replies []syscall.NetlinkMessage, names map[uint32]string) error {
	for _, m := range replies {
		if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 {
			continue
		}
		code := int32(binary.NativeEndian.Uint32(m.Data))
		if code == 0 {
			continue
		}
		name := names[m.Header.Seq]
		if name == "" {
			name = wholeBatch
		}
		errno := unix.Errno(-code)
		if word := extendedAck(m); word != "" {
			return withHint(name, fmt.Errorf("%w (%s)", errno, word))
		}
		return withHint(name, errno)
	}
	return nil
}

// extendedAck returns the kernel's error text, if there is one.
func extendedAck(m syscall.NetlinkMessage) string {
	if m.Header.Flags&unix.NLM_F_ACK_TLVS == 0 || len(m.Data) < 4+unix.SizeofNlMsghdr {
		return ""
	}
	at := 4 + unix.SizeofNlMsghdr
	if m.Header.Flags&unix.NLM_F_CAPPED == 0 { // the reply repeats our whole message
		length := binary.NativeEndian.Uint32(m.Data[4:])
		at = 4 + int(min(length+3, uint32(len(m.Data)))&^3)
	}
	if at > len(m.Data) {
		return ""
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[at:])
	if err != nil {
		return ""
	}
	for ad.Next() {
		if ad.Type() == unix.NLMSGERR_ATTR_MSG {
			return ad.String()
		}
	}
	return ""
}

// dump reads a consistent list of the messages of one kind for the family inet, without their headers.
func (s *socket) dump(kind int, attrs ...netlink.Attribute) ([][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range dumpAttempts {
		messages, err := s.conn.Execute(message(kind, netlink.Dump, attrs...))
		if err != nil {
			return nil, err
		}
		list := make([][]byte, len(messages))
		interrupted := false
		for i, m := range messages {
			list[i] = m.Data[headerSize:]
			interrupted = interrupted || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
		}
		if !interrupted {
			return list, nil
		}
	}
	return nil, errors.New("the rules keep changing while they are read")
}

// withHint wraps err with its likely cause: a missing capability or kernel option, or a process that owns the table.
func withHint(doing string, err error) error {
	var missing string
	switch {
	case errors.Is(err, unix.EPERM) && strings.HasPrefix(doing, "deleting table"):
		missing = "a running process owns it"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		missing = "it needs the capability NET_ADMIN"
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		missing = "the kernel lacks netfilter's netlink, CONFIG_NETFILTER_NETLINK"
	case errors.Is(err, unix.EOPNOTSUPP) && doing == wholeBatch:
		missing = "the kernel lacks nf_tables, CONFIG_NF_TABLES"
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT):
		missing = missingOption(doing)
	}
	if missing == "" {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w: %s", doing, err, missing)
}

// missingOption says which kernel options may be missing if the kernel does not support an operation; "" if that is unknown.
func missingOption(doing string) string {
	switch {
	case strings.HasPrefix(doing, "adding table"):
		return "the kernel lacks tables of the family inet, CONFIG_NF_TABLES_INET"
	case strings.HasPrefix(doing, "adding chain fallback"):
		return "the kernel lacks NAT for nf_tables, CONFIG_NFT_NAT"
	case strings.HasPrefix(doing, "adding a rule to fallback"):
		return "the kernel lacks an expression of nf_tables, one of CONFIG_NFT_NAT, CONFIG_NFT_MASQ, CONFIG_NFT_NUMGEN, CONFIG_NFT_CT"
	case strings.HasPrefix(doing, "adding a rule to input"):
		return "the kernel lacks an expression of nf_tables, one of CONFIG_NFT_REJECT_INET, CONFIG_NFT_CT"
	case strings.HasPrefix(doing, "adding a rule"):
		return "the kernel lacks an expression of nf_tables, CONFIG_NFT_CT"
	}
	return ""
}
