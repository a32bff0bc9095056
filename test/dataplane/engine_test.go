// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// newEngineRig starts a node with a policy engine's program to come, pods of the namespaces, and the servers, until the test ends. The
// routes are the network's own, as of a simple plug-in.
func newEngineRig(t *testing.T, namespaces ...string) (r *rig, pods []*pod) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	r = &rig{
		target: netip.AddrPortFrom(agentAddr, 53), Network: nodetest.Start(t, nodetest.Options{Pods: len(namespaces), NoIPv6: true}),
		cluster: kubetest.Start(t, kubetest.Options{}),
	}
	r.host, r.kubeconfig = r.Node, r.kubeconfigOn(t, r.Node)
	node := kubetest.Node(nodeName, "a")
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: r.Node.IPv4.String()}}
	kubetest.Apply(t, r.cluster, node)
	for i, namespace := range namespaces {
		host := r.Pods[i]
		pods = append(pods, &pod{Host: host, ip: host.IPv4})
		object := kubetest.Pod{
			Namespace: namespace, Name: host.Name, Labels: map[string]string{"app": host.Name}, Node: nodeName, IPs: []netip.Addr{host.IPv4},
		}.Object()
		object.Status.HostIP = r.Node.IPv4.String()
		kubetest.Apply(t, r.cluster, kubetest.Namespace(namespace), object)
	}
	assert.NoError(t, r.Upstream.Do(func() error {
		server, err := proctest.ServeDNS(&net.ListenConfig{}, netip.AddrPortFrom(r.Upstream.IPv4, 5300), dns.HandlerFunc(serveDestinations))
		if err == nil {
			t.Cleanup(server.Close)
		}
		return err
	}))
	r.publish(t, &pod{Host: r.Upstream, ip: r.Upstream.IPv4})
	return r, pods
}

// engineConfig is the agent's, beside a policy engine.
const engineConfig = "interface: {manage: true, kind: lo}\nintercept: {manage: true, backend: nftables}\n"

// startEngine starts the program of a module below test on the node.
func (r *rig) startEngine(t *testing.T, module string, args ...string) *proctest.Process {
	t.Helper()
	program, err := kubetest.Program(t.Context(), module)
	assert.NoError(t, err)
	return proctest.Start(t, module, r.Node.Command(t.Context(), program, args...))
}

// A destination is a name outside of the cluster, of a server to which pods connect.
type destination struct {
	name string
	addr netip.Addr
	ttl  uint32 // seconds
}

var destinations = []destination{
	{"alone.example.org.", netip.MustParseAddr("198.51.100.1"), 300},
	{"short.example.org.", netip.MustParseAddr("198.51.100.2"), 30},
	{"long.example.org.", netip.MustParseAddr("198.51.100.3"), 300},
	{"searched-short.example.org.", netip.MustParseAddr("198.51.100.4"), 30},
	{"searched-long.example.org.", netip.MustParseAddr("198.51.100.5"), 300},
}

// denied is an address that no name has.
var denied = netip.MustParseAddr("198.51.100.6")

// serveDestinations answers the names of destinations, and who asks for the server's name.
func serveDestinations(w dns.ResponseWriter, query *dns.Msg) {
	m, q := new(dns.Msg).SetReply(query), query.Question[0]
	if q.Qtype == dns.TypeTXT {
		m.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: q.Qclass, Ttl: 3600}, Txt: []string{byAgent}}}
	}
	for _, d := range destinations {
		head := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: q.Qclass, Ttl: d.ttl}
		switch {
		case !strings.EqualFold(d.name, q.Name):
		case q.Qtype == dns.TypeA:
			m.Answer = []dns.RR{&dns.A{Hdr: head, A: d.addr.AsSlice()}}
		case q.Qtype == dns.TypeAAAA:
			m.Answer = []dns.RR{&dns.AAAA{Hdr: head, AAAA: net.IP{0x20, 1, 0xd, 0xb8, 15: d.addr.AsSlice()[3]}}}
		}
	}
	_ = w.WriteMsg(m) // the client may have gone
}

// A learner is a kube-network-policies: it learns the addresses of names in policies from the agent's replies.
type learner struct {
	module, kind, version string // of its policies
	allow                 string
	more                  string // of a policy
	forgets               bool   // each name after 30 s; else with its TTL
}

var learners = []learner{
	{"kube-network-policies", "ClusterNetworkPolicy", "v1alpha2", "Accept", "tier: Admin", false},
	{"kube-network-policies0.8", "AdminNetworkPolicy", "v1alpha1", "Allow", "", true},
}

// applyPolicy defines the kind of the learner's policies and lets all pods connect to the destinations, and query the agent.
func (l learner) applyPolicy(t *testing.T, r *rig) {
	t.Helper()
	r.defineResources(t, filepath.Join(sources(t, l.module, "sigs.k8s.io/network-policy-api"), "config/crd/experimental/policy*.yaml"))
	var names []string
	for _, d := range destinations {
		names = append(names, strings.TrimSuffix(d.name, "."))
	}
	resource := map[string]string{"ClusterNetworkPolicy": "clusternetworkpolicies", "AdminNetworkPolicy": "adminnetworkpolicies"}[l.kind]
	assert.NoError(t, r.apply(t, "/apis/policy.networking.k8s.io/"+l.version+"/"+resource+"/names", fmt.Sprintf(`apiVersion: policy.networking.k8s.io/%s
kind: %s
metadata: {name: names}
spec:
  %s
  priority: 10
  subject: {namespaces: {}}
  egress:
  - {name: dns, action: %[4]s, to: [{networks: [%[5]s/32]}]}
  - {name: names, action: %[4]s, to: [{domainNames: [%[6]s]}]}
  - {name: rest, action: Deny, to: [{networks: [0.0.0.0/0]}]}
`, l.version, l.kind, l.more, l.allow, agentAddr, strings.Join(names, ", "))))
}

// The queues of a learner, which it reads when it is ready: for connections, and for DNS replies.
var queues = regexp.MustCompile(`(?s)(^|\n) *100 .*\n *101 `)

// start starts the learner and waits until it judges a pod's connections.
func (l learner) start(t *testing.T, r *rig, from *pod) *proctest.Process {
	t.Helper()
	p := r.startEngine(t, l.module, r.kubeconfig, nodeName)
	table := ""
	proctest.Eventually(t, limit, "the engine reads its queues", func() bool {
		if p.Ended() {
			t.Fatalf("%s has ended: %v", l.module, p.Err())
		}
		table, _ = r.Node.Output(t.Context(), "cat", "/proc/net/netfilter/nfnetlink_queue") // it may be about to be there
		return queues.MatchString(table)
	}, func() string { return table })
	proctest.Eventually(t, limit, "the engine drops what no policy allows", func() bool { return !connect(t.Context(), from, denied) })
	return p
}

// connectLimit is below what a client waits until it sends its first packet again: an engine that drops it is seen.
const connectLimit = 900 * time.Millisecond

// connect connects a pod to a destination, and reports whether that is allowed.
func connect(ctx context.Context, from *pod, to netip.Addr) bool {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", netip.AddrPortFrom(to, 80).String())
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// serveConnections accepts connections to all destinations, and to the address that is denied, until the test ends.
func (r *rig) serveConnections(t *testing.T) {
	t.Helper()
	for _, d := range append([]destination{{addr: denied}}, destinations...) {
		assert.NoError(t, r.Upstream.AddAddress(d.addr))
	}
	var listener net.Listener
	assert.NoError(t, r.Upstream.Do(func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp4", ":80")
		return err
	}))
	t.Cleanup(func() { _ = listener.Close() })
	go func() { // ends with the listener
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
}

// TestEngineKubeRouter has kube-router's controller for NetworkPolicies deny one pod, and allow another the agent only.
func TestEngineKubeRouter(t *testing.T) {
	const shop = "shop"
	r, pods := newEngineRig(t, metav1.NamespaceDefault, metav1.NamespaceDefault, shop)
	free, other, allowed := pods[0], pods[1], pods[2]
	r.configure(t, agentAddr, engineConfig+withHits)
	r.launch(t)
	r.awaitServing(t)
	r.startEngine(t, "policies", r.kubeconfig, nodeName, "10.96.0.0/16")
	proctest.Eventually(t, limit, "kube-router has its chains", func() bool {
		chains, _ := r.Node.Output(t.Context(), "iptables", "-w", "-S") // it may be about to be there
		return strings.Contains(chains, "KUBE-ROUTER-OUTPUT")
	})
	m := r.startMeter(t, allowed)
	if _, ok := awaitAnswers(m, byAgent, time.Now(), limit); !ok {
		t.Fatalf("without a policy: %s", m.Stop())
	}
	began := time.Now()
	text, err := os.ReadFile(filepath.Join("..", "..", "daemonset", "network-policies", "pods.yaml"))
	assert.NoError(t, err)
	policies := "/apis/networking.k8s.io/v1/namespaces/" + shop + "/networkpolicies/"
	assert.NoError(t, r.apply(t, policies+"node-cache", strings.ReplaceAll(string(text), "NAMESPACE", shop)))
	elsewhere, err := nodetest.Serve(r.Upstream, netip.AddrPortFrom(r.Upstream.IPv4, 5353), "elsewhere")
	assert.NoError(t, err)
	t.Cleanup(elsewhere.Close)
	isDenied := func(p *pod) bool {
		_, err := nodetest.Ask(p.Host, netip.AddrPortFrom(r.Upstream.IPv4, 5353), "udp")
		return err != nil
	}
	proctest.Eventually(t, limit, "the policy denies all but the agent", func() bool { return isDenied(allowed) })
	const queries = 300
	acts := time.Now()
	proctest.Eventually(t, limit, "the allowed pod has asked", func() bool { return m.Report().Between(acts, time.Now()).Sent() >= queries })
	if report := m.Stop().Between(began, time.Now()); report.Lost() > 0 {
		t.Errorf("a policy that allows the agent: %s", report)
	} else {
		proctest.Figure(t, "a policy that allows the agent: %s", report)
	}
	r.expectHits(t, allowed, "")
	r.expectHits(t, free, "")
	r.expectDeniedBy(t, other, free, permit, "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies/denied", fmt.Sprintf(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: denied}
spec: {podSelector: {matchLabels: {app: %s}}, policyTypes: [Egress]}
`, other.Name), func() int { return map[bool]int{true: 1}[isDenied(other)] })
	r.expectHits(t, other, "")
}

// A search list is that of a pod of namespace default, with ndots: 5.
var searchList = []string{"default.svc.cluster.local.", "svc.cluster.local.", "cluster.local.", ""}

// A connection is an attempt of a pod to resolve a name and to connect.
type connection struct {
	began, ended time.Time
	resolved, ok bool
}

// A connector is a pod that connects to its destinations in turn.
type connector struct {
	name string
	from *pod
	to   []destination
	list []string // its search list

	mu   sync.Mutex // guards all
	all  []connection
	done sync.WaitGroup
}

// connectInterval is between two connections of a pod.
const connectInterval = 250 * time.Millisecond

// start connects until ctx ends. Then [connector.done] is done.
func (c *connector) start(ctx context.Context, r *rig) {
	c.done.Go(func() {
		tick := time.NewTicker(connectInterval)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			to := c.to[i%len(c.to)]
			c.done.Go(func() {
				one := connection{began: time.Now()}
				if one.resolved = c.resolve(r, to); one.resolved {
					one.ok = connect(context.WithoutCancel(ctx), c.from, to.addr)
				}
				one.ended = time.Now()
				c.mu.Lock()
				defer c.mu.Unlock()
				c.all = append(c.all, one)
			})
		}
	})
}

// resolve asks for both kinds of addresses of each name of the search list, as the resolvers of C libraries do.
func (c *connector) resolve(r *rig, to destination) (found bool) {
	for _, suffix := range c.list {
		addrs := r.addresses(c.from, "udp", to.name+suffix)
		_ = r.ask(c.from, "udp", to.name+suffix, dns.TypeAAAA)
		found = found || slices.Equal(addrs, []string{to.addr.String()})
	}
	return found
}

// count returns the connections that began since a time and ended by another, and those of them that had no answer, or were dropped.
func (c *connector) count(since, until time.Time) (all, unresolved, dropped int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.all {
		switch {
		case one.began.Before(since) || one.ended.After(until):
			continue
		case !one.resolved:
			unresolved++
		case !one.ok:
			dropped++
		}
		all++
	}
	return all, unresolved, dropped
}

// TestEngineLearnsNames has pods resolve names and connect to their addresses, as a policy of kube-network-policies allows. The engine is
// killed and started again. With hits in the kernel it drops no more connections than without: none. An agent without permits of names
// shows that the test would see them.
func TestEngineLearnsNames(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	// No query for another name renews a permit that soon. By default one does.
	const hits = "kernel: {hits: on, permit: 1m}\n"
	control := buildWithoutPermits(t)
	for _, l := range learners {
		t.Run(l.module, func(t *testing.T) {
			t.Run("hits off", func(t *testing.T) { l.expectConnections(t, nodeCache, "", 0) })
			t.Run("hits on", func(t *testing.T) { l.expectConnections(t, nodeCache, hits, 10) })
			if l.forgets {
				t.Run("control", func(t *testing.T) { l.expectConnections(t, control, hits, 0) })
			}
		})
	}
}

// buildWithoutPermits builds an agent that finds no need for permits of names. No configuration does so beside an engine that the agent knows:
// with the longest kernel.permitName all permits still end whenever the engine writes its table, every 30 s, so no name is older.
func buildWithoutPermits(t *testing.T) string {
	t.Helper()
	source, err := filepath.Abs(filepath.Join("..", "..", "pkg", "agent", "kernel.go"))
	assert.NoError(t, err)
	text, err := os.ReadFile(source)
	assert.NoError(t, err)
	permit := regexp.MustCompile(`(learnerPermit +=) 10 \* time\.Second`)
	if n := len(permit.FindAll(text, -1)); n != 1 {
		t.Fatalf("%s sets learnerPermit %d times", source, n)
	}
	dir := t.TempDir()
	replaced, overlay, binary := filepath.Join(dir, "kernel.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "node-cache")
	assert.NoError(t, os.WriteFile(replaced, permit.ReplaceAll(text, []byte("$1 0")), 0o600))
	assert.NoError(t, os.WriteFile(overlay, fmt.Appendf(nil, `{"Replace": {%q: %q}}`, source, replaced), 0o600))
	assert.NoError(t, proctest.BuildPackage(binary, "cmd/node-cache", "-ldflags=-w -E main.entry -X main.version=test", "-overlay="+overlay))
	return binary
}

// expectConnections has pods connect beside a learner and an agent. The agent's /status is to show permitName, in seconds. If it is 0 and
// the kernel answers, the engine is to drop some connections, else none.
func (l learner) expectConnections(t *testing.T, agent, config string, permitName int) {
	t.Helper()
	t.Parallel() // it waits
	r, pods := newEngineRig(t, slices.Repeat([]string{metav1.NamespaceDefault}, 4)...)
	r.serveConnections(t)
	r.configure(t, agentAddr, engineConfig+config)
	r.launchVersion(t, agent)
	r.awaitServing(t)
	l.applyPolicy(t, r)
	engine := l.start(t, r, pods[0])
	if permitName > 0 {
		proctest.Eventually(t, limit, "the agent has found the engine", func() bool {
			return strings.Contains(r.adminPage(t, "/status"), fmt.Sprintf(`"permitNameSeconds": %d,`, permitName))
		})
	}
	connectors := []*connector{
		{name: "one name", from: pods[0], to: destinations[:1], list: searchList[3:]},
		{name: "two names", from: pods[1], to: destinations[1:3], list: searchList[3:]},
		{name: "search list, TTL 30", from: pods[2], to: destinations[3:4], list: searchList},
		{name: "search list, TTL 300", from: pods[3], to: destinations[4:], list: searchList},
	}
	drops, takes, restarts := config != "" && permitName == 0, proctest.OrdinaryOrSoak(75*time.Second, 10*time.Minute), proctest.OrdinaryOrSoak(1, 5)
	if drops {
		takes, restarts = 75*time.Second, 1 // longer shows no more
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	kernelBefore, allBefore := r.replies(t)
	began := time.Now()
	for _, c := range connectors {
		c.start(ctx, r)
	}
	time.Sleep(takes)
	kernel, all := r.replies(t)
	kernel, all = kernel-kernelBefore, all-allBefore
	proctest.Figure(t, "the kernel answers %d of %d queries", kernel, all)
	if permitName > 0 && 100*kernel < 95*all {
		t.Errorf("the kernel answers %d of %d queries, want 95 of 100", kernel, all)
	}
	type window struct {
		name         string
		since, until time.Time
		engine       *proctest.Process
	}
	windows := []window{{"", began, time.Now(), engine}}
	for i := range restarts {
		engine.Kill()
		engine = l.start(t, r, pods[0])
		since := time.Now()
		time.Sleep(40 * time.Second) // longer than it takes to forget
		windows = append(windows, window{fmt.Sprintf(", engine restarted %d times", i+1), since, time.Now(), engine})
	}
	cancel()
	for _, c := range connectors {
		c.done.Wait()
	}
	sum := 0
	for _, w := range windows {
		failed := 0
		for _, c := range connectors {
			all, unresolved, dropped := c.count(w.since, w.until)
			proctest.Figure(t, "%s%s: %d of %d connections dropped, %d names not resolved", c.name, w.name, dropped, all, unresolved)
			failed += unresolved + dropped
			if all == 0 {
				t.Errorf("%s%s: no connection", c.name, w.name)
			}
		}
		// The kernel drops what waits for the engine's verdict while the engine writes its tables, and the engine logs each of these packets.
		if lost := strings.Count(w.engine.Stderr.String(), "Could not receive message"); failed > lost && !drops {
			t.Errorf("%d connections failed%s, want no more than the %d packets that the engine has lost", failed, w.name, lost)
		}
		sum += failed
	}
	if drops && sum == 0 {
		t.Error("no connection was dropped: this test would see none")
	}
}
