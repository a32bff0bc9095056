// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestBridge has pods behind the ports of a bridge. A reply that another pod forges permits no pod to be answered by the kernel.
func TestBridge(t *testing.T) {
	for _, hook := range hooks() {
		t.Run(hook, func(t *testing.T) {
			n := newNode(t, hook, nodetest.Options{NoIPv6: true})
			n.addBridge(t)
			dns := agentAddrs()[0]
			proctest.Eventually(t, limit, "the kernel answers at a port", func() bool {
				who, _ := nodetest.Ask(n.Pods[0], dns, "udp")
				return who == byKernel
			})
			port := n.index(t, "port0")
			key := hitsClientKey{Ifindex: uint32(port), Family: 4}
			assert.NoError(t, n.objects.Clients.Put(key, hitsClient{})) // as of a new interface

			var victim net.PacketConn
			assert.NoError(t, n.Pods[0].Do(func() (err error) {
				victim, err = net.ListenPacket("udp", "10.77.0.2:4000")
				return err
			}))
			defer func() { _ = victim.Close() }()
			assert.NoError(t, n.Pods[1].AddAddress(dns.Addr()))
			assert.NoError(t, n.Pods[1].Do(func() error { return sendFrom(dns, "10.77.0.2:4000", []byte("forged")) }))
			assert.NoError(t, victim.SetReadDeadline(time.Now().Add(limit)))
			_, from, err := victim.ReadFrom(make([]byte, 512))
			assert.NoError(t, err)
			assert.Equal(t, "source of the forged reply", dns.String(), from.String())
			var client hitsClient
			assert.NoError(t, n.objects.Clients.Lookup(key, &client))
			assert.Equal(t, "time of the agent's last reply", uint64(0), client.Answered)
		})
	}
}

// TestForgedSource has a pod ask from another pod's address. The agent answers, and its reply renews the other's permit, but the
// kernel gives neither pod an answer, and counts none.
func TestForgedSource(t *testing.T) {
	n := newNode(t, "clsact", nodetest.Options{})
	owner, forger := n.Pods[0], n.Pods[1]
	query, err := new(dns.Msg).SetQuestion("who.nodetest.test.", dns.TypeTXT).Pack() // of await
	assert.NoError(t, err)
	clients := func(family uint32) (list [2]hitsClient) {
		for i := range list {
			key := hitsClientKey{Ifindex: uint32(n.index(t, fmt.Sprintf("pod%d", i))), Family: family}
			assert.NoError(t, n.objects.Clients.Lookup(key, &list[i]))
		}
		return list
	}
	for i, addr := range []netip.Addr{owner.IPv4, owner.IPv6} {
		to, family := agentAddrs()[i], families()[i]
		for _, pod := range n.Pods {
			n.await(t, pod)
		}
		assert.NoError(t, forger.AddAddress(addr))
		before := clients(family)
		assert.NoError(t, forger.Do(func() error { return sendFrom(netip.AddrPortFrom(addr, 0), to.String(), query) }))
		proctest.Eventually(t, limit, "the agent replies to the address", func() bool { return clients(family)[0].Answered > before[0].Answered })
		before[0].Answered = clients(family)[0].Answered
		assert.Same(t, "clients", before, clients(family))
	}
}

// addBridge connects the pods to ports of a bridge, by which they ask the agent.
func (n *node) addBridge(t *testing.T) {
	t.Helper()
	assert.NoError(t, n.Node.Do(func() error {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}}); err != nil {
			return err
		}
		return nodetest.SetLinkUp("br0", netip.MustParsePrefix("10.77.0.1/24"))
	}))
	bridge := n.index(t, "br0")
	for i, pod := range n.Pods {
		name := [...]string{"port0", "port1"}[i]
		assert.NoError(t, n.Node.Do(func() error {
			if err := nodetest.AddVeth(name, pod, "eth1", bridge); err != nil {
				return err
			}
			return nodetest.SetLinkUp(name)
		}))
		assert.NoError(t, pod.Do(func() error {
			if err := nodetest.SetLinkUp("eth1", netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, 0, byte(2 + i)}), 24)); err != nil {
				return err
			}
			return nodetest.AddRoute(netip.PrefixFrom(agentAddrs()[0].Addr(), 32), netip.AddrFrom4([4]byte{10, 77, 0, 1}))
		}))
	}
}

func (n *node) index(t *testing.T, name string) (index int) {
	t.Helper()
	assert.NoError(t, n.Node.Do(func() error {
		dev, err := netlink.LinkByName(name)
		if err == nil {
			index = dev.Attrs().Index
		}
		return err
	}))
	return index
}

// sendFrom sends a datagram from an address of the calling thread's namespace.
func sendFrom(from netip.AddrPort, to string, payload []byte) error {
	d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(from)}
	conn, err := d.Dial("udp", to)
	if err != nil {
		return err
	}
	_, err = conn.Write(payload)
	_ = conn.Close()
	return err
}

// TestTakenAddress has a pod on a bridge take the address and the MAC of another one. The reply leaves to it, but neither gets answers
// from the kernel then.
func TestTakenAddress(t *testing.T) {
	n := newNode(t, "clsact", nodetest.Options{})
	n.addBridge(t)
	query, err := new(dns.Msg).SetQuestion("who.nodetest.test.", dns.TypeTXT).Pack()
	assert.NoError(t, err)
	addr := netip.AddrFrom4([4]byte{10, 77, 0, 2})
	ports := [2]int{n.index(t, "port0"), n.index(t, "port1")}
	client := func(i int) (c hitsClient) {
		_ = n.objects.Clients.Lookup(hitsClientKey{Ifindex: uint32(ports[i]), Family: 4}, &c)
		return c
	}
	holder := func() (h hitsHolder) {
		_ = n.objects.Holders.Lookup(addressOf(addr), &h)
		return h
	}
	send := func(pod *nodetest.Host) {
		assert.NoError(t, pod.Do(func() error { return sendFrom(netip.AddrPortFrom(addr, 0), agentAddrs()[0].String(), query) }))
	}
	proctest.Eventually(t, limit, "the owner holds its address", func() bool {
		send(n.Pods[0])
		return client(0).Answered > 0 && holder().Ifindex == uint32(ports[0])
	})
	var mac net.HardwareAddr
	assert.NoError(t, n.Pods[0].Do(func() error {
		dev, err := netlink.LinkByName("eth1")
		if err == nil {
			mac = dev.Attrs().HardwareAddr
		}
		return err
	}))
	assert.NoError(t, n.Pods[1].Do(func() error {
		dev, err := netlink.LinkByName("eth1")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetHardwareAddr(dev, mac); err != nil {
			return err
		}
		return nodetest.SetLinkUp("eth1", netip.PrefixFrom(addr, 24))
	}))
	proctest.Eventually(t, limit, "the agent's reply leaves to the forger", func() bool {
		send(n.Pods[1])
		return holder().Disputed > 0
	})
	assert.Equal(t, "permits of owner and forger", [2]uint64{}, [2]uint64{client(0).Answered, client(1).Answered})
}
