// SPDX-License-Identifier: Apache-2.0

//go:build linux

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

// receiveBuffer holds the events of a large transaction of another program, as
// kube-proxy's are.
const receiveBuffer = 4 << 20

// reads is how often a dump is tried again that changed while it was read.
const reads = 20

// whole is what was being done when the kernel refuses a transaction as such.
const whole = "writing rules"

// A socket is a netlink socket to netfilter.
type socket struct {
	conn *netlink.Conn
	mu   sync.Mutex // one transaction, or dump, at a time
}

func dial() (*socket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, explain("opening a netlink socket", err)
	}
	// Without the right, the buffer is what the system allows. The kernel's word on
	// what it did not like is a comfort, that all but old kernels have.
	_ = conn.SetReadBuffer(receiveBuffer)
	_ = conn.SetOption(netlink.ExtendedAcknowledge, true)
	return &socket{conn: conn}, nil
}

// close ends the socket, and with it the tables that it owns.
func (s *socket) close() error { return s.conn.Close() }

// do has the kernel do a batch, all of it or, with an error, nothing.
//
// The kernel works on a batch while it is being sent, so what it has to say is there
// to be read at once, and nothing of it is left for the next one to stumble upon. No
// message asks for an acknowledgement: the kernel speaks of failures only.
func (s *socket) do(b *batch) error {
	if b.err != nil {
		return b.err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sent, err := s.conn.SendMessages(b.frame())
	if err != nil {
		return explain("sending a transaction", err)
	}
	replies, err := s.pending()
	if err != nil {
		return explain("reading the outcome of a transaction", err)
	}
	names := make(map[uint32]string, len(b.names))
	for i, name := range b.names {
		names[sent[i+1].Header.Sequence] = name
	}
	return outcome(replies, names)
}

// pending reads what is there to be read, without waiting.
func (s *socket) pending() ([]syscall.NetlinkMessage, error) {
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

// outcome finds the first failure among the replies to a batch, whose messages have
// names by their sequence numbers.
func outcome(replies []syscall.NetlinkMessage, names map[uint32]string) error {
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
			name = whole
		}
		errno := unix.Errno(-code)
		if word := extended(m); word != "" {
			return explain(name, fmt.Errorf("%w (%s)", errno, word))
		}
		return explain(name, errno)
	}
	return nil
}

// extended returns the kernel's own word on a failure, if it has one.
func extended(m syscall.NetlinkMessage) string {
	if m.Header.Flags&unix.NLM_F_ACK_TLVS == 0 || len(m.Data) < 4+unix.SizeofNlMsghdr {
		return ""
	}
	at := 4 + unix.SizeofNlMsghdr
	if m.Header.Flags&unix.NLM_F_CAPPED == 0 { // the whole of our message is repeated
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

// dump reads the messages of one kind of the family inet, a consistent view of them.
func (s *socket) dump(kind int, attrs ...netlink.Attribute) ([]netlink.Message, error) {
	data, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for range reads {
		messages, err := s.conn.Execute(netlink.Message{
			Header: netlink.Header{Type: messageType(kind), Flags: netlink.Request | netlink.Dump},
			Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, data...),
		})
		if err != nil {
			return nil, err
		}
		torn := slices.ContainsFunc(messages, func(m netlink.Message) bool { return m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 })
		if !torn {
			return messages, nil
		}
	}
	return nil, errors.New("the rules change faster than they can be read")
}

// explain wraps err, with the right or the part of the kernel that is missing.
func explain(doing string, err error) error {
	var missing string
	switch {
	case errors.Is(err, unix.EPERM) && strings.HasPrefix(doing, "deleting table"):
		missing = "it belongs to a running process"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		missing = "the capability NET_ADMIN is needed"
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		missing = "the kernel lacks netfilter's netlink, CONFIG_NETFILTER_NETLINK"
	case errors.Is(err, unix.EOPNOTSUPP) && doing == whole:
		missing = "the kernel lacks nf_tables, CONFIG_NF_TABLES"
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT):
		missing = lacks(doing)
	}
	if missing == "" {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w: %s", doing, err, missing)
}

// lacks names the kernel's options without which what was being done cannot be.
func lacks(doing string) string {
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
