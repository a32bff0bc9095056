// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/iptables"
)

func TestNftables(t *testing.T) {
	testKernel(t, openNftables, "nft", [][]string{{"nft", "flush", "ruleset"}})
}

func TestIptablesNft(t *testing.T) {
	testKernel(t, openIptables(iptables.Nft), "nft", flushIptables("-nft"))
}

func TestIptablesLegacy(t *testing.T) {
	testKernel(t, openIptables(iptables.Legacy), "legacy", flushIptables("-legacy"))
}

// testKernel runs the shared tests in a real kernel. Other programs use that variant of iptables.
func testKernel(t *testing.T, open func() (intercept.Backend, error), variant string, flush [][]string) {
	t.Helper()
	runContract(t, func(t *testing.T) Node {
		t.Helper()
		n := newKernelNode(t, open, flush)
		n.variant = variant
		return n
	})
}

func openIptables(v iptables.Variant) func() (intercept.Backend, error) {
	return func() (intercept.Backend, error) { return iptables.New(iptables.Config{Variant: v, Now: time.Now}) }
}

func flushIptables(variant string) [][]string {
	var all [][]string
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, table := range []string{"raw", "mangle", "nat", "filter"} {
			for _, what := range []string{"-F", "-X"} {
				all = append(all, []string{program + variant, "-w", "-t", table, what})
			}
		}
	}
	return all
}

// TestCiliumNeedsRules leaves out one of the rules for Cilium: the fallback's answers are lost. So the cases of the contract on
// Cilium show that the rules work.
func TestCiliumNeedsRules(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*rules.Rules)
	}{
		{"not tracked", func(r *rules.Rules) { r.Track = false }},
		{"not marked", func(r *rules.Rules) { r.MarkHost = false }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			node := newKernelNode(t, openNftables, nil)
			node.variant = "nft"
			n := nodeHarness{Node: node, Layout: node.Layout(), cilium: true, t: t}
			n.AddCilium(t)
			b, r := n.agent(), n.fallingBack("first")
			n.apply(b, r)
			n.expectFallback("with all rules", n.queries(n.Addresses), n.Fallbacks)
			test.change(&r)
			n.apply(b, r)
			var group sync.WaitGroup
			for _, q := range n.queries(n.Addresses) {
				if q.From == Pod {
					group.Go(func() {
						if got := n.ask(q); strings.HasPrefix(got, "fallback") {
							t.Errorf("%s: %s answered", q, got)
						}
					})
				}
			}
			group.Wait()
			n.apply(b, n.fallingBack("first"))
			n.expectFallback("with all rules again", n.queries(n.Addresses), n.Fallbacks)
		})
	}
}

// TestExcludedSessionsReset has no server at the Service's address, as on a real node: a session with an agent that is gone gets a reset,
// so that its client does not wait for a timeout.
func TestExcludedSessionsReset(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func() (intercept.Backend, error){
		"nftables":        openNftables,
		"iptables-nft":    openIptables(iptables.Nft),
		"iptables-legacy": openIptables(iptables.Legacy),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := newKernelNode(t, open, nil)
			n := nodeHarness{Node: node, Layout: node.Layout(), excluded: true, t: t}
			for _, s := range n.Services {
				rule := fmt.Sprintf("table inet gone { chain gone { type filter hook prerouting priority -400; ip%s daddr %s drop; }; }",
					map[bool]string{true: "6"}[s.Is6()], s)
				out, err := node.hosts.Upstream.Output(t.Context(), "nft", rule)
				if err != nil {
					t.Fatalf("dropping packets to the Service: %v\n%s", err, out)
				}
			}
			b := n.Open(t)
			n.apply(b, n.fallingBack("first"))
			n.renew(b, n.Services, n.Lease)
			open := n.sessions(n.Services)
			n.close(b)
			next := n.agent()
			n.waitFor("without any lease", func() bool { return len(n.state(next).Leases) == 0 })
			for q, c := range open {
				n.expectConn("the agent is gone", q, c, NoAnswer)
			}
			n.expectFallback("the agent is gone", n.queries(n.Services), n.Fallbacks)
		})
	}
}

// TestExcludedBesideProxy has a proxy that serves the Service after all, such as kube-proxy beside Antrea: the rules come first, and leave
// nothing to it but what they do not take.
func TestExcludedBesideProxy(t *testing.T) {
	t.Parallel()
	node := newKernelNode(t, openNftables, nil)
	n := nodeHarness{Node: node, Layout: node.Layout(), excluded: true, t: t}
	n.Services = n.Services[:1]
	proxied := netip.AddrPortFrom(node.hosts.Upstream.IPv4, 5399)
	serve(t, node.hosts.Upstream, proxied, "proxy")
	table := "table ip kube-proxy {"
	for _, hook := range []string{"prerouting", "output"} {
		table += fmt.Sprintf(" chain %s { type nat hook %s priority -100; ip daddr %s meta l4proto { tcp, udp } th dport 53 dnat to %s; };", hook, hook, n.Services[0], proxied)
	}
	if out, err := node.hosts.Node.Output(t.Context(), "nft", table+" }"); err != nil {
		t.Fatalf("adding a proxy: %v\n%s", err, out)
	}
	n.expect("without rules", n.queries(n.Services), "proxy")
	b := n.agent()
	n.apply(b, n.fallingBack("first"))
	n.expectFallback("not leased", n.queries(n.Services), n.Fallbacks)
	n.expect("not leased", n.marked(n.Services), "proxy")
	n.renew(b, n.Services, time.Minute)
	n.expect("leased", n.queries(n.Services), Agent)
	assert.NoError(t, b.Remove(t.Context(), "first"))
	n.expect("removed", n.queries(n.Services), "proxy")
}

// TestPodsStayUntracked: a pod whose packets are exempt from conntrack sends packets that look like replies of a fallback, but for their
// source. They must not fill the node's table.
func TestPodsStayUntracked(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func() (intercept.Backend, error){
		"nftables": openNftables,
		"iptables": openIptables(iptables.Nft),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := newKernelNode(t, open, nil)
			node.variant = "nft"
			n := nodeHarness{Node: node, Layout: node.Layout(), cilium: true, t: t}
			n.AddCilium(t)
			n.apply(n.agent(), n.fallingBack("first"))
			for _, to := range []netip.Addr{node.hosts.Node.IPv4, node.hosts.Node.IPv6} {
				for _, port := range []int{53, 5301} {
					var conn net.Conn
					assert.NoError(t, node.hosts.Pods[0].Do(func() (err error) {
						conn, err = net.DialUDP("udp", &net.UDPAddr{Port: port}, &net.UDPAddr{IP: to.AsSlice(), Port: 9999})
						return err
					}))
					_, err := conn.Write([]byte("hello"))
					assert.NoError(t, errors.Join(err, conn.Close()))
				}
				if tracked := n.Tracked(t, netip.AddrPortFrom(to, 9999)); tracked > 0 {
					t.Errorf("conntrack has %d entries of packets to %s", tracked, to)
				}
			}
		})
	}
}

// A kernelNode is a node in a real kernel, with the servers of a Node.
type kernelNode struct {
	hosts   *nodetest.Network
	layout  Layout
	open    func() (intercept.Backend, error)
	flush   [][]string
	variant string // of iptables, "nft" or "legacy"
}

func newKernelNode(t *testing.T, open func() (intercept.Backend, error), flush [][]string) *kernelNode {
	t.Helper()
	w := &kernelNode{hosts: nodetest.Start(t, nodetest.Options{Pods: 1}), open: open, flush: flush}
	up4, up6 := w.hosts.Upstream.IPv4, w.hosts.Upstream.IPv6
	more4, more6 := nodetest.MoreUpstreamIPv4(), nodetest.MoreUpstreamIPv6()
	w.layout = Layout{
		Addresses: []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:20::10")},
		Services:  []netip.Addr{nodetest.ServiceIPv4(), nodetest.ServiceIPv6()},
		Fallbacks: []netip.AddrPort{
			netip.AddrPortFrom(up4, 5301), netip.AddrPortFrom(more4, 5301),
			netip.AddrPortFrom(up6, 5301), netip.AddrPortFrom(more6, 5301),
		},
		Servers: otherServers(),
		Port:    53, Admin: 9253, Lease: 2 * time.Second, // an ipset counts whole seconds
	}
	for _, host := range w.hosts.Hosts() {
		computeChecksums(t, host)
	}
	w.AddToLink(t, w.layout.Addresses)
	for _, a := range w.layout.Addresses {
		serve(t, w.hosts.Node, netip.AddrPortFrom(a, w.layout.Port), Agent)
		serve(t, w.hosts.Node, netip.AddrPortFrom(a, w.layout.Admin), Admin)
	}
	for _, s := range w.layout.Services {
		serve(t, w.hosts.Upstream, netip.AddrPortFrom(s, w.layout.Port), Service)
	}
	for i, s := range w.layout.Servers {
		assert.NoError(t, w.hosts.Upstream.AddAddress(s.From))
		serve(t, w.hosts.Upstream, netip.AddrPortFrom(s.From, w.layout.Port), Server(i))
		w.AddToLink(t, []netip.Addr{s.To})
		serve(t, w.hosts.Node, netip.AddrPortFrom(s.To, w.layout.Port), Outside(i))
	}
	for _, a := range []netip.Addr{more4, more6} {
		assert.NoError(t, w.hosts.Upstream.AddAddress(a))
	}
	for i, f := range w.layout.Fallbacks {
		serve(t, w.hosts.Upstream, f, Fallback(i))
	}
	return w
}

func serve(t *testing.T, h *nodetest.Host, addr netip.AddrPort, name string) *nodetest.Server {
	t.Helper()
	s, err := nodetest.Serve(h, addr, name)
	assert.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func (k *kernelNode) Layout() Layout         { return k.layout }
func (k *kernelNode) Elapse(d time.Duration) { time.Sleep(d) }

func (k *kernelNode) Open(tb testing.TB) intercept.Backend {
	tb.Helper()
	var b intercept.Backend
	err := k.hosts.Node.Do(func() (err error) {
		b, err = k.open()
		return err
	})
	assert.NoError(tb, err)
	return b
}

func (k *kernelNode) AddToLink(tb testing.TB, addrs []netip.Addr) {
	tb.Helper()
	for _, a := range addrs {
		if err := k.hosts.Node.AddAddress(a); err != nil {
			tb.Fatalf("adding the address %s to the node: %v", a, err)
		}
	}
}

func (k *kernelNode) AddCilium(tb testing.TB) {
	tb.Helper()
	assert.NoError(tb, nodetest.ImitateCilium(tb.Context(), k.hosts.Node, k.variant, true))
	assert.NoError(tb, nodetest.ImitateHostFirewall(tb.Context(), k.hosts.Node))
}

func (k *kernelNode) MarkArriving(tb testing.TB) {
	tb.Helper()
	rule := fmt.Sprintf("table inet marks { chain marks { type filter hook prerouting priority -400; meta mark set meta mark or %#x; }; }", rules.TestMark)
	if out, err := k.hosts.Node.Output(tb.Context(), "nft", rule); err != nil {
		tb.Fatalf("marking packets that arrive: %v\n%s", err, out)
	}
}

func (k *kernelNode) Flush(tb testing.TB) {
	tb.Helper()
	for _, command := range k.flush {
		if out, err := k.hosts.Node.Output(tb.Context(), command[0], command[1:]...); err != nil {
			tb.Fatalf("flushing: %v\n%s", err, out)
		}
	}
}

func (k *kernelNode) Tracked(tb testing.TB, to netip.AddrPort) int {
	tb.Helper()
	flows, err := nodetest.ConntrackOf(k.hosts.Node, to)
	assert.NoError(tb, err)
	return len(flows)
}

// clientTimeout is long for an answer between namespaces, even on a busy host.
const clientTimeout = 5 * time.Second

func (k *kernelNode) Dial(tb testing.TB, q Query) Conn {
	tb.Helper()
	from := k.hosts.Node
	if q.From == Pod {
		from = k.hosts.Pods[0]
	}
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	c := &kernelConn{}
	// On an error there is no answer.
	_ = from.Do(func() error {
		var d net.Dialer
		if q.Marked || q.Test {
			mark := rules.Mark
			if q.Test {
				mark = rules.TestMark
			}
			d.Control = func(_, _ string, raw syscall.RawConn) error {
				var failed error
				err := raw.Control(func(fd uintptr) {
					failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark)
				})
				if err != nil || failed != nil {
					tb.Errorf("marking a socket: %v, %v", err, failed)
				}
				return nil
			}
		}
		conn, err := d.DialContext(ctx, q.Network, q.To.String())
		if err == nil {
			c.conn = &dns.Conn{Conn: conn}
		}
		return err
	})
	return c
}

type kernelConn struct {
	conn *dns.Conn // nil: none, or it ended
}

func (c *kernelConn) Ask() string {
	if c.conn == nil {
		return NoAnswer
	}
	q := new(dns.Msg)
	q.SetQuestion("who.nodetest.test.", dns.TypeTXT)
	_ = c.conn.SetDeadline(time.Now().Add(clientTimeout)) // an error shows in the write
	err := c.conn.WriteMsg(q)
	var a *dns.Msg
	for err == nil {
		if a, err = c.conn.ReadMsg(); err == nil && a.Id == q.Id { // else it is a late answer
			break
		}
	}
	if err != nil {
		if _, stream := c.conn.Conn.(*net.TCPConn); stream {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return "no server, and no reset" // the client waits for its timeout
			}
			c.Close()
		}
		return NoAnswer
	}
	if len(a.Answer) == 1 {
		if txt, ok := a.Answer[0].(*dns.TXT); ok && len(txt.Txt) == 1 {
			return txt.Txt[0]
		}
	}
	return "an answer of another kind"
}

func (c *kernelConn) Close() {
	if c.conn != nil {
		_ = c.conn.Close()
	}
	c.conn = nil
}

// setChecksums is ETHTOOL_STXCSUM: whether a link offloads checksums.
const setChecksums = 0x17

// computeChecksums disables checksum offload in a host. Otherwise the kernel does not
// compute or verify checksums between namespaces.
func computeChecksums(t *testing.T, h *nodetest.Host) {
	t.Helper()
	err := h.Do(func() error {
		links, err := net.Interfaces()
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		for _, l := range links {
			if l.Flags&net.FlagLoopback != 0 {
				continue // lo has no such setting
			}
			value := struct{ cmd, data uint32 }{cmd: setChecksums}
			var request struct {
				name [unix.IFNAMSIZ]byte
				data unsafe.Pointer
				_    [16]byte
			}
			copy(request.name[:], l.Name)
			request.data = unsafe.Pointer(&value)
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
				return errno
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("having %s compute checksums: %v", h.Name, err)
	}
}
