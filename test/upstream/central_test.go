// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// podNames are names that each central resolver answers from their spelling, without knowing them.
const podNames = "shop.pod.cluster.local"

// A centralResolver is a cluster's central resolver: pods that come and go, behind a service that an agent follows.
type centralResolver struct {
	*nodetest.Network
	folder  string // of the manifests
	service *nodetest.Server
	agent   *agent
}

// An endpoint is a line in the manifest of the service's endpoints.
type endpoint struct {
	pod   int
	state string
}

// The states of endpoints.
const (
	ready       = "{ready: true}"
	terminating = "{ready: false, serving: true, terminating: true}"
)

func newCentral(t *testing.T, endpoints ...endpoint) *centralResolver {
	t.Helper()
	c := &centralResolver{Network: nodetest.Start(t, nodetest.Options{Pods: 5, NoIPv6: true}), folder: t.TempDir()}
	// What kube-proxy would hand to some endpoint comes here, to be counted.
	var err error
	if c.service, err = nodetest.Serve(c.Upstream, netip.AddrPortFrom(nodetest.ServiceIPv4(), 53), "service"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.service.Close)
	c.publish(t, endpoints...)
	c.agent = start(t, settings{
		host: c.Node, listen: netip.MustParseAddrPort("127.0.0.1:53"), admin: netip.MustParseAddrPort("127.0.0.1:9253"),
		rest: forwardTo("127.0.0.1:5399") + "cache: {size: 16Mi}\n" +
			fmt.Sprintf("cluster: {resolver: central, manifests: %q, central: {service: kube-system/kube-dns}}\n", c.folder),
	})
	return c
}

// publish writes the service and its endpoints.
func (c *centralResolver) publish(t *testing.T, endpoints ...endpoint) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: %s
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-1, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
endpoints:
`, nodetest.ServiceIPv4())
	for _, e := range endpoints {
		fmt.Fprintf(&b, "- {addresses: [%s], conditions: %s}\n", c.Pods[e.pod].IPv4, e.state)
	}
	proctest.WriteFile(t, filepath.Join(c.folder, "kube-dns.yaml"), b.String())
}

// addr is where a pod answers.
func (c *centralResolver) addr(pod int) netip.AddrPort {
	return netip.AddrPortFrom(c.Pods[pod].IPv4, 53)
}

// tag is the address in the answers of the NSD in a pod.
func tag(pod int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + pod)}) }

// startNSD has a pod be an NSD.
func (c *centralResolver) startNSD(t *testing.T, pod int) *proctest.Process {
	t.Helper()
	return startNSD(t, c.Pods[pod], c.addr(pod), "cluster.local", "shop.pod", tag(pod))
}

// startResolver has a pod be node-cache as a central resolver.
func (c *centralResolver) startResolver(t *testing.T, pod int) *agent {
	t.Helper()
	folder := t.TempDir()
	proctest.WriteFile(t, filepath.Join(folder, "shop.yaml"), "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n")
	return start(t, settings{
		command: "resolver", host: c.Pods[pod], listen: c.addr(pod), admin: netip.AddrPortFrom(c.Pods[pod].IPv4, 9253),
		rest: forwardTo("127.0.0.1:5399") + fmt.Sprintf("cluster: {manifests: %q, pods: insecure}\n", folder),
	})
}

// dropPackets has a host lose every packet that comes in from now on, until the rules are flushed.
func dropPackets(t *testing.T, h *nodetest.Host) {
	t.Helper()
	for _, rule := range []string{"add table inet hole", "add chain inet hole in { type filter hook prerouting priority -300; policy drop; }"} {
		if _, err := h.Output(t.Context(), "nft", rule); err != nil {
			t.Fatal(err)
		}
	}
}

// queries is how many queries each of some resolvers has had.
func queries(t *testing.T, resolvers []*agent) []int {
	t.Helper()
	var list []int
	for _, r := range resolvers {
		list = append(list, r.status(t).Queries.Total)
	}
	return list
}

// awaitShare waits until the last of some resolvers gets 15 % of the queries of half a second. It tells how long that
// took, and the share: less than 15 % if it does not come to that within 10 s.
func awaitShare(t *testing.T, resolvers []*agent, since time.Time) (took time.Duration, percent int) {
	t.Helper()
	for percent < 15 && time.Since(since) < 10*time.Second {
		before := queries(t, resolvers)
		time.Sleep(500 * time.Millisecond)
		percent = lastShare(before, queries(t, resolvers))
	}
	return time.Since(since), percent
}

// lastShare is the percentage that the last one has of all that came between two counts.
func lastShare(before, after []int) int {
	all, last := 0, 0
	for i := range after {
		last = after[i] - before[i]
		all += last
	}
	return 100 * last / max(all, 1)
}

// A phase is a time in which one thing was wrong.
type phase struct {
	name     string
	from, to time.Time
	strays   uint64 // queries to the address of the service, since the start
}

// TestCentralEndpoints takes endpoints of the central resolver away in each way they can go, and adds one, under misses
// that each need an endpoint. Who gave most answers is always the next to go.
func TestCentralEndpoints(t *testing.T) {
	proctest.FindProgram(t, "nft", "nftables")
	const next, added = 3, 4
	c := newCentral(t, endpoint{0, ready}, endpoint{1, ready}, endpoint{2, ready})
	first, second, third := c.startNSD(t, 0), c.startNSD(t, 1), c.startResolver(t, 2)
	running := map[int]*proctest.Process{0: first, 1: second, 2: third.Process}
	third.Killed = true // maybe

	span := proctest.OrdinaryOrSoak(3*time.Second, 10*time.Second)
	l := startLoad(t, loadOptions{
		addr: c.agent.settings.listen, dial: c.agent.settings.dial, suffix: podNames,
		rate: proctest.OrdinaryOrSoak(3000, 20_000), length: time.Minute + 5*span,
	})
	time.Sleep(time.Second) // connections are opened
	var phases []phase
	pass := func(name string, from time.Time) {
		time.Sleep(span)
		udp, tcp := c.service.Queries()
		phases = append(phases, phase{name, from, time.Now(), udp + tcp})
	}
	pass("all three answer", time.Now())

	began, pod := time.Now(), c.busiestPod(l, running, span)
	delete(running, pod)
	dropPackets(t, c.Pods[pod])
	pass("one is a black hole", began)

	began, killed := time.Now(), c.busiestPod(l, running, span)
	c.publish(t, endpointLines(running, ready)...)
	running[killed].Signal(syscall.SIGKILL)
	delete(running, killed)
	pass("one is killed, and still listed", began)

	// As a Deployment does it: once the new pod is ready, the old one is stopped, and the list says so while it does.
	fresh := c.startResolver(t, next)
	began = time.Now()
	last := endpointLines(running, ready)[0]
	c.publish(t, last, endpoint{next, ready})
	proctest.Eventually(t, time.Minute, "the new endpoint is known", func() bool {
		return slices.ContainsFunc(c.agent.status(t).Cluster.Central.Endpoints, func(s server) bool {
			return strings.HasSuffix(s.Address, "/"+c.addr(next).String())
		})
	})
	c.publish(t, endpoint{last.pod, terminating}, endpoint{next, ready})
	running[last.pod].Signal(syscall.SIGTERM)
	pass("one is rolled", began)

	// Four that are alike: what went comes again.
	began = time.Now()
	four := []*agent{fresh, c.startResolver(t, killed), c.startResolver(t, last.pod)}
	c.publish(t, endpoint{next, ready}, endpoint{killed, ready}, endpoint{last.pod, ready})
	pass("two come again", began)
	four = append(four, c.startResolver(t, added))
	before := queries(t, four)
	began = time.Now()
	c.publish(t, endpoint{next, ready}, endpoint{killed, ready}, endpoint{last.pod, ready}, endpoint{added, ready})
	took, percent := awaitShare(t, four, began)
	pass("a fourth is added", began)
	l.end()
	c.checkPhases(t, l, phases)
	proctest.Figure(t, "the fourth had %d %% of half a second's queries %s after it was listed, and %d %% of all from then on", percent, ms(took),
		lastShare(before, queries(t, four)))
	if percent < 15 {
		t.Errorf("the fourth endpoint has %d %% of the queries, want 15 %% within 10 s", percent)
	}
}

// endpointLines are lines for the pods that run.
func endpointLines(running map[int]*proctest.Process, state string) []endpoint {
	var list []endpoint
	for pod := range running {
		list = append(list, endpoint{pod, state})
	}
	return list
}

// busiestPod is the pod that has given most of the latest answers.
func (c *centralResolver) busiestPod(l *load, running map[int]*proctest.Process, span time.Duration) int {
	r := l.between(time.Now().Add(-span/2), time.Now())
	best, most := -1, -1
	for pod := range running {
		n := r.by[tag(pod)]
		if pod == 2 { // the resolver
			n = r.by[ownAddr()]
		}
		if n > most {
			best, most = pod, n
		}
	}
	return best
}

// checkPhases expects that no fault showed.
func (c *centralResolver) checkPhases(t *testing.T, l *load, phases []phase) {
	t.Helper()
	normal := l.between(phases[0].from, phases[0].to)
	strays := uint64(0)
	for _, p := range phases {
		r := l.between(p.from, p.to)
		above := r.quantile(990) - normal.quantile(990)
		proctest.Figure(t, "%s: %s, %s above normal; %s", p.name, r, ms(above), r.shares())
		if r.bad() > 0 {
			t.Errorf("%s: %d lost, %v by rcode, want NOERROR for all", p.name, r.lost, r.rcodes)
		}
		if limit := proctest.OrdinaryOrSoak(300*time.Millisecond, 50*time.Millisecond); above > limit {
			t.Errorf("%s: p99 is %s above normal, want at most %s", p.name, ms(above), limit)
		}
		// The last endpoint that answers may stand still for as long as a query waits for it, with the machine.
		if most := proctest.OrdinaryOrSoak[uint64](5, 0); p.strays > strays+most {
			t.Errorf("%s: the address of the service was asked %d times, want %d at most", p.name, p.strays-strays, most)
		}
		strays = p.strays
	}
	if t.Failed() {
		page, err := c.agent.Page("/status?format=text")
		t.Logf("%s%v", page, err)
	}
}
