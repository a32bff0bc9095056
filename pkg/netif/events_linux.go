// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// linkEvents are the netlink messages about one link and some addresses. Links of pods
// come and go all day; those messages wake nobody.
type linkEvents struct {
	file  *os.File
	buf   []byte
	name  string
	index int // of the link called name, as far as was heard; 0: unknown
	addrs []netip.Addr
}

func (k *netlinkKernel) events(name string, addrs []netip.Addr) (events, error) {
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
		e.close()
		return nil, fmt.Errorf("joining netlink groups: %w", translate(err))
	}
	if dev, err := k.link(name); err == nil {
		e.index = dev.index
	}
	return e, nil
}

func (e *linkEvents) close() { _ = e.file.Close() }

func (e *linkEvents) next() error {
	for {
		n, err := e.file.Read(e.buf)
		if errors.Is(err, unix.ENOBUFS) { // more than the socket holds: nobody knows what
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the events of links: %w", err)
		}
		msgs, err := syscall.ParseNetlinkMessage(e.buf[:n])
		if err != nil {
			return nil //nolint:nilerr // what cannot be read may be what matters
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

// linkMatters goes by the index too: a link that was renamed has the name no more.
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
