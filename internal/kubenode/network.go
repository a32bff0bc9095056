// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// InternetDNS is the address of the server that stands for the Internet's DNS.
const InternetDNS = "192.0.2.53"

// The cluster's addresses.
const (
	// DNSService is the address of Service kube-system/kube-dns.
	DNSService  = "10.96.0.10"
	apiService  = "10.96.0.1"
	serviceNet  = "10.96.0.0/16"
	podNet      = "10.244.0.0/16"
	controlAddr = "10.10.0.1"
	lanBits     = 24
	lanBridge   = "lan0"
	lanPort     = "eth0"
)

// nodeAddr is the address of node i, counted from 1.
func nodeAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 10, 0, byte(10 + i)}) }

// podsOf are the addresses of the pods of node i.
func podsOf(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)
}

// buildLAN makes the switch that all machines are plugged into, on the control machine, which is the nodes' way to
// everywhere.
func buildLAN(control *Machine) error {
	control.Addr = netip.MustParseAddr(controlAddr)
	return control.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = lanBridge
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("adding bridge %s: %w", lanBridge, err)
		}
		lan := netip.PrefixFrom(control.Addr, lanBits)
		if err := raise(lanBridge, lan); err != nil {
			return err
		}
		internet := netip.MustParseAddr(InternetDNS)
		return raise("lo", netip.PrefixFrom(internet, internet.BitLen()))
	})
}

// plugIn connects node i to the switch and gives it its address.
func plugIn(control, node *Machine, i int) error {
	port := fmt.Sprintf("node%d", i)
	err := control.Do(func() error {
		bridge, err := netlink.LinkByName(lanBridge)
		if err != nil {
			return fmt.Errorf("finding bridge %s: %w", lanBridge, err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex = port, bridge.Attrs().Index
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: lanPort, PeerNamespace: netlink.NsFd(node.network)}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("adding link %s: %w", port, err)
		}
		return raise(port)
	})
	if err != nil {
		return fmt.Errorf("connecting node %d: %w", i, err)
	}
	node.Addr = nodeAddr(i)
	err = node.Do(func() error {
		if err := raise(lanPort, netip.PrefixFrom(node.Addr, lanBits)); err != nil {
			return err
		}
		return route(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr(controlAddr))
	})
	if err != nil {
		return fmt.Errorf("connecting node %d: %w", i, err)
	}
	return nil
}

// routePods shows every machine the way to the pods of all nodes.
func routePods(control *Machine, nodes []*Machine) error {
	for _, m := range append([]*Machine{control}, nodes...) {
		err := m.Do(func() error {
			for j, other := range nodes {
				if m == other {
					continue
				}
				if err := route(podsOf(j+1), other.Addr); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	return nil
}

// raise sets a link of the calling thread's namespace up with addresses.
func raise(name string, addrs ...netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding link %s: %w", name, err)
	}
	for _, a := range addrs {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(a)}); err != nil {
			return fmt.Errorf("adding %s to %s: %w", a, name, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting link %s up: %w", name, err)
	}
	return nil
}

// route adds a route to the calling thread's namespace.
func route(to netip.Prefix, by netip.Addr) error {
	if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(to), Gw: by.AsSlice()}); err != nil {
		return fmt.Errorf("adding the route to %s by %s: %w", to, by, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
