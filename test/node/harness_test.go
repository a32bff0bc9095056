// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// The backends.
const (
	nftables       = "nftables"
	iptablesNFT    = "iptables-nft"
	iptablesLegacy = "iptables-legacy"
)

// Who answers: what comes through the agent is the answer of the server that it forwards to.
const (
	byAgent   = "agent"
	byCentral = "central"
)

// lease is what the agents here are configured with, which is the default.
const lease = 3 * time.Second

// fallbackLimit is what the fallback may take to answer: the lease and half a second.
const fallbackLimit = lease + 500*time.Millisecond

var (
	agentIPv4 = netip.MustParseAddr("169.254.20.10")
	agentIPv6 = netip.MustParseAddr("fd00:20::10")
)

// options say what a harness is like. The zero value is the default configuration with nftables.
type options struct {
	backend     string
	transparent bool
	excluded    bool // with transparent: nothing but the agent answers at the service's address, so the rules have a fallback
	onExit      string
	lease       time.Duration
	extra       string // more of the configuration
	socket      string // admin.socket; empty: none
	unmanaged   bool   // the agent writes no rules
	noCentral   bool   // no server of the test's own stands for the central DNS
	pods        int
}

// A harness is a node that an agent runs on.
type harness struct {
	*nodetest.Network
	options
	dnsAddrs       []netip.AddrPort // what pods ask, IPv4 and IPv6
	forwardServer  *nodetest.Server // that the agent asks
	centralServers []*nodetest.Server
	config         string
}

func newHarness(t *testing.T, o options) *harness {
	t.Helper()
	if o.backend == "" {
		o.backend = nftables
	}
	if o.lease == 0 {
		o.lease = lease
	}
	b := &harness{Network: nodetest.Start(t, nodetest.Options{Pods: o.pods}), options: o}
	b.dnsAddrs = []netip.AddrPort{netip.AddrPortFrom(agentIPv4, 53), netip.AddrPortFrom(agentIPv6, 53)}
	if o.transparent {
		b.dnsAddrs = []netip.AddrPort{netip.AddrPortFrom(nodetest.ServiceIPv4(), 53), netip.AddrPortFrom(nodetest.ServiceIPv6(), 53)}
	}
	b.forwardServer = b.startServer(t, b.Upstream, netip.AddrPortFrom(b.Upstream.IPv4, 5300), byAgent)
	if !o.noCentral {
		central := []netip.AddrPort{netip.AddrPortFrom(b.Upstream.IPv4, 53), netip.AddrPortFrom(b.Upstream.IPv6, 53)}
		if o.transparent && !o.excluded {
			central = b.dnsAddrs
		}
		for _, addr := range central {
			b.centralServers = append(b.centralServers, b.startServer(t, b.Upstream, addr, byCentral))
		}
	}
	b.addKubeProxyChains(t)
	b.config = filepath.Join(t.TempDir(), "node-cache.yaml")
	b.writeConfig(t, b.configText())
	return b
}

func (b *harness) startServer(t *testing.T, h *nodetest.Host, addr netip.AddrPort, name string) *nodetest.Server {
	t.Helper()
	s, err := nodetest.Serve(h, addr, name)
	assert.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// addKubeProxyChains leaves what kube-proxy leaves on a node, so that the agent knows which iptables is in use.
func (b *harness) addKubeProxyChains(t *testing.T) {
	t.Helper()
	if b.backend == nftables {
		return
	}
	for _, program := range b.programs() {
		if b.backend == iptablesLegacy {
			b.run(t, program, "-t", "raw", "-L") // a reader of a table of the old kind makes it, for as long as the machine is up
		}
		b.run(t, program, "-t", "nat", "-N", "KUBE-SERVICES")
		b.run(t, program, "-t", "nat", "-A", "PREROUTING", "-j", "KUBE-SERVICES")
		b.run(t, program, "-t", "filter", "-N", "KUBE-FIREWALL")
		b.run(t, program, "-t", "filter", "-A", "INPUT", "-j", "KUBE-FIREWALL")
	}
}

// programs are iptables and ip6tables of the backend.
func (b *harness) programs() []string {
	return []string{b.backend, strings.Replace(b.backend, "iptables", "ip6tables", 1)}
}

// run runs a program on the node.
func (b *harness) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := b.Node.Output(t.Context(), name, args...)
	assert.NoError(t, err)
	return out
}

// idleStart is how long a start of the program takes beside the load, on two processors that do nothing else.
const idleStart = 50 * time.Millisecond

// scaled returns a limit for this moment: on a busy machine it is as much longer as a start of the program takes longer.
func (b *harness) scaled(t *testing.T, limit time.Duration) time.Duration {
	t.Helper()
	const starts = 5
	began := time.Now()
	for range starts {
		b.run(t, nodeCache, "version")
	}
	start := time.Since(began) / starts
	t.Logf("a start of the program takes %s", ms(start))
	return time.Duration(float64(limit) * max(1, start.Seconds()/idleStart.Seconds()))
}

// configText is the agent's configuration.
func (b *harness) configText() string {
	var s strings.Builder
	family := func(v4, v6 netip.Addr) string { return fmt.Sprintf("[%s, %q]", v4, v6) }
	fmt.Fprintf(&s, "listen: {addresses: %s, port: 53}\n", family(agentIPv4, agentIPv6))
	fmt.Fprintf(&s, "interface: {manage: true}\n")
	configured, _, _ := strings.Cut(b.backend, "-")
	fmt.Fprintf(&s, "intercept:\n  manage: %t\n  backend: %s\n  lease: %s\n", !b.unmanaged, configured, b.lease)
	if b.transparent {
		fmt.Fprintf(&s, "  mode: transparent\n  services: %s\n", family(nodetest.ServiceIPv4(), nodetest.ServiceIPv6()))
	}
	if b.excluded {
		fmt.Fprintf(&s, "  serviceExcluded: true\n")
	}
	if !b.transparent || b.excluded {
		fmt.Fprintf(&s, "  fallback: %s\n", family(b.Upstream.IPv4, b.Upstream.IPv6))
	}
	if b.onExit != "" {
		fmt.Fprintf(&s, "  onExit: %s\n", b.onExit)
	}
	fmt.Fprintf(&s, "forward: [{zone: ., to: [%q]}]\n", netip.AddrPortFrom(b.Upstream.IPv4, 5300))
	fmt.Fprintf(&s, "admin: {address: \"%s:9253\", socket: %q}\n%s", agentIPv4, b.socket, b.extra)
	return s.String()
}

func (b *harness) writeConfig(t *testing.T, text string) {
	t.Helper()
	proctest.WriteFile(t, b.config, text)
}

// A daemon is an agent that runs on the node of a harness.
type daemon struct {
	*proctest.Process
	started time.Time
}

// end has the agent end in order.
func (a daemon) end(t *testing.T) {
	t.Helper()
	a.Signal(syscall.SIGTERM)
	if err := a.Wait(t, time.Minute); err != nil {
		t.Errorf("an agent ended with %v", err)
	}
}

// launch starts the agent and does not wait for anything.
func (b *harness) launch(t *testing.T) daemon {
	t.Helper()
	return b.launchProgram(t, nodeCache, "agent", "--config", b.config)
}

func (b *harness) launchProgram(t *testing.T, name string, args ...string) daemon {
	t.Helper()
	now := time.Now()
	return daemon{proctest.Start(t, "the agent", b.Node.Command(t.Context(), name, args...)), now}
}

// start starts the agent and waits until it answers pods and node in both families.
func (b *harness) start(t *testing.T) daemon {
	t.Helper()
	a := b.launch(t)
	b.awaitAgent(t, a)
	return a
}

func (b *harness) awaitAgent(t *testing.T, a daemon) {
	t.Helper()
	for _, from := range []*nodetest.Host{b.Pods[0], b.Node} {
		for _, addr := range b.dnsAddrs {
			proctest.Eventually(t, time.Minute, fmt.Sprintf("the agent answers %s at %s", from.Name, addr), func() bool {
				if a.Ended() {
					t.Fatalf("the agent has ended: %v", a.Err())
				}
				who, _ := nodetest.Ask(from, addr, "udp")
				return who == byAgent
			})
		}
	}
	if b.unmanaged {
		return
	}
	// Before there are rules it answers without a lease; between rules and lease the fallback does.
	proctest.Eventually(t, time.Minute, "the leases are held", func() bool { return b.ready(t) })
}

// ready asks the agent's admin server: leases may be held before there are rules, and where iptables writes one table
// after the other.
func (b *harness) ready(t *testing.T) bool {
	t.Helper()
	page := b.adminPage(t, "/metrics")
	return strings.Contains(page, `lease_held{family="ipv4"} 1`) && strings.Contains(page, `lease_held{family="ipv6"} 1`) &&
		strings.Contains(page, "intercept_rules_right 1\n") && !strings.Contains(page, "intercept_rule_checks_total 0\n")
}

// adminPage is one of the agent's admin server; empty if it cannot be had.
func (b *harness) adminPage(t *testing.T, path string) string {
	t.Helper()
	page, _ := nodetest.Fetch(t.Context(), b.Node, http.MethodGet, "http://"+agentIPv4.String()+":9253"+path) // the agent may be away
	return page
}

// fallbackQueries is how many queries the central DNS has had.
func (b *harness) fallbackQueries() uint64 {
	var sum uint64
	for _, s := range b.centralServers {
		udp, tcp := s.Queries()
		sum += udp + tcp
	}
	return sum
}

// backends are all backends, for a test of each.
func backends() []string { return []string{nftables, iptablesNFT, iptablesLegacy} }

// loadedBackends are the backends for a test under load. The rules of iptables-legacy are those of iptables-nft.
func loadedBackends() []string {
	return proctest.OrdinaryOrSoak([]string{nftables, iptablesNFT}, backends())
}
