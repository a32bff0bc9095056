// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// newKernelHarness moves the test goroutine into a new network namespace. It skips the
// test if that is not possible.
func newKernelHarness(t *testing.T, kind Kind) *harness {
	t.Helper()
	space := inNamespace(t)
	k, err := openKernel()
	assert.NoError(t, err)
	t.Cleanup(k.close)
	lo, err := k.link("lo")
	assert.NoError(t, err)
	assert.NoError(t, k.setUp(lo.index))
	if err := k.createLink("probe", kind); errors.Is(err, ErrUnsupported) {
		t.Skipf("this kernel has no links of kind %s", kind)
	} else if err != nil {
		t.Fatal(err)
	}
	probe, err := k.link("probe")
	assert.NoError(t, err)
	assert.NoError(t, k.deleteLink(probe.index))
	return &harness{
		T: t, node: &realNode{netlinkKernel: k.(*netlinkKernel)}, opener: openKernel, enter: func() { enter(t, space) },
		kind: kind, logs: new(proctest.Output),
	}
}

// inNamespace moves the test to a new namespace. Its thread stays locked and ends with
// the test, and the namespace with it.
func inNamespace(t *testing.T) netns.NsHandle {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	space, err := newNamespace()
	assert.NoError(t, err)
	t.Cleanup(func() { _ = space.Close() })
	return space
}

// newNamespace moves the calling goroutine's thread permanently.
func newNamespace() (netns.NsHandle, error) {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return netns.None(), err
	}
	return netns.Get()
}

func enter(t *testing.T, space netns.NsHandle) {
	t.Helper()
	runtime.LockOSThread()
	if err := netns.Set(space); err != nil {
		t.Errorf("entering the namespace of the test: %v", err)
	}
}

// A realNode is a network namespace of the real kernel.
type realNode struct{ *netlinkKernel }

func (n *realNode) createOther(name string, kind Kind) error {
	attrs := netlink.LinkAttrs{Name: name}
	switch kind {
	case "veth":
		return n.links.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "-p"})
	case "bridge":
		return n.links.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	case "dummy":
		return n.links.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	default:
		return fmt.Errorf("link kind %s: unknown to the test", kind)
	}
}

func (n *realNode) addPrefix(index int, p netip.Prefix, mark uint32, replace bool) error {
	if p.IsSingleIP() && mark != 0 {
		return n.putAddress(index, p.Addr(), mark, replace)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if p.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	return n.links.AddrAdd(byIndex(index), addr)
}

func (n *realNode) setDown(index int) error { return n.links.LinkSetDown(byIndex(index)) }

func (n *realNode) enslave(port, master int) error {
	return n.links.LinkSetMasterByIndex(byIndex(port), master)
}

func (n *realNode) setIPv6(on bool) error {
	value := "1"
	if on {
		value = "0"
	}
	for _, conf := range []string{"default", "all"} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+conf+"/disable_ipv6", []byte(value), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// dump prints the same as `ip addr`, `ip link` and `ip route show table all`.
func (n *realNode) dump() (string, error) {
	text, err := n.dumpOnce()
	for try := 1; errors.Is(err, netlink.ErrDumpInterrupted) && try < 100; try++ { // changes interrupt the dump
		text, err = n.dumpOnce()
	}
	return text, err
}

func (n *realNode) dumpOnce() (string, error) {
	links, err := n.links.LinkList()
	if err != nil {
		return "", err
	}
	var lines []string
	present := map[string]bool{}
	for _, link := range links {
		a := link.Attrs()
		lines = append(lines, fmt.Sprintf("link %s %s %s %s %q mtu %d master %d", a.Name, link.Type(), a.Flags, a.OperState, a.Alias, a.MTU, a.MasterIndex))
		list, err := n.links.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return "", err
		}
		for _, addr := range list {
			present[addr.IP.String()] = true
			lines = append(lines, fmt.Sprintf("addr %s on %s scope %d flags %x label %q %d %d", addr.IPNet, a.Name, addr.Scope, addr.Flags, addr.Label, addr.ValidLft, addr.PreferedLft))
		}
	}
	routes, err := n.links.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return "", err
	}
	for _, r := range routes {
		// The kernel adds the route to a new IPv6 address asynchronously.
		if r.Table == unix.RT_TABLE_LOCAL && r.Dst != nil && r.Dst.IP.To4() == nil && present[r.Dst.IP.String()] {
			continue
		}
		lines = append(lines, "route "+r.String())
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}

// ipOutput returns the output of these programs if they are installed. To start them a
// hundred times takes minutes on an emulated machine.
func (n *realNode) ipOutput() string {
	if _, err := exec.LookPath("ip"); err != nil {
		return ""
	}
	var b strings.Builder
	for _, args := range []string{"addr", "link", "-4 route show table all", "-6 route show table all"} {
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		fmt.Fprintf(&b, "ip %s: %v\n%s", args, err, out) // busybox ip does not support all options
	}
	return b.String()
}
