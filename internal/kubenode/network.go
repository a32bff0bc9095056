// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/nodecache/node-cache/internal/nodetest"
)

// InternetDNS is the address of the server that stands for the Internet's DNS, and InternetDNS6 where the cluster has no IPv4.
const (
	InternetDNS  = "192.0.2.53"
	InternetDNS6 = "2001:db8::53"
)

// The cluster's addresses.
const (
	// DNSService is the address of Service kube-system/kube-dns.
	DNSService  = "10.96.0.10"
	serviceNet  = "10.96.0.0/16"
	podNet      = "10.244.0.0/16"
	controlAddr = "10.10.0.1"
	lanBits     = 24
	lanBridge   = "lan0"
	lanPort     = "eth0"
)

// The addresses of a cluster of two families besides, and of one without IPv4.
const (
	dnsService6  = "fd00:10:96::a"
	apiService6  = "fd00:10:96::1"
	serviceNet6  = "fd00:10:96::/112"
	podNet6      = "fd00:10:244::/56"
	controlAddr6 = "fd00:10:10::1"
	lanBits6     = 64
)

// nodeAddr and nodeAddr6 are the addresses of node i, counted from 1.
func nodeAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 10, 0, byte(10 + i)}) }

func nodeAddr6(i int) netip.Addr {
	addr := netip.MustParseAddr(controlAddr6).As16()
	addr[15] = byte(0x10 + i)
	return netip.AddrFrom16(addr)
}

// of returns what a cluster has of IPv4 and of IPv6.
func of[T any](o Options, four, six T) (all []T) {
	if !o.IPv6Only {
		all = append(all, four)
	}
	if o.IPv6Only || o.DualStack {
		all = append(all, six)
	}
	return all
}

// families joins what a cluster has of IPv4 and of IPv6, as Kubernetes' programs want it.
func (o Options) families(four, six string) string { return strings.Join(of(o, four, six), ",") }

// podsOf are the addresses of the pods of node i.
func (o Options) podsOf(i int) []netip.Prefix {
	addr := netip.MustParsePrefix(podNet6).Addr().As16()
	addr[7] = byte(i)
	return of(o, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24), netip.PrefixFrom(netip.AddrFrom16(addr), 64))
}

// network is the pods' network on node i, as its CNI plugins are configured.
func (o Options) network(i int) string {
	pods, all := o.podsOf(i), o.defaultRoutes()
	ranges, routes := make([]string, len(pods)), make([]string, len(all))
	for k := range pods {
		ranges[k] = fmt.Sprintf(`[{"subnet": %q}]`, pods[k])
		routes[k] = fmt.Sprintf(`{"dst": %q}`, all[k])
	}
	plugin := `"type": "ptp"`
	if o.Bridge {
		plugin = `"type": "bridge", "bridge": "cni0", "isGateway": true`
	}
	return fmt.Sprintf(cniText, plugin, strings.Join(ranges, ", "), strings.Join(routes, ", "))
}

// defaultRoutes are the networks that hold all addresses.
func (o Options) defaultRoutes() []netip.Prefix {
	return of(o, netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))
}

// control is the control machine's address, by which it serves.
func (o Options) control() netip.Addr {
	return netip.MustParseAddr(of(o, controlAddr, controlAddr6)[0])
}

// dnsService is the address of Service kube-system/kube-dns, the first if it has two.
func (o Options) dnsService() string { return of(o, DNSService, dnsService6)[0] }

// internet is the address of the Internet's DNS.
func (o Options) internet() netip.Addr {
	return netip.MustParseAddr(of(o, InternetDNS, InternetDNS6)[0])
}

// buildLAN makes the switch that all machines are plugged into, on the control machine, which is the nodes' way to
// everywhere.
func (o Options) buildLAN(control *Host) error {
	control.Addrs = of(o, netip.MustParseAddr(controlAddr), netip.MustParseAddr(controlAddr6))
	return control.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = lanBridge
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("adding bridge %s: %w", lanBridge, err)
		}
		if err := nodetest.SetLinkUp(lanBridge, control.lanPrefixes()...); err != nil {
			return err
		}
		internet := o.internet()
		return nodetest.SetLinkUp("lo", netip.PrefixFrom(internet, internet.BitLen()))
	})
}

// connect connects node i to the switch and gives it its addresses.
func (o Options) connect(control, node *Host, i int) error {
	port := fmt.Sprintf("node%d", i)
	err := control.Do(func() error {
		bridge, err := netlink.LinkByName(lanBridge)
		if err != nil {
			return fmt.Errorf("finding bridge %s: %w", lanBridge, err)
		}
		if err := nodetest.AddVeth(port, node.Host, lanPort, bridge.Attrs().Index); err != nil {
			return err
		}
		return nodetest.SetLinkUp(port)
	})
	if err != nil {
		return fmt.Errorf("connecting node %d: %w", i, err)
	}
	node.Addrs = of(o, nodeAddr(i), nodeAddr6(i))
	err = node.Do(func() error {
		if err := nodetest.SetLinkUp(lanPort, node.lanPrefixes()...); err != nil {
			return err
		}
		return routeAll(o.defaultRoutes(), control)
	})
	if err != nil {
		return fmt.Errorf("connecting node %d: %w", i, err)
	}
	return nil
}

// lanPrefixes are the machine's addresses, one of each family that the cluster has, with the networks that the switch is.
func (h *Host) lanPrefixes() []netip.Prefix {
	all := make([]netip.Prefix, len(h.Addrs))
	for i, addr := range h.Addrs {
		bits := lanBits
		if addr.Is6() {
			bits = lanBits6
		}
		all[i] = netip.PrefixFrom(addr, bits)
	}
	return all
}

// routePods shows every machine the way to the pods of all nodes.
func (o Options) routePods(control *Host, nodes []*Host) error {
	for _, m := range append([]*Host{control}, nodes...) {
		err := m.Do(func() error {
			for j, other := range nodes {
				if m == other {
					continue
				}
				if err := routeAll(o.podsOf(j+1), other); err != nil {
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

// routeAll adds a route to each network, one of each family, by a machine's address of that family.
func routeAll(to []netip.Prefix, by *Host) error {
	for i, addr := range by.lanPrefixes() {
		if err := nodetest.AddRoute(to[i], addr.Addr()); err != nil {
			return err
		}
	}
	return nil
}
