// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// requestTimeout bounds a request. The kernel answers in microseconds, or once its one
// lock for links (RTNL) is free, which the teardown of namespaces holds for long.
const requestTimeout = 5 * time.Second

// A netlinkKernel is the kernel's view of the network namespace in which it was opened.
type netlinkKernel struct {
	links *netlink.Handle
	addrs *nl.SocketHandle // for attributes that netlink.Addr lacks, and dumps of one link
}

func openKernel() (kernel, error) {
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", translate(err))
	}
	sock, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		links.Close()
		return nil, fmt.Errorf("opening a netlink socket: %w", translate(err))
	}
	k := &netlinkKernel{links: links, addrs: &nl.SocketHandle{Socket: sock}}
	limit := unix.NsecToTimeval(requestTimeout.Nanoseconds())
	err = errors.Join(links.SetSocketTimeout(requestTimeout), sock.SetSendTimeout(&limit), sock.SetReceiveTimeout(&limit))
	if err != nil {
		k.close()
		return nil, fmt.Errorf("setting up a netlink socket: %w", err)
	}
	// Kernels before 4.20 do not support strict checks, and dump the addresses of all links.
	_ = unix.SetsockoptInt(sock.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	return k, nil
}

func (k *netlinkKernel) close() {
	k.links.Close()
	k.addrs.Close()
}

func (k *netlinkKernel) link(name string) (device, error) {
	link, err := k.links.LinkByName(name)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return device{}, errNoLink
	}
	if err != nil {
		return device{}, translate(err)
	}
	attrs := link.Attrs()
	dev := device{
		index: attrs.Index, name: attrs.Name, kind: Kind(link.Type()), alias: attrs.Alias,
		up: attrs.Flags&net.FlagUp != 0, master: attrs.MasterIndex,
	}
	if attrs.Flags&net.FlagLoopback != 0 {
		dev.kind = Loopback
	}
	return dev, nil
}

func (k *netlinkKernel) linkName(index int) (string, error) {
	link, err := k.links.LinkByIndex(index)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return "", errLinkGone
	}
	if err != nil {
		return "", translate(err)
	}
	return link.Attrs().Name, nil
}

func (k *netlinkKernel) portCount(index int) (int, error) {
	list, err := k.links.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return 0, fmt.Errorf("listing links: %w", translate(err))
	}
	n := 0
	for _, link := range list {
		if link.Attrs().MasterIndex == index {
			n++
		}
	}
	return n, nil
}

func (k *netlinkKernel) createLink(name string, kind Kind) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	var link netlink.Link = &netlink.Dummy{LinkAttrs: attrs}
	if kind == Bridge {
		link = &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: new(bool)} // there are no ports to snoop on
	}
	if err := k.links.LinkAdd(link); err != nil {
		return translate(err)
	}
	// The link needs no link-local address. Turning that off fails without IPv6 in the kernel, which is fine.
	if made, err := k.links.LinkByName(name); err == nil {
		_ = k.links.LinkSetIP6AddrGenMode(made, addrGenModeNone)
	}
	return nil
}

// addrGenModeNone is IN6_ADDR_GEN_MODE_NONE.
const addrGenModeNone = 1

func (k *netlinkKernel) deleteLink(index int) error {
	return translate(k.links.LinkDel(byIndex(index)))
}

func (k *netlinkKernel) setAlias(index int, alias string) error {
	return translate(k.links.LinkSetAlias(byIndex(index), alias))
}

func (k *netlinkKernel) setUp(index int) error {
	return translate(k.links.LinkSetUp(byIndex(index)))
}

func byIndex(index int) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

// translate maps errors of the kernel to those of this package.
func translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return ErrNotPermitted
	case errors.Is(err, unix.EACCES): // here the kernel returns it only for an IPv6 address while IPv6 is disabled
		return ErrDisabled
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT):
		return ErrUnsupported
	case errors.Is(err, unix.EEXIST):
		return errExists
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return errLinkGone
	default:
		return err
	}
}

// dumpAttempts bounds the repetitions of a dump that changes interrupt. The dump of one
// link, where the kernel supports it, fits in one message and is never interrupted.
const dumpAttempts = 5

func (k *netlinkKernel) addresses(index int) ([]address, error) {
	for try := 1; ; try++ {
		req := k.request(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		msg := nl.NewIfAddrmsg(unix.AF_UNSPEC)
		msg.Index = uint32(index)
		req.AddData(msg)
		replies, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
		if errors.Is(err, netlink.ErrDumpInterrupted) && try < dumpAttempts {
			continue
		}
		if err != nil {
			return nil, translate(err)
		}
		return parseAddresses(replies, index)
	}
}

// parseAddresses returns the addresses of one link, or of all links for index 0.
func parseAddresses(replies [][]byte, index int) ([]address, error) {
	var list []address
	for _, reply := range replies {
		a, err := parseAddress(reply)
		if err != nil {
			return nil, err
		}
		if a.prefix.IsValid() && (index == 0 || a.index == index) {
			list = append(list, a)
		}
	}
	return list, nil
}

// parseAddress parses an RTM_NEWADDR or RTM_DELADDR. The result has no prefix if the
// address is not IP.
func parseAddress(msg []byte) (address, error) {
	if len(msg) < unix.SizeofIfAddrmsg {
		return address{}, fmt.Errorf("reading an address message of %d bytes: too short", len(msg))
	}
	header := nl.DeserializeIfAddrmsg(msg)
	a := address{index: int(header.Index)}
	flags := uint32(header.Flags)
	var ip []byte
	for kind, v := range attributes(msg[unix.SizeofIfAddrmsg:]) {
		switch kind {
		case unix.IFA_LOCAL: // on a point-to-point link IFA_ADDRESS is the peer
			ip = v
		case unix.IFA_ADDRESS:
			if ip == nil {
				ip = v
			}
		case unix.IFA_FLAGS:
			flags = number(v)
		case unix.IFA_RT_PRIORITY:
			a.mark = number(v)
		}
	}
	if addr, ok := netip.AddrFromSlice(ip); ok && int(header.Prefixlen) <= addr.BitLen() {
		a.prefix = netip.PrefixFrom(addr, int(header.Prefixlen))
	}
	a.failed = flags&unix.IFA_F_DADFAILED != 0
	a.tentative = flags&unix.IFA_F_TENTATIVE != 0 && flags&unix.IFA_F_OPTIMISTIC == 0
	return a, nil
}

// attributes iterates over the attributes of a message and stops at a truncated one. The
// parser of package nl panics there.
func attributes(data []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(data) >= unix.SizeofRtAttr {
			size := int(binary.NativeEndian.Uint16(data))
			if size < unix.SizeofRtAttr || size > len(data) {
				return
			}
			kind := binary.NativeEndian.Uint16(data[2:]) & nl.NLA_TYPE_MASK
			if !yield(kind, data[unix.SizeofRtAttr:size]) {
				return
			}
			data = data[min(len(data), (size+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1)):]
		}
	}
}

func number(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(v)
}

func (k *netlinkKernel) putAddress(index int, a netip.Addr, mark uint32, replace bool) error {
	how := unix.NLM_F_CREATE | unix.NLM_F_EXCL
	if replace {
		how = unix.NLM_F_REPLACE
	}
	req := k.request(unix.RTM_NEWADDR, how|unix.NLM_F_ACK)
	msg := message(index, netip.PrefixFrom(a, a.BitLen()), req)
	req.AddData(attribute(unix.IFA_RT_PRIORITY, mark))
	if a.Is4() {
		// With a wider scope the kernel could select it as the source of the node's traffic,
		// and would answer ARP requests for it despite arp_ignore=3.
		msg.Scope = unix.RT_SCOPE_HOST
	} else {
		req.AddData(attribute(unix.IFA_FLAGS, unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE))
		forever := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Valid: math.MaxUint32}} // preferred lifetime 0: deprecated
		req.AddData(nl.NewRtAttr(unix.IFA_CACHEINFO, forever.Serialize()))
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return translate(err)
}

func (k *netlinkKernel) removeAddress(index int, p netip.Prefix) error {
	req := k.request(unix.RTM_DELADDR, unix.NLM_F_ACK)
	message(index, p, req)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return nil
	}
	return translate(err)
}

func (k *netlinkKernel) request(kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.addrs}
	return req
}

// message adds the header and the address to req.
func message(index int, p netip.Prefix, req *nl.NetlinkRequest) *nl.IfAddrmsg {
	family := unix.AF_INET
	if p.Addr().Is6() {
		family = unix.AF_INET6
	}
	msg := nl.NewIfAddrmsg(family)
	msg.Index = uint32(index)
	msg.Prefixlen = uint8(p.Bits())
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, p.Addr().AsSlice()))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, p.Addr().AsSlice()))
	return msg
}

func attribute(kind int, value uint32) *nl.RtAttr {
	return nl.NewRtAttr(kind, nl.Uint32Attr(value))
}

// linkEvents is a subscription to one link and some addresses. It skips messages about
// other links, such as those of pods that start and stop all day.
type linkEvents struct {
	file  *os.File
	buf   []byte
	name  string
	index int // of the link called name, as far as known; 0: unknown
	addrs []netip.Addr
}

func (k *netlinkKernel) events(name string, addrs []netip.Addr) (next func() error, stop func(), err error) {
	e, err := k.subscribe(name, addrs)
	if err != nil {
		return nil, nil, err
	}
	return e.next, func() { _ = e.file.Close() }, nil
}

func (k *netlinkKernel) subscribe(name string, addrs []netip.Addr) (*linkEvents, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", translate(err))
	}
	e := &linkEvents{file: os.NewFile(uintptr(fd), "netlink"), buf: make([]byte, 64<<10), name: name, addrs: addrs}
	var groups uint32
	for _, g := range []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR} {
		groups |= 1 << (g - 1)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		_ = e.file.Close()
		return nil, fmt.Errorf("joining netlink groups: %w", translate(err))
	}
	if dev, err := k.link(name); err == nil {
		e.index = dev.index
	}
	return e, nil
}

func (e *linkEvents) next() error {
	for {
		n, err := e.file.Read(e.buf)
		if errors.Is(err, unix.ENOBUFS) { // events were lost, and they may have mattered
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading link events: %w", err)
		}
		msgs, err := syscall.ParseNetlinkMessage(e.buf[:n])
		if err != nil {
			return nil //nolint:nilerr // a message that cannot be parsed may matter
		}
		if slices.ContainsFunc(msgs, e.matters) {
			return nil
		}
	}
}

func (e *linkEvents) matters(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		a, err := parseAddress(m.Data)
		return err != nil || slices.Contains(e.addrs, a.prefix.Addr())
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return e.linkMatters(m.Data)
	default:
		return false
	}
}

// linkMatters reports whether a message is about lo or the link called name. It also compares the index: a link may be renamed.
func (e *linkEvents) linkMatters(data []byte) bool {
	if len(data) < unix.SizeofIfInfomsg {
		return true
	}
	index := int(nl.DeserializeIfInfomsg(data).Index)
	if index == loIndex {
		return true
	}
	for kind, v := range attributes(data[unix.SizeofIfInfomsg:]) {
		if kind == unix.IFLA_IFNAME && unix.ByteSliceToString(v) == e.name {
			e.index = index
			return true
		}
	}
	return index == e.index
}
