// SPDX-License-Identifier: Apache-2.0

package nodelab_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/nodecache/node-cache/internal/nodelab"
)

func serve(t *testing.T, h *nodelab.Host, addr netip.AddrPort, name string) *nodelab.Server {
	t.Helper()
	s, err := nodelab.Serve(h, addr, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestEveryHostReachesTheServers(t *testing.T) {
	t.Parallel()
	lab := nodelab.ForTest(t, nodelab.Options{})
	addrs := map[string]netip.Addr{
		"node-v4": lab.Node.IPv4, "node-v6": lab.Node.IPv6,
		"upstream-v4": lab.Upstream.IPv4, "upstream-v6": lab.Upstream.IPv6,
		"service-v4": nodelab.ServiceIPv4(), "service-v6": nodelab.ServiceIPv6(),
		"pod1-v4": lab.Pods[1].IPv4, "pod1-v6": lab.Pods[1].IPv6,
	}
	for name, a := range addrs {
		host := map[string]*nodelab.Host{"node": lab.Node, "pod1": lab.Pods[1]}[name[:4]]
		if host == nil {
			host = lab.Upstream
		}
		serve(t, host, netip.AddrPortFrom(a, 53), name)
	}
	for _, from := range lab.Hosts() {
		for want, a := range addrs {
			for _, network := range []string{"udp", "tcp"} {
				got, err := nodelab.Ask(from, netip.AddrPortFrom(a, 53), network)
				if got != want || err != nil {
					t.Errorf("%s asks %s over %s: answered by %q, %v; want %q", from.Name, a, network, got, err, want)
				}
			}
		}
	}
}

func TestLabWithoutIPv6(t *testing.T) {
	t.Parallel()
	lab := nodelab.ForTest(t, nodelab.Options{Pods: 1, NoIPv6: true})
	if lab.Node.IPv6.IsValid() || lab.Pods[0].IPv6.IsValid() || len(lab.Pods) != 1 {
		t.Errorf("node has %s, pods are %v; want one pod and no IPv6", lab.Node.IPv6, lab.Pods)
	}
	serve(t, lab.Upstream, netip.AddrPortFrom(lab.Upstream.IPv4, 53), "upstream")
	if got, err := nodelab.Ask(lab.Pods[0], netip.AddrPortFrom(lab.Upstream.IPv4, 53), "udp"); got != "upstream" || err != nil {
		t.Errorf("answered by %q, %v; want upstream", got, err)
	}
}

func TestServerIsPausedAndCounts(t *testing.T) {
	t.Parallel()
	lab := nodelab.ForTest(t, nodelab.Options{Pods: 1})
	addr := netip.AddrPortFrom(lab.Upstream.IPv4, 53)
	s := serve(t, lab.Upstream, addr, "upstream")
	s.Pause(true)
	for _, network := range []string{"udp", "tcp"} {
		if got, err := nodelab.Ask(lab.Pods[0], addr, network); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a paused server over %s: %q, %v; want a timeout", network, got, err)
		}
	}
	if udp, tcp := s.Queries(); udp != 1 || tcp != 1 {
		t.Errorf("%d queries over UDP and %d over TCP; want 1 and 1", udp, tcp)
	}
	s.Pause(false)
	if got, err := nodelab.Ask(lab.Pods[0], addr, "udp"); got != "upstream" || err != nil {
		t.Errorf("answered by %q, %v; want upstream", got, err)
	}
	s.Close()
	for _, network := range []string{"udp", "tcp"} {
		if got, err := nodelab.Ask(lab.Pods[0], addr, network); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a closed server over %s: %q, %v; want refused", network, got, err)
		}
	}
}

func TestServerAtAnAddressThatComesLater(t *testing.T) {
	t.Parallel()
	lab := nodelab.ForTest(t, nodelab.Options{Pods: 1})
	for _, a := range []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:20::10")} {
		addr := netip.AddrPortFrom(a, 53)
		serve(t, lab.Node, addr, "agent")
		if err := lab.Node.AddAddress(a); err != nil {
			t.Fatal(err)
		}
		if got, err := nodelab.Ask(lab.Pods[0], addr, "udp"); got != "agent" || err != nil {
			t.Errorf("answered at %s by %q, %v; want agent", a, got, err)
		}
	}
}

func TestConntrack(t *testing.T) {
	t.Parallel()
	lab := nodelab.ForTest(t, nodelab.Options{Pods: 1})
	if _, err := lab.Node.Output(t.Context(), "nft", "add table inet t; add chain inet t c { type filter hook prerouting priority 0; }; add rule inet t c ct state new accept"); err != nil {
		t.Skipf("no nft: %v", err)
	}
	for _, a := range []netip.Addr{lab.Upstream.IPv4, lab.Upstream.IPv6} {
		addr := netip.AddrPortFrom(a, 53)
		serve(t, lab.Upstream, addr, "upstream")
		for _, network := range []string{"udp", "tcp"} {
			if _, err := nodelab.Ask(lab.Pods[0], addr, network); err != nil {
				t.Fatal(err)
			}
		}
		flows, err := nodelab.ConntrackOf(lab.Node, addr)
		if err != nil || len(flows) != 2 {
			t.Errorf("connections to %s: %v, %v; want one over UDP and one over TCP", addr, flows, err)
		}
	}
}

func TestCloseTakesEverythingAway(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	lab, err := nodelab.New(nodelab.Options{Pods: 1})
	if err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(lab.Node.Path()) // as another program might
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	cmd := lab.Node.Command(context.Background(), "sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pod := lab.Pods[0]
	// The process has to be in the namespace, not on its way there.
	want, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", held.Fd()))
	for link := ""; link != want; {
		link, _ = os.Readlink(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	}
	if err := lab.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the process in the lab: %v; want killed", err)
	}
	if err := lab.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	if err := pod.Do(func() error { return nil }); err == nil {
		t.Error("a closed lab's host can be entered")
	}
	left, err := nodelabLinks(held)
	if err != nil || strings.Join(left, " ") != "lo" {
		t.Errorf("links left in the node: %q, %v; want lo alone", left, err)
	}
}

func TestDoComesBack(t *testing.T) {
	t.Parallel()
	lab := nodelab.ForTest(t, nodelab.Options{Pods: 1})
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
		_ = lab.Node.Do(func() error {
			inside = own()
			panic("a test went wrong")
		})
	}()
	if inside == before || own() != before {
		t.Errorf("namespaces before, inside and after: %s, %s, %s", before, inside, own())
	}
}
