// SPDX-License-Identifier: Apache-2.0

package nodelab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A cable is a pair of virtual links between the node and another host.
type cable struct {
	name                                 string // of the node's end; the other is eth0
	nodeIPv4, farIPv4, nodeIPv6, farIPv6 netip.Prefix
}

func newCable(name string, network, i int, o Options) cable {
	v4 := func(host byte) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(network), byte(i), host}), 24)
	}
	c := cable{name: name, nodeIPv4: v4(1), farIPv4: v4(2)}
	if o.NoIPv6 {
		return c
	}
	v6 := func(host int) netip.Prefix {
		return netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("fd00:%d:%x::%x", network, i, host)), 64)
	}
	c.nodeIPv6, c.farIPv6 = v6(1), v6(2)
	return c
}

// connect lays a cable from the node h to another host, whose way to everywhere is h from then on.
func (h *Host) connect(far *Host, c cable) error {
	err := h.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = c.name
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(far.ns)}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("adding link %s: %w", c.name, err)
		}
		return raise(c.name, c.nodeIPv4, c.nodeIPv6)
	})
	if err != nil {
		return fmt.Errorf("connecting %s to %s: %w", h.Name, far.Name, err)
	}
	if err := far.Do(func() error { return raise("eth0", c.farIPv4, c.farIPv6) }); err != nil {
		return fmt.Errorf("connecting %s to %s: %w", h.Name, far.Name, err)
	}
	if err := errors.Join(h.awaitLink(c.name), far.awaitLink("eth0")); err != nil {
		return fmt.Errorf("connecting %s to %s: %w", h.Name, far.Name, err)
	}
	far.IPv4, far.IPv6 = c.farIPv4.Addr(), c.farIPv6.Addr()
	if !h.IPv4.IsValid() { // the upstream host's cable is the first
		h.IPv4, h.IPv6 = c.nodeIPv4.Addr(), c.nodeIPv6.Addr()
	}
	return far.defaultRoute(c.nodeIPv4.Addr(), c.nodeIPv6.Addr())
}

// raise sets a link of the calling thread's namespace up with addresses. One that is not valid is left out.
func raise(name string, prefixes ...netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
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
	a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if err := netlink.AddrAdd(link, a); err != nil {
		return fmt.Errorf("adding address %s to %s: %w", p, link.Attrs().Name, err)
	}
	return nil
}

// AddAddress gives the host one more address, on its loopback device.
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

// defaultRoute sends what the host does not know to gateways. One that is not valid is left out.
func (h *Host) defaultRoute(gateways ...netip.Addr) error {
	return h.Do(func() error {
		for _, gw := range gateways {
			if !gw.IsValid() {
				continue
			}
			if err := netlink.RouteAdd(&netlink.Route{Gw: gw.AsSlice()}); err != nil {
				return fmt.Errorf("adding the default route of %s by %s: %w", h.Name, gw, err)
			}
		}
		return nil
	})
}

// forward has the host send packets on that are for others.
func (h *Host) forward() error {
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := h.Sysctl(key, "1"); err != nil {
			return err
		}
	}
	return nil
}

// await calls ready until it says yes, in a host.
func (h *Host) await(what string, ready func() (bool, error)) error {
	return h.Do(func() error {
		for range 2000 {
			if yes, err := ready(); yes || err != nil {
				return err
			}
			time.Sleep(2 * time.Millisecond) //nolint:forbidigo // nobody else is there to wait
		}
		return fmt.Errorf("%s of host %s does not come up", what, h.Name)
	})
}

// awaitLink waits until the kernel has taken in that a link is up, which shows in its link-local address, and answers
// those who look for its IPv6 addresses, which shows in none being tentative. Who looks earlier is not answered, and
// looks again a second later.
func (h *Host) awaitLink(name string) error {
	return h.await("link "+name, func() (bool, error) {
		link, err := netlink.LinkByName(name)
		if err != nil || link.Attrs().OperState != netlink.OperUp {
			return false, err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			return false, nil // an address came while they were listed
		}
		local, tentative := false, false
		for _, a := range addrs {
			local = local || a.Scope == unix.RT_SCOPE_LINK
			tentative = tentative || a.Flags&unix.IFA_F_TENTATIVE != 0
		}
		return local && !tentative, err
	})
}

// awaitRoute waits until packets to the host's own address a are its own, which those to an IPv6 address become some
// time after the address is there. Before that they are sent on.
func (h *Host) awaitRoute(a netip.Addr) error {
	return h.await("address "+a.String(), func() (bool, error) {
		routes, err := netlink.RouteGet(a.AsSlice())
		return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL, nil
	})
}
