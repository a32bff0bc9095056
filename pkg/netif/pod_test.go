// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// A pod behind a veth queries right after Setup returns, and again after the link was
// down. The agent's sockets exist before the addresses.
func TestPodQueryRightAfterSetup(t *testing.T) {
	t.Parallel()
	for _, kind := range []Kind{Dummy, Bridge, Loopback} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			carrier := kind
			if kind == Loopback {
				carrier = Bridge // the harness needs a kind that not every kernel has
			}
			g := newKernelHarness(t, carrier)
			ask := withPod(t, g)
			for _, a := range addrs {
				echo(t, a)
			}
			config := g.config("one")
			config.Kind = kind
			l := g.setup(config)
			for _, a := range addrs {
				t.Logf("%s answered %s after setup", a, proctest.Eventually(t, waitLimit, a.String(), func() bool { return ask(a) == nil }))
			}
			if kind == Loopback {
				return
			}
			g.run(l)
			time.Sleep(50 * time.Millisecond)
			assert.NoError(t, g.setDown(g.device(linkName).index))
			for _, a := range addrs {
				t.Logf("%s answered %s after the link was set down", a, proctest.Eventually(t, waitLimit, a.String(), func() bool { return ask(a) == nil }))
			}
		})
	}
}

// A bridge without ports has no carrier once its port is removed. Its addresses answer.
func TestBridgeWithoutCarrierAnswers(t *testing.T) {
	t.Parallel()
	g := newKernelHarness(t, Bridge)
	ask := withPod(t, g)
	assert.NoError(t, g.createOther(linkName, "bridge"))
	bridge := g.device(linkName)
	assert.NoError(t, g.createOther("port", "veth"))
	assert.NoError(t, g.enslave(g.device("port").index, bridge.index))
	assert.NoError(t, g.setUp(bridge.index))
	assert.NoError(t, g.deleteLink(g.device("port").index))
	for _, a := range addrs {
		echo(t, a)
	}
	g.setup(g.config("one"))
	for _, a := range addrs {
		proctest.Eventually(t, waitLimit, a.String(), func() bool { return ask(a) == nil })
	}
}

// withPod starts a pod behind a veth of the node. ask sends a datagram from the pod and
// waits for the echo.
func withPod(t *testing.T, g *harness) (ask func(netip.Addr) error) {
	t.Helper()
	if err := g.createOther("pod", "veth"); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no links of kind veth")
	} else if err != nil {
		t.Fatal(err)
	}
	jobs, results := make(chan func() error), make(chan error)
	ready := make(chan netns.NsHandle)
	go func() { // its thread, and so the pod, ends with the test
		space, err := newNamespace()
		if err != nil {
			t.Errorf("starting the pod: %v", err)
		}
		ready <- space
		for job := range jobs {
			results <- job()
		}
	}()
	t.Cleanup(func() { close(jobs) })
	in := func(job func() error) error {
		jobs <- job
		return <-results
	}
	pod := <-ready
	t.Cleanup(func() { _ = pod.Close() })
	links := g.node.(*realNode).links
	peer, err := links.LinkByName("pod-p")
	assert.NoError(t, err)
	assert.NoError(t, links.LinkSetNsFd(peer, int(pod)))
	assert.NoError(t, addressVeth(links, "pod", "10.9.0.1/24", "fd09::1/64"))
	assert.NoError(t, in(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		return errors.Join(addressVeth(h, "pod-p", "10.9.0.2/24", "fd09::2/64"), route(h, "10.9.0.1"), route(h, "fd09::1"))
	}))
	ask = func(a netip.Addr) error { return in(func() error { return roundTrip(a) }) }
	for _, gateway := range []string{"10.9.0.1", "fd09::1"} { // a new veth is not ready at once
		a := netip.MustParseAddr(gateway)
		echo(t, a)
		proctest.Eventually(t, waitLimit, "answer of the pod's gateway", func() bool { return ask(a) == nil })
	}
	return ask
}

func addressVeth(h *netlink.Handle, name string, prefixes ...string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	for _, p := range prefixes {
		addr, err := netlink.ParseAddr(p)
		if err != nil {
			return err
		}
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrAdd(link, addr); err != nil {
			return err
		}
	}
	return h.LinkSetUp(link)
}

func route(h *netlink.Handle, gateway string) error {
	dst := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	gw := net.ParseIP(gateway)
	if gw.To4() == nil {
		dst = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return h.RouteAdd(&netlink.Route{Dst: dst, Gw: gw})
}

func roundTrip(a netip.Addr) error {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 5353)))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("hello")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 16))
	return err
}

// echo answers datagrams to a, which need not exist yet.
func echo(t *testing.T, a netip.Addr) {
	t.Helper()
	free := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		_ = c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
		return err
	}}
	conn, err := free.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(a, 5353).String())
	assert.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	go func() { // ends with conn
		buf := make([]byte, 16)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(buf[:n], from)
		}
	}()
}
