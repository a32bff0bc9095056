// SPDX-License-Identifier: Apache-2.0

package nodetest_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

func serve(t *testing.T, h *nodetest.Host, addr netip.AddrPort, name string) *nodetest.Server {
	t.Helper()
	s, err := nodetest.Serve(h, addr, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestEveryHostReachesTheServers(t *testing.T) {
	t.Parallel()
	nw := nodetest.Start(t, nodetest.Options{})
	addrs := map[string]netip.Addr{
		"node-v4": nw.Node.IPv4, "node-v6": nw.Node.IPv6,
		"upstream-v4": nw.Upstream.IPv4, "upstream-v6": nw.Upstream.IPv6,
		"service-v4": nodetest.ServiceIPv4(), "service-v6": nodetest.ServiceIPv6(),
		"pod1-v4": nw.Pods[1].IPv4, "pod1-v6": nw.Pods[1].IPv6,
	}
	for name, a := range addrs {
		host := map[string]*nodetest.Host{"node": nw.Node, "pod1": nw.Pods[1]}[name[:4]]
		if host == nil {
			host = nw.Upstream
		}
		serve(t, host, netip.AddrPortFrom(a, 53), name)
	}
	for _, from := range nw.Hosts() {
		for want, a := range addrs {
			for _, network := range []string{"udp", "tcp"} {
				got, err := nodetest.Ask(from, netip.AddrPortFrom(a, 53), network)
				if got != want || err != nil {
					t.Errorf("%s asks %s over %s: answered by %q, %v; want %q", from.Name, a, network, got, err, want)
				}
			}
		}
	}
}

func TestNetworkWithoutIPv6(t *testing.T) {
	t.Parallel()
	nw := nodetest.Start(t, nodetest.Options{Pods: 1, NoIPv6: true})
	if nw.Node.IPv6.IsValid() || nw.Pods[0].IPv6.IsValid() || len(nw.Pods) != 1 {
		t.Errorf("node has %s, pods are %v; want one pod and no IPv6", nw.Node.IPv6, nw.Pods)
	}
	serve(t, nw.Upstream, netip.AddrPortFrom(nw.Upstream.IPv4, 53), "upstream")
	if got, err := nodetest.Ask(nw.Pods[0], netip.AddrPortFrom(nw.Upstream.IPv4, 53), "udp"); got != "upstream" || err != nil {
		t.Errorf("answered by %q, %v; want upstream", got, err)
	}
}

func TestServerIsPausedAndCounts(t *testing.T) {
	t.Parallel()
	nw := nodetest.Start(t, nodetest.Options{Pods: 1})
	addr := netip.AddrPortFrom(nw.Upstream.IPv4, 53)
	s := serve(t, nw.Upstream, addr, "upstream")
	s.Pause(true)
	for _, network := range []string{"udp", "tcp"} {
		if got, err := nodetest.Ask(nw.Pods[0], addr, network); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a paused server over %s: %q, %v; want a timeout", network, got, err)
		}
	}
	if udp, tcp := s.Queries(); udp != 1 || tcp != 1 {
		t.Errorf("%d queries over UDP and %d over TCP; want 1 and 1", udp, tcp)
	}
	s.Pause(false)
	if got, err := nodetest.Ask(nw.Pods[0], addr, "udp"); got != "upstream" || err != nil {
		t.Errorf("answered by %q, %v; want upstream", got, err)
	}
	s.Close()
	for _, network := range []string{"udp", "tcp"} {
		if got, err := nodetest.Ask(nw.Pods[0], addr, network); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a closed server over %s: %q, %v; want refused", network, got, err)
		}
	}
}

func TestServerAtAnAddressThatComesLater(t *testing.T) {
	t.Parallel()
	nw := nodetest.Start(t, nodetest.Options{Pods: 1})
	for _, a := range []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:20::10")} {
		addr := netip.AddrPortFrom(a, 53)
		serve(t, nw.Node, addr, "agent")
		if err := nw.Node.AddAddress(a); err != nil {
			t.Fatal(err)
		}
		if got, err := nodetest.Ask(nw.Pods[0], addr, "udp"); got != "agent" || err != nil {
			t.Errorf("answered at %s by %q, %v; want agent", a, got, err)
		}
	}
}

func TestConntrack(t *testing.T) {
	t.Parallel()
	nw := nodetest.Start(t, nodetest.Options{Pods: 1})
	if _, err := nw.Node.Output(t.Context(), "nft", "add table inet t; add chain inet t c { type filter hook prerouting priority 0; }; add rule inet t c ct state new accept"); err != nil {
		t.Skipf("no nft: %v", err)
	}
	for _, a := range []netip.Addr{nw.Upstream.IPv4, nw.Upstream.IPv6} {
		addr := netip.AddrPortFrom(a, 53)
		serve(t, nw.Upstream, addr, "upstream")
		for _, network := range []string{"udp", "tcp"} {
			if _, err := nodetest.Ask(nw.Pods[0], addr, network); err != nil {
				t.Fatal(err)
			}
		}
		flows, err := nodetest.ConntrackOf(nw.Node, addr)
		if err != nil || len(flows) != 2 {
			t.Errorf("connections to %s: %v, %v; want one over UDP and one over TCP", addr, flows, err)
		}
	}
}

func TestCloseRemovesEverything(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	nw, err := nodetest.New(nodetest.Options{Pods: 1})
	if err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(nw.Node.Path()) // as another program might
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	cmd := nw.Node.Command(context.Background(), "sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pod := nw.Pods[0]
	// The process has to be in the namespace, not on its way there.
	want, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", held.Fd()))
	for link := ""; link != want; {
		link, _ = os.Readlink(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	}
	if err := nw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the process in the nw: %v; want killed", err)
	}
	if err := nw.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	if err := pod.Do(func() error { return nil }); err == nil {
		t.Error("a closed nw's host can be entered")
	}
	left, err := networkLinks(held)
	if err != nil || strings.Join(left, " ") != "lo" {
		t.Errorf("links left in the node: %q, %v; want lo alone", left, err)
	}
}

func TestDoRestoresNamespace(t *testing.T) {
	t.Parallel()
	nw := nodetest.Start(t, nodetest.Options{Pods: 1})
	own := func() string {
		link, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return link
	}
	before, inside := own(), ""
	func() {
		defer func() { _ = recover() }()
		_ = nw.Node.Do(func() error {
			inside = own()
			panic("a test went wrong")
		})
	}()
	if inside == before || own() != before {
		t.Errorf("namespaces before, inside and after: %s, %s, %s", before, inside, own())
	}
}

// networkLinks names the links of an open namespace.
func networkLinks(ns *os.File) ([]string, error) {
	handle, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()))
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	links, err := handle.LinkList()
	var names []string
	for _, l := range links {
		names = append(names, l.Attrs().Name)
	}
	return names, err
}
