// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A vethPair is a pair of virtual links between the node and another host.
type vethPair struct {
	name                                 string // of the node's end; the other is eth0
	nodeIPv4, farIPv4, nodeIPv6, farIPv6 netip.Prefix
}

func newVethPair(name string, network, i int, o Options) vethPair {
	v4 := func(host byte) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(network), byte(i), host}), 24)
	}
	c := vethPair{name: name, nodeIPv4: v4(1), farIPv4: v4(2)}
	if o.NoIPv6 {
		return c
	}
	v6 := func(host int) netip.Prefix {
		return netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("fd00:%d:%x::%x", network, i, host)), 64)
	}
	c.nodeIPv6, c.farIPv6 = v6(1), v6(2)
	return c
}

// connect adds a veth pair between the node h and another host. h becomes the default gateway of that host.
func (h *Host) connect(far *Host, c vethPair) error {
	err := h.Do(func() error {
		if err := AddVeth(c.name, far, "eth0", 0); err != nil {
			return err
		}
		return SetLinkUp(c.name, c.nodeIPv4, c.nodeIPv6)
	})
	if err != nil {
		return fmt.Errorf("connecting %s to %s: %w", h.Name, far.Name, err)
	}
	if err := far.Do(func() error { return SetLinkUp("eth0", c.farIPv4, c.farIPv6) }); err != nil {
		return fmt.Errorf("connecting %s to %s: %w", h.Name, far.Name, err)
	}
	if err := errors.Join(h.AwaitLink(c.name), far.AwaitLink("eth0")); err != nil {
		return fmt.Errorf("connecting %s to %s: %w", h.Name, far.Name, err)
	}
	far.IPv4, far.IPv6 = c.farIPv4.Addr(), c.farIPv6.Addr()
	if !h.IPv4.IsValid() { // the first link is the one to the upstream host
		h.IPv4, h.IPv6 = c.nodeIPv4.Addr(), c.nodeIPv6.Addr()
	}
	return far.defaultRoute(c.nodeIPv4.Addr(), c.nodeIPv6.Addr())
}

// AddVeth adds a pair of links between the calling thread's namespace and another host, where it has the name peer. A master
// is the number of the bridge that the near end is a port of; 0: none.
func AddVeth(name string, far *Host, peer string, master int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = name, master
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer, PeerNamespace: netlink.NsFd(far.ns)}); err != nil {
		return fmt.Errorf("adding link %s: %w", name, err)
	}
	return nil
}

// SetLinkUp sets a link of the calling thread's namespace up with addresses. It skips invalid addresses.
func SetLinkUp(name string, prefixes ...netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding link %s: %w", name, err)
	}
	for _, p := range prefixes {
		if !p.IsValid() {
			continue
		}
		if err := addAddress(link, p); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting link %s up: %w", name, err)
	}
	return nil
}

func addAddress(link netlink.Link, p netip.Prefix) error {
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD // no other host has it, and programs bind to it at once
	}
	if err := netlink.AddrAdd(link, a); err != nil {
		return fmt.Errorf("adding address %s to %s: %w", p, link.Attrs().Name, err)
	}
	return nil
}

// AddAddress adds an address to the host's loopback device.
func (h *Host) AddAddress(a netip.Addr) error {
	err := h.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return addAddress(lo, netip.PrefixFrom(a, a.BitLen()))
	})
	if err != nil {
		return err
	}
	return h.awaitRoute(a)
}

// defaultRoute adds default routes by the gateways. It skips invalid addresses.
func (h *Host) defaultRoute(gateways ...netip.Addr) error {
	return h.Do(func() error {
		for _, gw := range gateways {
			if !gw.IsValid() {
				continue
			}
			if err := AddRoute(netip.Prefix{}, gw); err != nil {
				return fmt.Errorf("%s: %w", h.Name, err)
			}
		}
		return nil
	})
}

// AddRoute adds a route to the calling thread's namespace, the default one for an invalid prefix.
func AddRoute(to netip.Prefix, by netip.Addr) error {
	route := &netlink.Route{Gw: by.AsSlice()}
	if to.IsValid() {
		route.Dst = ipNet(to)
	}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("adding the route to %s by %s: %w", to, by, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// forward enables packet forwarding on the host.
func (h *Host) forward() error {
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := h.Sysctl(key, "1"); err != nil {
			return err
		}
	}
	return nil
}

// waitUntil polls ready in the host's namespace until it returns true.
func (h *Host) waitUntil(what string, ready func() (bool, error)) error {
	return h.Do(func() error {
		for range 2000 {
			if yes, err := ready(); yes || err != nil {
				return err
			}
			time.Sleep(2 * time.Millisecond) //nolint:forbidigo // no event to wait for
		}
		return fmt.Errorf("%s of host %s does not come up", what, h.Name)
	})
}

// AwaitLink waits until the link has a link-local address and no tentative address. Until then the kernel does not
// answer neighbour solicitations, and the other side retries only after a second.
func (h *Host) AwaitLink(name string) error {
	return h.waitUntil("link "+name, func() (bool, error) {
		link, err := netlink.LinkByName(name)
		if err != nil || link.Attrs().OperState != netlink.OperUp {
			return false, err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			return false, nil // an address was added meanwhile
		}
		local, tentative := false, false
		for _, a := range addrs {
			local = local || a.Scope == unix.RT_SCOPE_LINK
			tentative = tentative || a.Flags&unix.IFA_F_TENTATIVE != 0
		}
		return local && !tentative, err
	})
}

// awaitRoute waits until the host delivers packets to its own address a locally. For an IPv6 address that takes
// effect some time after the address is added. Until then the host forwards them.
func (h *Host) awaitRoute(a netip.Addr) error {
	return h.waitUntil("address "+a.String(), func() (bool, error) {
		routes, err := netlink.RouteGet(a.AsSlice())
		return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL, nil
	})
}
