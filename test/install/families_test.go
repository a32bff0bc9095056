// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
)

// The addresses of overlay dual-stack.
const (
	agentAddr  = "169.254.20.10"
	agentAddr6 = "fd00::10"
)

// TestFamilies applies the overlay for two families where nodes, pods and Services have both, as it is and then with component
// iptables, so that kube-proxy's iptables and ip6tables have the agents' rules beside them.
func TestFamilies(t *testing.T) { //nolint:tparallel // its steps share a cluster
	t.Parallel()
	if !proctest.Soak() {
		t.Skip("suite node has both families with both backends, and TestInstall the component iptables: make soak")
	}
	b := newHarness(t, kubenode.Options{ProxyMode: "iptables", DualStack: true})
	b.kubectlInput(t, set, "apply", "-f", "-")
	b.kubectl(t, "patch", "service/web", "--type=merge", `--patch={"spec": {"ipFamilyPolicy": "PreferDualStack"}}`)
	b.kubectl(t, "rollout", "status", "deployment/web", "--timeout=2m")
	before := b.nodeStates(t)
	t.Run("preflight", func(t *testing.T) {
		b.testPreflight(t, "iptables", "overlays/dual-stack")
	})
	t.Run("a namespace opts in", func(t *testing.T) {
		b.testOptInOf(t, "daemonset/overlays/dual-stack", agentAddr, "kubernetes.default.svc.cluster.local,www.example.com,www.example.com/AAAA")
	})
	t.Run("dual-stack", func(t *testing.T) {
		b.testFamilies(t, "daemonset/overlays/dual-stack", "nftables")
		b.uninstall(t, before, "daemonset/uninstall")
	})
	if t.Failed() {
		return
	}
	t.Run("iptables", func(t *testing.T) {
		b.loadIPTables(t)
		b.testFamilies(t, kustomization(t, "daemonset/overlays/dual-stack", "daemonset/components/iptables"), "iptables-nft")
		b.uninstall(t, before, "daemonset/uninstall-iptables")
	})
}

// TestIPv6Only has a namespace opt in where nodes, pods and Services have no IPv4.
func TestIPv6Only(t *testing.T) {
	t.Parallel()
	if !proctest.Soak() {
		t.Skip("a third cluster beside two takes their time: make soak")
	}
	b := newHarness(t, kubenode.Options{ProxyMode: "nftables", IPv6Only: true})
	b.testPreflight(t, "nftables", "overlays/ipv6")
	b.testOptInOf(t, "daemonset/overlays/ipv6", agentAddr6, "kubernetes.default.svc.cluster.local/AAAA/fd00:10:96::1,www.example.com/AAAA")
	b.expectLeases(t, "nftables", agentAddr6)
}

// testFamilies has agents answer over both families with a backend, and deletes them from under the clients, whom the fallback
// answers then. Kubelets name the agents meanwhile.
func (b *harness) testFamilies(t *testing.T, folder, backend string) {
	t.Helper()
	began := time.Now()
	b.runShell(t, "kubectl apply -k "+folder)
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
	b.awaitAgentsReady(t)
	proctest.Figure(t, "2 agents ready %s after kubectl apply", since(began))
	b.expectLeases(t, backend, agentAddr, agentAddr6)
	b.setDNS(t, agentAddr, agentAddr6)
	both := b.startPairs(t)

	both.expectNoLoss(t, "by agents")
	if flows := b.trackedFlows(t, both.all(), false); len(flows) > 0 {
		t.Errorf("the kernels track %d flows to the agents, one is %s", len(flows), flows[0])
	}
	b.withoutDNS(t, func() { both.expectNoLoss(t, "without CoreDNS") })

	if backend != "nftables" { // TestInstall replaces agents with that
		b.replaceAgents(t, both)
		b.expectLeases(t, backend, agentAddr, agentAddr6)
	}

	b.runShell(t, "kubectl delete -k "+folder)
	b.awaitNoAgents(t)
	both.expectAnswered(t, "while the agents end", false) // TCP sessions of the agents are reset: docs/node.md
	both.expectNoLoss(t, "answered by the fallback")
	// The fallback is a rule of NAT: flows to it are tracked.
	flows := b.trackedFlows(t, both.all(), true)
	if len(flows) == 0 {
		t.Error("the kernels track no flow to the fallback")
	}
	proctest.Figure(t, "the kernels tracked no flow to the agents, and %d to the fallback", len(flows))
}

// replaceAgents does a rolling update while clients of both families ask.
func (b *harness) replaceAgents(t *testing.T, both pair) {
	t.Helper()
	resetCounts(t, both.all())
	began := time.Now()
	b.kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/node-cache")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=3m")
	b.eventually(t, "the old agents are gone", func() bool { return len(b.agents(t)) == 2 })
	both.expectAnswered(t, "2 agents replaced in "+since(began).String(), true)
	b.awaitAgentsReady(t)
}

// uninstall sets the kubelets back and cleans the nodes, which are then as they were.
func (b *harness) uninstall(t *testing.T, before state, folder string) {
	t.Helper()
	b.setDNS(t, kubenode.DNSService)
	b.runCleanup(t, folder)
	b.awaitClean(t, before)
	b.expectNoFiles(t)
}

// A pair is two clients on each node, one for each family: those of the first ask what their resolv.conf names first.
type pair struct{ four, six []client }

// startPairs starts clients of both families.
func (b *harness) startPairs(t *testing.T) pair {
	t.Helper()
	asked := "-names=" + b.questions(t)
	p := pair{four: b.startClients(t, "four", asked), six: b.startClients(t, "six", asked, "-server="+agentAddr6)}
	for _, c := range p.all() {
		conf := c.exec(t, "cat", "/etc/resolv.conf")
		if !strings.Contains(conf, "nameserver "+agentAddr+"\nnameserver "+agentAddr6+"\n") {
			t.Errorf("%s: resolv.conf:\n%s", c.name, conf)
		}
	}
	return p
}

func (p pair) all() []client { return slices.Concat(p.four, p.six) }

// expectNoLoss lets the clients ask for some time, and fails the test when a query was not answered well.
func (p pair) expectNoLoss(t *testing.T, what string) {
	t.Helper()
	resetCounts(t, p.all())
	time.Sleep(2 * time.Second)
	p.expectAnswered(t, what, true)
}

// expectAnswered fails the test when a query since the last time was not answered well, over UDP or, where it is meant too, TCP.
func (p pair) expectAnswered(t *testing.T, what string, tcp bool) {
	t.Helper()
	for _, one := range []struct {
		clients []client
		server  string
	}{{p.four, agentAddr}, {p.six, agentAddr6}} {
		got := takeCounts(t, one.clients)
		proctest.Figure(t, "%s, %s: %s", what, one.server, got)
		expectNoLoss(t, map[string]tally{"UDP": got.UDP})
		if tcp {
			expectNoLoss(t, map[string]tally{"TCP": got.TCP})
		}
	}
}

// testCleanupRefused has every node cleaned with the image without iptables, which leaves rules of iptables and the link alone.
func (b *harness) testCleanupRefused(t *testing.T) {
	t.Helper()
	was := b.nodeStates(t)
	b.runShell(t, "kubectl apply -k daemonset/uninstall")
	b.eventually(t, "the image without iptables says that another is needed, on both nodes", func() bool {
		out, _ := b.Kubectl(t.Context(), "", "-n", "kube-system", "logs", "-l", "app.kubernetes.io/name=node-cache-cleanup", "-c", "cleanup") // not there yet
		return strings.Count(out, "uninstall-iptables") >= 2
	})
	if diff := cmp.Diff(was, b.nodeStates(t)); diff != "" {
		t.Errorf("the nodes (-before +after):\n%s", diff)
	}
	b.runShell(t, "kubectl delete -k daemonset/uninstall")
}

// setDNS has both kubelets name addresses.
func (b *harness) setDNS(t *testing.T, addrs ...string) {
	t.Helper()
	var parsed []netip.Addr
	for _, addr := range addrs {
		parsed = append(parsed, netip.MustParseAddr(addr))
	}
	for _, n := range b.Nodes {
		if err := n.SetDNS(parsed...); err != nil {
			t.Fatal(err)
		}
	}
}

// testIPTables installs the component iptables in a cluster that is clean, beside the iptables of kube-proxy, and takes it away.
func (b *harness) testIPTables(t *testing.T, before state) {
	t.Helper()
	b.loadIPTables(t)
	folder := kustomization(t, "daemonset/base", "daemonset/components/iptables")
	b.runShell(t, "kubectl apply -k "+folder)
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
	b.awaitAgentsReady(t)
	b.expectLeases(t, "iptables-nft", agentAddr)
	b.setDNS(t, agentAddr)
	clients := b.startClients(t, "iptables")
	got := measure(t, clients, 2*time.Second, "with rules of iptables")
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	b.runShell(t, "kubectl delete -k "+folder)
	b.awaitNoAgents(t)
	got = measure(t, clients, 2*time.Second, "answered by the fallback")
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	b.testCleanupRefused(t)
	b.uninstall(t, before, "daemonset/uninstall-iptables")
}

// expectLeases fails the test unless both agents hold the leases of all addresses, with rules of a backend.
func (b *harness) expectLeases(t *testing.T, backend string, addrs ...string) {
	t.Helper()
	want := "{" + backend + " [{" + strings.Join(addrs, " true} {") + " true}]}"
	for _, pod := range b.agents(t) {
		var s struct {
			Node struct {
				Intercept struct {
					Backend string
					Leases  []struct {
						Address string
						Held    bool
					}
				}
			}
		}
		b.status(t, pod, &s)
		if got := fmt.Sprint(s.Node.Intercept); got != want {
			t.Errorf("%s: backend and leases %s, want %s", pod.Name, got, want)
		}
	}
}

// questions are what clients ask by turns, with the answers that they must get: names of the cluster and of the Internet, their
// addresses of both families, services, and the reverse names of these addresses.
func (b *harness) questions(t *testing.T) string {
	t.Helper()
	service, err := b.Client().CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods := b.endpoints(t, "web")
	if len(service.Spec.ClusterIPs) != 2 || len(pods) != 4 {
		t.Fatalf("addresses of kube-dns and web: %v, %v", service.Spec.ClusterIPs, pods)
	}
	const kubeDNS = "kube-dns.kube-system.svc.cluster.local"
	all := []string{
		"_dns._udp." + kubeDNS + "/SRV/0 50 53 " + kubeDNS + ".",
		"_https._tcp.example.com/SRV/1 2 443 www.example.com.",
	}
	addresses := func(name string, addrs ...string) {
		for _, addr := range addrs {
			kind := "A"
			if netip.MustParseAddr(addr).Is6() {
				kind = "AAAA"
			}
			all = append(all, name+"/"+kind+"/"+addr)
		}
	}
	reverse := func(name string, addrs ...string) {
		for _, addr := range addrs {
			asked, err := dns.ReverseAddr(addr)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, asked+"/PTR/"+name+".")
		}
	}
	addresses(kubeDNS, service.Spec.ClusterIPs...)
	reverse(kubeDNS, service.Spec.ClusterIPs...)
	addresses(setName, pods...)
	addresses("www.example.com", kubenode.InternetAddr, kubenode.InternetAddr6)
	reverse("www.example.com", kubenode.InternetAddr, kubenode.InternetAddr6)
	return strings.Join(all, ",")
}
