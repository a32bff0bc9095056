// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// patience bounds a request. The kernel answers in microseconds, or after whoever
// holds its one lock for links, which teardowns of namespaces do for long.
const patience = 5 * time.Second

// A netlinkKernel is the kernel of the network namespace in which it was opened.
type netlinkKernel struct {
	links *netlink.Handle
	addrs *nl.SocketHandle // has attributes that netlink.Addr does not know, and dumps of one link
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
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	err = errors.Join(links.SetSocketTimeout(patience), sock.SetSendTimeout(&limit), sock.SetReceiveTimeout(&limit))
	if err != nil {
		k.close()
		return nil, fmt.Errorf("setting up a netlink socket: %w", err)
	}
	// A kernel that cannot (before 4.20) dumps the addresses of all links instead.
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
		return device{}, errNone
	}
	if err != nil {
		return device{}, translate(err)
	}
	attrs := link.Attrs()
	dev := device{
		index: attrs.Index, name: attrs.Name, kind: link.Type(), alias: attrs.Alias,
		up: attrs.Flags&net.FlagUp != 0, master: attrs.MasterIndex,
	}
	if attrs.Flags&net.FlagLoopback != 0 {
		dev.kind = Loopback.String()
	}
	return dev, nil
}

func (k *netlinkKernel) name(index int) (string, error) {
	link, err := k.links.LinkByIndex(index)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return "", errVanished
	}
	if err != nil {
		return "", translate(err)
	}
	return link.Attrs().Name, nil
}

func (k *netlinkKernel) ports(index int) (int, error) {
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

func (k *netlinkKernel) create(name string, kind Kind) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	var link netlink.Link = &netlink.Dummy{LinkAttrs: attrs}
	if kind == Bridge {
		link = &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: new(bool)} // nobody is there to snoop on
	}
	if err := k.links.LinkAdd(link); err != nil {
		return translate(err)
	}
	// It needs no link-local address of its own. Without IPv6 there is none to prevent.
	if made, err := k.links.LinkByName(name); err == nil {
		_ = k.links.LinkSetIP6AddrGenMode(made, addrGenModeNone)
	}
	return nil
}

// addrGenModeNone is IN6_ADDR_GEN_MODE_NONE.
const addrGenModeNone = 1

func (k *netlinkKernel) destroy(index int) error {
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

// translate gives the errors of the kernel the names that they have here.
func translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return ErrNotPermitted
	case errors.Is(err, unix.EACCES): // only inet6_addr_add says so
		return ErrDisabled
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT):
		return ErrUnsupported
	case errors.Is(err, unix.EEXIST):
		return errExists
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return errVanished
	default:
		return err
	}
}
