// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/doctor"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/nftables"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/iptables"
)

// What the test binary is when it is run as a program.
const (
	asChild  = "child"
	asDoctor = "doctor"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && (os.Args[1] == asChild || os.Args[1] == asDoctor) {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		var err error
		if os.Args[1] == asChild {
			err = doctor.Serve(ctx, os.Stdin, os.Stdout, time.Now)
		} else {
			err = examine(ctx)
		}
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// examine runs a doctor with the configuration in stdin, and writes its report.
func examine(ctx context.Context) error {
	c := doctor.Config{}
	if err := json.NewDecoder(os.Stdin).Decode(&c); err != nil {
		return err
	}
	c.Now = time.Now
	r, err := doctor.Run(ctx, c)
	if err != nil {
		return err
	}
	return r.JSON(os.Stdout)
}

// see runs a doctor on a host, and returns the lines of its report without times.
func see(t *testing.T, h *nodetest.Host, c doctor.Config) []string {
	t.Helper()
	before := state(t, h)
	cmd := start(t, h, c)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("doctor: %v: %s", err, problems.String())
	}
	if problems.Len() > 0 {
		t.Errorf("the doctor writes to stderr: %s", problems.String())
	}
	if diff := cmp.Diff(before, state(t, h)); diff != "" {
		t.Errorf("the node, before and after (-before +after):\n%s", diff)
	}
	var report struct {
		Lines []struct{ Part, Check, Verdict, What string }
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatalf("report: %v: %s", err, out.String())
	}
	var lines []string
	for _, l := range report.Lines {
		lines = append(lines, fmt.Sprintf("%s: %s %s: %s", l.Part, l.Verdict, l.Check, l.What))
	}
	return lines
}

func start(t *testing.T, h *nodetest.Host, c doctor.Config) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	assert.NoError(t, err)
	c.Command = []string{self, asChild}
	text, err := json.Marshal(struct {
		doctor.Config
		Now *int // a function cannot be written
	}{Config: c})
	assert.NoError(t, err)
	cmd := h.Command(t.Context(), self, asDoctor)
	cmd.Stdin = bytes.NewReader(text)
	return cmd
}

// state is what a doctor might change on a host.
func state(t *testing.T, h *nodetest.Host) string {
	t.Helper()
	var all strings.Builder
	for _, line := range [][]string{
		{"ip", "-o", "addr"},
		{"ip", "-o", "route"},
		{"ip", "-o", "-6", "route", "show", "table", "all"},
		{"nft", "--stateless", "list", "ruleset"},
		{"sh", "-c", "cat /proc/net/ip_tables_names /proc/net/ip6_tables_names || true"},
	} {
		out, err := h.Output(t.Context(), line[0], line[1:]...)
		if err != nil {
			t.Skipf("needs the program %s: %v", line[0], err)
		}
		all.WriteString(strings.ReplaceAll(out, " tentative", "")) // which link-local addresses are for a while
	}
	lines := strings.Split(all.String(), "\n")
	slices.Sort(lines)
	return strings.Join(slices.DeleteFunc(lines, changesItself), "\n")
}

// changesItself reports whether a line changes by itself: the time left of leases and of addresses, and the
// routes of IPv6 addresses, which the kernel adds asynchronously.
func changesItself(line string) bool {
	return slices.ContainsFunc([]string{"expires", "elements = {", "table local proto kernel"}, func(part string) bool { return strings.Contains(line, part) })
}

// has reports whether a line has this beginning and contains the rest.
func has(lines []string, beginning, rest string) bool {
	return slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, beginning) && strings.Contains(l, rest) })
}

func expect(t *testing.T, lines []string, want [][2]string) {
	t.Helper()
	missing := false
	for _, w := range want {
		if !has(lines, w[0], w[1]) {
			t.Errorf("no line %q with %q", w[0], w[1])
			missing = true
		}
	}
	if missing {
		t.Logf("the report:\n%s", strings.Join(lines, "\n"))
	}
}

// An agentNode is a node with rules of an agent, which is played by the test.
type agentNode struct {
	hosts  *nodetest.Network
	config doctor.Config
	stop   func() // the agent, but not its lease

	backend intercept.Backend
}

// newAgentNode makes a node whose link is a bridge, and whose lease outlasts the test.
func newAgentNode(t *testing.T, m rules.Mode, open func() (intercept.Backend, error)) *agentNode {
	t.Helper()
	hosts := nodetest.Start(t, nodetest.Options{Pods: 1})
	n := &agentNode{hosts: hosts, config: configured(m)}
	n.config.Rules.Owner = token
	n.config.Admin = netip.AddrPort{}
	n.config.Timeout = 300 * time.Millisecond
	if m == rules.Transparent {
		n.config.Rules.Addresses = append(n.config.Rules.Addresses, local6)
		n.config.Rules.Services = []netip.Addr{nodetest.ServiceIPv4(), nodetest.ServiceIPv6()}
	} else {
		fallback := netip.AddrPortFrom(hosts.Upstream.IPv4, 53)
		n.config.Rules.Fallback = []netip.AddrPort{fallback, netip.AddrPortFrom(hosts.Upstream.IPv6, 53)}
		for _, f := range n.config.Rules.Fallback {
			server, err := nodetest.Serve(hosts.Upstream, f, "fallback")
			assert.NoError(t, err)
			t.Cleanup(server.Close)
		}
	}
	assert.NoError(t, hosts.Node.Do(func() error { return n.link() }))
	n.serve(t)
	n.lease(t, open)
	return n
}

func (n *agentNode) link() error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "nodelocaldns"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return err
	}
	errs := []error{netlink.LinkSetAlias(bridge, "node-cache "+token), netlink.LinkSetUp(bridge)}
	for _, a := range n.config.Rules.Addresses {
		addr, err := netlink.ParseAddr(netip.PrefixFrom(a, a.BitLen()).String())
		errs = append(errs, err)
		if err == nil {
			addr.Flags = unix.IFA_F_NODAD
			errs = append(errs, netlink.AddrAdd(bridge, addr))
		}
	}
	return errors.Join(errs...)
}

// serve answers as an agent does.
func (n *agentNode) serve(t *testing.T) {
	t.Helper()
	var servers []*dns.Server
	err := n.hosts.Node.Do(func() error {
		for _, a := range n.config.Rules.Addresses {
			at := netip.AddrPortFrom(a, 53).String()
			conn, err := net.ListenPacket("udp", at)
			if err != nil {
				return err
			}
			listener, err := net.Listen("tcp", at)
			if err != nil {
				return err
			}
			servers = append(servers, &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(reply)}, &dns.Server{Listener: listener, Handler: dns.HandlerFunc(reply)})
		}
		return nil
	})
	assert.NoError(t, err)
	for _, s := range servers {
		ready := make(chan struct{})
		s.NotifyStartedFunc = func() { close(ready) }
		go func() { _ = s.ActivateAndServe() }() // ends by Shutdown
		<-ready
	}
	n.stop = func() {
		for _, s := range servers {
			_ = s.Shutdown()
		}
		servers = nil
	}
	t.Cleanup(func() { n.stop() })
}

func reply(w dns.ResponseWriter, q *dns.Msg) {
	a := new(dns.Msg).SetReply(q)
	h := dns.RR_Header{Name: q.Question[0].Name, Rrtype: q.Question[0].Qtype, Class: q.Question[0].Qclass}
	if h.Class == dns.ClassCHAOS {
		a.Answer = []dns.RR{&dns.TXT{Hdr: h, Txt: []string{token}}}
	} else {
		a.Answer = []dns.RR{&dns.A{Hdr: h, A: net.IPv4(10, 96, 0, 1)}}
	}
	_ = w.WriteMsg(a)
}

func (n *agentNode) lease(t *testing.T, open func() (intercept.Backend, error)) {
	t.Helper()
	err := n.hosts.Node.Do(func() error {
		b, err := open()
		if err != nil {
			return err
		}
		n.backend = b
		t.Cleanup(func() { _ = b.Close() })
		if _, err := b.Apply(t.Context(), n.config.Rules); err != nil {
			return err
		}
		var keys []netip.Addr
		for _, l := range n.config.Rules.Leases() {
			keys = append(keys, l.Key)
		}
		return b.Renew(t.Context(), keys, time.Hour)
	})
	assert.NoError(t, err)
}

func byNFT() (intercept.Backend, error) { return nftables.New(slog.New(slog.DiscardHandler)) }

func byIPTables() (intercept.Backend, error) {
	return iptables.New(iptables.Config{Variant: iptables.Nft})
}

func TestLinkLocal(t *testing.T) {
	t.Parallel()
	n := newAgentNode(t, rules.LinkLocal, byNFT)
	lines := see(t, n.hosts.Node, n.config)
	want := [][2]string{
		{"This node: ok data plane: ", "backend auto is nftables"},
		{"This node: ok 169.254.20.10: ", `on link nodelocaldns (bridge), alias "node-cache 0badcafe"`},
		{"This node: ok fd00::a: ", "nodelocaldns"},
		{"This node: ok listener 169.254.20.10: ", fmt.Sprintf("(process %d)", os.Getpid())},
		{"This node: ok lease 169.254.20.10: held, ", "(nftables, agent 0badcafe)"},
		{"This node: ok lease fd00::a: held", ""},
		{"This node: ok conntrack table: ", " entries"},
		{"Central DNS: ok 10.201.0.2:53 udp: NOERROR", ""},
		{"Central DNS: ok [fd00:201::2]:53 tcp: NOERROR", ""},
		{"Central DNS: ok fallback 169.254.20.10: the fallback answers", ""},
		{"Central DNS: ok fallback fd00::a: the fallback answers", ""},
	}
	for _, a := range []string{"169.254.20.10", "fd00::a"} {
		want = append(want, [2]string{"Asked from the node: ok socket " + a + ": agent 0badcafe (udp ", ", tcp "})
		for _, from := range []string{"node", "pod"} {
			part := map[string]string{"node": "Asked from the node", "pod": "Asked from a pod"}[from]
			want = append(want, [2]string{part + ": ok " + a + ": agent 0badcafe (udp ", ", tcp "},
				[2]string{part + ": ok conntrack: 0 entries for 4 queries to the agent", ""},
				[2]string{part + ": ok name at " + a + ": kubernetes.default.svc.cluster.local in ", ""})
		}
	}
	expect(t, lines, want)
}

func TestDeadAgent(t *testing.T) {
	t.Parallel()
	n := newAgentNode(t, rules.LinkLocal, byNFT)
	n.stop()
	var want [][2]string
	for _, part := range []string{"Asked from the node", "Asked from a pod"} {
		want = append(want, [2]string{part + ": fail 169.254.20.10: no server answers: connection refused (udp, tcp)", ""},
			[2]string{part + ": skip conntrack: the agent answered nothing", ""})
	}
	// It still holds its lease, like an agent that was just killed.
	expect(t, see(t, n.hosts.Node, n.config), append(want,
		[2]string{"This node: fail listener fd00::a: no process listens on port 53", ""},
		[2]string{"Asked from the node: fail socket fd00::a: connection refused (udp, tcp)", ""}))

	assert.NoError(t, n.backend.Release(t.Context(), n.config.Rules.Addresses, 0))
	want = nil
	for _, part := range []string{"Asked from the node", "Asked from a pod"} {
		for _, a := range []string{"169.254.20.10", "fd00::a"} {
			// The server that plays the central DNS has a token of its own, as a central node-cache has.
			want = append(want, [2]string{part + ": warn " + a + ": the central DNS answers, NOERROR, as the agent has no lease (udp ", ""},
				[2]string{part + ": ok name at " + a + ": ", ""})
		}
	}
	expect(t, see(t, n.hosts.Node, n.config), append(want, [2]string{"This node: fail lease 169.254.20.10: not held", ""}))
}

func TestTransparent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		backend func() (intercept.Backend, error)
		want    [2]string
	}{
		{name: "nftables", backend: byNFT, want: [2]string{"Asked from a pod: ok conntrack: 0 entries for 4 queries", ""}},
		{name: "iptables", backend: byIPTables, want: [2]string{"Asked from a pod: warn conntrack: 4 entries for 4 queries", "iptables cannot"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newAgentNode(t, rules.Transparent, tt.backend)
			n.config.Rules.Services = nil // an agent may find them out itself
			expect(t, see(t, n.hosts.Node, n.config), [][2]string{
				tt.want,
				{"This node: ok lease 10.96.0.10: held", tt.name},
				{"Asked from the node: ok 10.96.0.10: agent 0badcafe (udp ", ""},
				{"Asked from a pod: ok 10.96.0.10: agent 0badcafe (udp ", ""},
				{"Asked from a pod: ok fd00:96::a: agent 0badcafe (udp ", ""},
			})
		})
	}
}

// TestExcluded has a fallback in mode transparent, which the doctor learns from the rules: an annotation may be why.
func TestExcluded(t *testing.T) {
	t.Parallel()
	n := newAgentNode(t, rules.Transparent, byNFT)
	r := n.config.Rules
	fallback := netip.AddrPortFrom(n.hosts.Upstream.IPv4, 53)
	r.Excluded, r.Track, r.Fallback = true, true, []netip.AddrPort{fallback}
	server, err := nodetest.Serve(n.hosts.Upstream, fallback, "fallback")
	assert.NoError(t, err)
	t.Cleanup(server.Close)
	_, err = n.backend.Apply(t.Context(), r)
	assert.NoError(t, err)
	expect(t, see(t, n.hosts.Node, n.config), [][2]string{
		{"This node: ok lease 10.96.0.10: held", ""},
		{"Central DNS: ok 10.201.0.2:53 udp: NOERROR", ""},
		{"Central DNS: ok fallback 10.96.0.10: the fallback answers", ""},
		{"Central DNS: warn fallback: none of fd00:96::a's family", ""},
		{"Asked from a pod: ok 10.96.0.10: agent 0badcafe (udp ", ""},
	})
}

// TestPolicy has rules of others that stop a pod, and only it.
func TestPolicy(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		set  [][]string
		want [][2]string
	}{
		{
			name: "nftables drops what is not tracked",
			set:  [][]string{{"nft", "add table inet fw; add chain inet fw in { type filter hook input priority 10; }; add rule inet fw in iifname != lo ct state invalid,untracked drop"}},
			want: [][2]string{
				{"Asked from a pod: fail 169.254.20.10: no server answers: no answer in 300ms (udp, tcp)", ""},
				{"Asked from a pod: fail dropped by: inet fw in: ", "the rule with handle"},
			},
		},
		{
			name: "a policy after rules for connections",
			set: [][]string{{"nft", "add table inet fw; add chain inet fw in { type filter hook input priority 10; policy drop; };" +
				"add rule inet fw in iif lo accept; add rule inet fw in ct state new,established accept"}},
			want: [][2]string{{"Asked from a pod: fail dropped by: inet fw in: its policy, because no rule accepts", ""}},
		},
		{
			name: "replies are dropped",
			set:  [][]string{{"nft", "add table ip fw; add chain ip fw out { type filter hook output priority 10; }; add rule ip fw out oifname != lo udp sport 53 drop"}},
			want: [][2]string{
				{"Asked from a pod: fail 169.254.20.10 udp: ", ""},
				{"Asked from a pod: ok 169.254.20.10 tcp: ", ""},
				{"Asked from a pod: fail dropped by: ip fw out: ", "see `nft -a list chain ip fw out`"},
			},
		},
		{
			name: "a rule of a chain below, for IPv4",
			set: [][]string{{"nft", "add table ip fw; add chain ip fw dns; add rule ip fw dns udp dport 53 ip saddr 198.0.0.0/8 counter reject comment \"odd\";" +
				"add chain ip fw in { type filter hook input priority 0; }; add rule ip fw in jump dns"}},
			want: [][2]string{
				{"Asked from a pod: ok fd00::a: ", ""},
				{"Asked from a pod: fail dropped by: ip fw dns: ", "see `nft -a list chain ip fw dns`"},
			},
		},
		{
			name: "a policy for IPv6",
			set:  [][]string{{"nft", "add table ip6 fw; add chain ip6 fw in { type filter hook input priority 0; policy drop; }; add rule ip6 fw in iif lo accept"}},
			want: [][2]string{
				{"Asked from a pod: ok 169.254.20.10: ", ""},
				{"Asked from a pod: fail dropped by: ip6 fw in: its policy", ""},
			},
		},
		{
			name: "iptables-nft",
			set:  [][]string{{"iptables-nft", "-A", "INPUT", "!", "-i", "lo", "-m", "conntrack", "--ctstate", "UNTRACKED", "-j", "DROP"}},
			want: [][2]string{{"Asked from a pod: fail dropped by: iptables-nft: iptables -t filter -A INPUT ! -i lo -m conntrack --ctstate UNTRACKED -j DROP", ""}},
		},
		{
			name: "iptables-legacy",
			set:  [][]string{{"ip6tables-legacy", "-A", "INPUT", "!", "-i", "lo", "-p", "udp", "-j", "DROP"}},
			want: [][2]string{
				{"Asked from a pod: ok 169.254.20.10: ", ""},
				{"Asked from a pod: fail fd00::a udp: ", ""},
				{"Asked from a pod: fail dropped by: iptables-legacy: ip6tables -t filter -A INPUT ! -i lo -p udp -j DROP", ""},
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newAgentNode(t, rules.LinkLocal, byNFT)
			for _, line := range tt.set {
				if _, err := exec.LookPath(line[0]); err != nil {
					t.Skipf("needs the program %s", line[0])
				}
				if _, err := n.hosts.Node.Output(t.Context(), line[0], line[1:]...); err != nil {
					t.Fatal(err)
				}
			}
			expect(t, see(t, n.hosts.Node, n.config), tt.want)
		})
	}
}

// TestTwoDoctors runs two doctors on one node, and interrupts one of them.
func TestTwoDoctors(t *testing.T) {
	t.Parallel()
	n := newAgentNode(t, rules.LinkLocal, byNFT)
	before := state(t, n.hosts.Node)
	slow := n.config
	slow.Rules.Port, slow.Timeout = 54, time.Minute // where packets vanish, so that it waits
	for _, args := range [][]string{{"nft", "add table inet fw; add chain inet fw in { type filter hook input priority 10; }; add rule inet fw in iifname != lo th dport 54 drop"}} {
		if _, err := n.hosts.Node.Output(t.Context(), args[0], args[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	for _, how := range []os.Signal{os.Interrupt, syscall.SIGKILL} {
		first, second := start(t, n.hosts.Node, slow), start(t, n.hosts.Node, slow)
		for _, cmd := range []*exec.Cmd{first, second} {
			assert.NoError(t, cmd.Start())
		}
		proctest.Eventually(t, time.Minute, "two veths of doctors", func() bool { return strings.Count(state(t, n.hosts.Node), "198.1") >= 4 })
		for _, cmd := range []*exec.Cmd{first, second} {
			assert.NoError(t, cmd.Process.Signal(how))
			_ = cmd.Wait()
		}
		proctest.Eventually(t, time.Minute, "the node as before", func() bool {
			return !strings.Contains(state(t, n.hosts.Node), "ncdr")
		})
	}
	if _, err := n.hosts.Node.Output(t.Context(), "nft", "delete table inet fw"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, state(t, n.hosts.Node)); diff != "" {
		t.Errorf("the node, before and after (-before +after):\n%s", diff)
	}
}
