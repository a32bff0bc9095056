// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A pod is a child in its own network namespace, with a veth to the node. When it exits, the kernel removes its namespace
// and the veth.
type pod struct {
	*child
	link netlink.Link // the node's end
	net  podNet
}

// podNet is the network configuration of a pod.
type podNet struct {
	Own     []netip.Prefix `json:"own"`     // addresses of the pod
	Gateway []netip.Addr   `json:"gateway"` // the node's end, one for each of Own
	Node    []byte         `json:"node"`    // hardware address of the node's end
}

// podLink is the name of the veth in the pod.
const podLink = "eth0"

// newPodNet selects addresses that no network uses: from 198.18.0.0/15, which RFC 2544
// reserves for benchmarks, and unique local IPv6 addresses. Random bits distinguish pods.
func newPodNet(random [5]byte, v6 bool) podNet {
	third, fourth := random[1], random[2]&^3
	v4 := func(host byte) netip.Addr {
		return netip.AddrFrom4([4]byte{198, 18 + random[0]&1, third, fourth | host})
	}
	n := podNet{Own: []netip.Prefix{netip.PrefixFrom(v4(2), 30)}, Gateway: []netip.Addr{v4(1)}, Node: hardware(random, 1)}
	if v6 {
		at := func(host byte) netip.Addr {
			return netip.AddrFrom16([16]byte{0: 0xfd, 1: random[0], 2: random[1], 3: random[2], 4: random[3], 5: random[4], 15: host})
		}
		n.Own = append(n.Own, netip.PrefixFrom(at(2), 64))
		n.Gateway = append(n.Gateway, at(1))
	}
	return n
}

// openPod starts command, which calls [Serve], as a pod of this node. Without the
// capability SYS_ADMIN the pod also gets a user namespace, in which it has all capabilities.
func openPod(ctx context.Context, command []string, admin, v6 bool) (*pod, error) {
	var random [5]byte
	_, _ = rand.Read(random[:]) // it never fails
	p := &pod{net: newPodNet(random, v6)}
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if !admin {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	var err error
	if p.child, err = startChild(command, os.Stderr, attr); err != nil {
		return nil, fmt.Errorf("creating a network namespace: %w", err)
	}
	if err := p.connect(random); err != nil {
		return nil, errors.Join(err, p.close())
	}
	_, err = p.do(ctx, message{Net: &p.net})
	if err == nil {
		err = awaitUp(ctx, p.link.Attrs().Name, p.net.Gateway)
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// hardware returns a locally administered hardware address.
func hardware(random [5]byte, host byte) net.HardwareAddr {
	return net.HardwareAddr{2, host, random[0], random[1], random[2], random[3]}
}

// connect creates the veth with one end in the pod. Both ends have static neighbor entries,
// because the kernel may delay neighbor discovery.
func (p *pod) connect(random [5]byte) error {
	veth := netlink.NewVeth(netlink.LinkAttrs{
		Name: "ncdr" + hex.EncodeToString(random[:]), Alias: "node-cache doctor", TxQLen: -1, HardwareAddr: p.net.Node,
	})
	own := hardware(random, 2)
	veth.PeerName, veth.PeerNamespace, veth.PeerHardwareAddr = podLink, netlink.NsPid(p.process.Pid), own
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("creating a veth: %w", err)
	}
	p.link = veth
	if err := netlink.LinkSetUp(veth); err != nil {
		return fmt.Errorf("setting link %s up: %w", veth.Name, err)
	}
	for i, gateway := range p.net.Gateway {
		pod := p.net.Own[i]
		if err := addAddress(veth, netip.PrefixFrom(gateway, pod.Bits())); err != nil {
			return err
		}
		if err := addNeighbour(veth, pod.Addr(), own); err != nil {
			return err
		}
	}
	return nil
}

// addNeighbour adds a static neighbor entry for the other end of link.
func addNeighbour(link netlink.Link, a netip.Addr, has net.HardwareAddr) error {
	n := &netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: has}
	if err := netlink.NeighSet(n); err != nil {
		return fmt.Errorf("adding neighbor %s to link %s: %w", a, link.Attrs().Name, err)
	}
	return nil
}

// addAddress adds an address without duplicate address detection.
func addAddress(link netlink.Link, a netip.Prefix) error {
	parsed, err := netlink.ParseAddr(a.String())
	if err != nil {
		return err
	}
	if a.Addr().Is6() {
		parsed.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(link, parsed); err != nil {
		return fmt.Errorf("adding address %s to link %s: %w", a, link.Attrs().Name, err)
	}
	return nil
}

// awaitUp waits until a link of this namespace passes packets from and to addresses. A new
// link drops packets for up to a second after both ends are up, and the kernel adds the
// routes of IPv6 addresses asynchronously.
func awaitUp(ctx context.Context, name string, own []netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		up, err := isUp(name, own)
		if err != nil || up {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for link %s to be up: %w", name, ctx.Err())
		}
	}
}

func isUp(name string, own []netip.Addr) (bool, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return false, fmt.Errorf("reading link %s: %w", name, err)
	}
	if link.Attrs().OperState != netlink.OperUp {
		return false, nil
	}
	for _, a := range own {
		routes, err := netlink.RouteGet(a.AsSlice())
		if err != nil || len(routes) != 1 || routes[0].Type != unix.RTN_LOCAL {
			return false, nil //nolint:nilerr // not yet
		}
	}
	return true, nil
}

// do sends a command to the pod and returns its reply. If ctx ends first, the pod can no longer be used.
func (p *pod) do(ctx context.Context, m message) (message, error) {
	r, err := p.child.do(ctx, m)
	if err != nil {
		return r, fmt.Errorf("in the pod: %w", err)
	}
	return r, nil
}

// close ends the pod and waits until its veth is gone.
func (p *pod) close() error {
	err := <-p.stop()
	if p.link != nil {
		// Remove the veth now: the kernel removes it with the pod's namespace, but only some time later.
		if gone := netlink.LinkDel(p.link); gone != nil && !errors.Is(gone, unix.ENODEV) {
			err = errors.Join(err, fmt.Errorf("removing link %s: %w", p.link.Attrs().Name, gone))
		}
	}
	return err
}

// setup configures the addresses and routes of the pod's links.
func (n *podNet) setup(ctx context.Context) error {
	for _, name := range []string{"lo", podLink} {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			return fmt.Errorf("setting link %s up: %w", name, err)
		}
		if name == podLink {
			err = n.configure(link)
		}
		if err != nil {
			return err
		}
	}
	own := make([]netip.Addr, 0, len(n.Own))
	for _, a := range n.Own {
		own = append(own, a.Addr())
	}
	return awaitUp(ctx, podLink, own)
}

func (n *podNet) configure(link netlink.Link) error {
	for i, own := range n.Own {
		if err := addAddress(link, own); err != nil {
			return err
		}
		if err := addNeighbour(link, n.Gateway[i], n.Node); err != nil {
			return err
		}
		all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if own.Addr().Is6() {
			all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		route := &netlink.Route{
			LinkIndex: link.Attrs().Index, Gw: n.Gateway[i].AsSlice(),
			Dst: &net.IPNet{IP: all.Addr().AsSlice(), Mask: net.CIDRMask(0, all.Addr().BitLen())},
		}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("adding a route via %s: %w", n.Gateway[i], err)
		}
	}
	return nil
}
