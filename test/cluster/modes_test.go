// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// Where the central resolvers are, in the namespace of the test. The last is behind the address of their service, as
// kube-proxy would have it.
const (
	firstPod, secondPod, lastPod = "10.244.0.2", "10.244.0.3", "10.96.0.10"
	dnsPort                      = ":53"
)

// TestModes runs an agent in each mode and the resolvers it depends on.
func TestModes(t *testing.T) { //nolint:tparallel // they count the queries of the same resolvers
	t.Parallel()
	if !isolated(t, firstPod+"/32", secondPod+"/32", lastPod+"/32") {
		return
	}
	m := &modes{cluster: kubetest.Start(t, kubetest.Options{Programs: programs})}
	openShop(t, m.cluster)
	kubetest.Apply(t, m.cluster,
		inNamespace("kube-system", newSlice("kube-dns", "kube-dns-old", nil)), // one without a port says nothing
		newSlice("web", "web-1", slicePorts("http:8080"), endpoint("10.1.3.1")))
	m.corp = serveAddress(t, func() string { return "1 IN A 192.0.2.9" })
	m.api = kubeconfig(m.cluster.Kubeconfig(kubetest.Admin))
	m.resolvers = map[string]*node{}
	for _, pod := range []string{firstPod, secondPod, lastPod} {
		m.resolvers[pod] = m.startResolver(t, pod)
	}
	t.Run("resolver", m.testResolver)
	t.Run("local with addresses", m.testLocalByAddresses)
	t.Run("central", m.testCentral)
	t.Run("local with a service", m.testLocalByService)
}

// modes is a cluster with central resolvers.
type modes struct {
	cluster   *kubetest.Cluster
	api       string         // line of the cluster section
	corp      netip.AddrPort // serves corp.cluster.local
	resolvers map[string]*node
}

// startResolver runs a central resolver that knows more of the domain than the API server does.
func (m *modes) startResolver(t *testing.T, pod string) *node {
	t.Helper()
	return startReady(t, settings{
		command: "resolver", addr: netip.MustParseAddrPort(pod + dnsPort),
		forward: []string{fmt.Sprintf("{zone: corp.cluster.local, to: [%q]}", m.corp)},
		cluster: []string{m.api, "transferTo: [127.0.0.1, 10.244.0.2]"},
	})
}

// queryCounts counts the queries that each resolver has had.
func (m *modes) queryCounts(t *testing.T) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for pod, n := range m.resolvers {
		if !n.Ended() {
			counts[pod] = n.status(t).Queries.Total
		}
	}
	return counts
}

// Names that a node with the default settings cannot answer.
const (
	corpName  = "git.corp.cluster.local."
	behindWeb = "10-1-3-1." + webName
)

// testResolver asks a central resolver itself.
func (m *modes) testResolver(t *testing.T) {
	n := m.resolvers[firstPod]
	n.expectSteady(t)
	n.expect(t, expectedAnswer{behindWeb, dns.TypeA, "NOERROR 10.1.3.1"}, expectedAnswer{corpName, dns.TypeA, "NOERROR 192.0.2.9"})
	records, err := transferFrom(n.settings.addr, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		webName + "\t5\tIN\tA\t10.96.1.1", setName + "\t5\tIN\tA\t10.1.2.2", "10-1-3-1." + webName + "\t5\tIN\tA\t10.1.3.1",
	} {
		if !slices.Contains(records, want) {
			t.Errorf("the transfer lacks %q; it has\n%s", want, strings.Join(records, "\n"))
		}
	}
	if records, err := transferFrom(n.settings.addr, secondPod); err == nil {
		t.Errorf("a transfer to a client that is not listed gave %d records", len(records))
	}
	// Queries are counted after they are answered, and the next ones are to be counted from here.
	asked := len(steady()) + 4
	proctest.Eventually(t, limit, fmt.Sprintf("%d queries are counted", asked), func() bool { return n.status(t).Queries.Total == asked },
		func() string { return fmt.Sprintf("%d are", n.status(t).Queries.Total) })
}

// transferFrom transfers the zone to a client with this address.
func transferFrom(server netip.AddrPort, client string) ([]string, error) {
	d := &dns.Client{Net: "tcp", Timeout: clientTimeout}
	d.Dialer = dialerFrom(client)
	conn, err := d.DialContext(context.Background(), server.String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	parts, err := (&dns.Transfer{Conn: conn}).In(new(dns.Msg).SetAxfr("cluster.local."), server.String())
	if err != nil {
		return nil, err
	}
	var records []string
	for part := range parts {
		if part.Error != nil {
			return nil, part.Error
		}
		for _, rr := range part.RR {
			records = append(records, rr.String())
		}
	}
	return records, nil
}

// itself is the queries by which an agent finds out whether an upstream that it uses for the first time leads back to it.
const itself = 1

// testLocalByAddresses has an agent that knows the cluster, and a resolver for the rest.
func (m *modes) testLocalByAddresses(t *testing.T) {
	n := startReady(t, settings{cluster: local(m.api, central(m.resolvers[firstPod].settings.addr))})
	before := m.queryCounts(t)
	n.expectSteady(t)
	if diff := cmp.Diff(before, m.queryCounts(t)); diff != "" {
		t.Errorf("names of the node's own zone were asked elsewhere (-want +got):\n%s", diff)
	}
	n.expect(t,
		expectedAnswer{corpName, dns.TypeA, "NOERROR 192.0.2.9"},
		expectedAnswer{behindWeb, dns.TypeA, "NOERROR 10.1.3.1"},
		expectedAnswer{"10-1-3-2." + webName, dns.TypeA, "NXDOMAIN"},
	)
	m.expectAsked(t, n, before, firstPod, 3)
}

// expectAsked waits until one central resolver has counted so many queries of an agent since before, and [itself], and
// expects no more of them, and none at the others. What takes longer than the agent's patience it asks once more, and
// counts as a timeout; of one that fails it asks by probes whether it is back.
func (m *modes) expectAsked(t *testing.T, n *node, before map[string]int, pod string, queries int) {
	t.Helper()
	least := before[pod] + queries + itself
	var got map[string]int
	proctest.Eventually(t, limit, fmt.Sprintf("%s has had %d queries", pod, least), func() bool {
		got = m.queryCounts(t)
		return got[pod] >= least
	}, func() string { return fmt.Sprintf("queries at the central resolvers: %v", got) })
	e := n.status(t).endpoint(t, pod)
	again := e.Requests - queries
	if again < 0 || again > e.Failures["timeout"] {
		t.Errorf("%d tries at %s for %d queries, with the failures %v", e.Requests, pod, queries, e.Failures)
	}
	want := maps.Clone(before)
	want[pod] = min(got[pod], least+again+e.Probes)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("queries at the central resolvers (-want +got):\n%s", diff)
	}
}

// testCentral has an agent that knows nothing of the cluster.
func (m *modes) testCentral(t *testing.T) {
	n := startReady(t, settings{cluster: []string{
		"resolver: central", "ranges: [10.96.0.0/12]", central(m.resolvers[secondPod].settings.addr),
	}})
	before := m.queryCounts(t)
	n.expectSteady(t)
	n.expectSteady(t) // from the cache
	n.expect(t, expectedAnswer{corpName, dns.TypeA, "NOERROR 192.0.2.9"}, expectedAnswer{behindWeb, dns.TypeA, "NOERROR 10.1.3.1"})
	m.expectAsked(t, n, before, secondPod, len(steady())+2)
	proctest.Eventually(t, limit, "every query is counted", func() bool { return n.status(t).Queries.Total == 2*len(steady())+2 },
		func() string { return fmt.Sprintf("%d are", n.status(t).Queries.Total) })
	if s := n.status(t); s.Cluster.Requests != 0 || s.Queries.BySource["cache"] != len(steady()) {
		t.Errorf("%d requests to the API server, answers by source %v, want none and %d from the cache",
			s.Cluster.Requests, s.Queries.BySource, len(steady()))
	}
}

// centralSlice is the slice of the central resolvers' service.
func centralSlice(endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return inNamespace("kube-system", newSlice("kube-dns", "kube-dns-1", slicePorts("dns:53/UDP", "dns-tcp:53"), endpoints...))
}

// testLocalByService has an agent that follows the endpoints of the central resolvers' service through a roll-out, while
// every query needs one of them.
func (m *modes) testLocalByService(t *testing.T) {
	kubetest.Apply(t, m.cluster, newService("kube-system", "kube-dns", at(lastPod), ports("dns:53/UDP", "dns-tcp:53")),
		centralSlice(endpoint(firstPod)))
	const service = "central: {service: kube-system/kube-dns}"
	startReady(t, settings{cluster: []string{"resolver: central", "ranges: [10.96.0.0/12]", m.api, service}}).expectSteady(t)
	n := startReady(t, settings{cluster: local(m.api, service)})
	ask := startLoad(t, n.settings.addr, func(i int) expectedQuery {
		return expectedQuery{fmt.Sprintf("n%d.corp.cluster.local.", i), dns.TypeA, []string{"NOERROR 192.0.2.9"}}
	})
	m.onlyAsked(t, n, m.queryCounts(t), []string{firstPod})
	for _, step := range []struct {
		name      string
		endpoints []discoveryv1.Endpoint
		asked     []string // each of them, and none but
		also      []string
		then      func()
	}{
		{
			name: "a second one comes, and hangs", endpoints: []discoveryv1.Endpoint{endpoint(firstPod), endpoint(secondPod)},
			asked: []string{firstPod, secondPod},
			then:  func() { m.resolvers[secondPod].hang() },
		},
		{
			name:      "the first is to end, and ends",
			endpoints: []discoveryv1.Endpoint{endpoint(firstPod, terminating), endpoint(secondPod)}, asked: []string{secondPod},
			then: func() { m.resolvers[firstPod].stop(t) },
		},
		{name: "the first is gone", endpoints: []discoveryv1.Endpoint{endpoint(secondPod)}, asked: []string{secondPod}},
		{name: "none is ready", endpoints: []discoveryv1.Endpoint{endpoint(secondPod, unready)}, asked: []string{lastPod}},
		{
			name: "one is ready again, and hangs", endpoints: []discoveryv1.Endpoint{endpoint(secondPod)}, asked: []string{secondPod},
			then: func() { m.resolvers[secondPod].hang() },
		},
		{
			name: "the first comes again, and is killed", endpoints: []discoveryv1.Endpoint{endpoint(firstPod), endpoint(secondPod)},
			asked: []string{firstPod}, also: []string{secondPod}, // which is not trusted for a while since it hung
			then: func() {
				m.resolvers[firstPod].killed = true
				m.resolvers[firstPod].Kill()
				time.Sleep(2 * time.Second)
			},
		},
		{name: "all that are ready are dead", endpoints: []discoveryv1.Endpoint{endpoint(firstPod)}, asked: []string{lastPod}},
	} {
		if m.resolvers[firstPod].Ended() && strings.HasPrefix(step.name, "the first comes") {
			m.resolvers[firstPod] = m.startResolver(t, firstPod)
		}
		since := m.queryCounts(t)
		kubetest.Apply(t, m.cluster, centralSlice(step.endpoints...))
		if !t.Run(step.name, func(t *testing.T) { m.onlyAsked(t, n, since, step.asked, step.also...) }) {
			break
		}
		if step.then != nil {
			step.then()
		}
	}
	ask.end(t)
}

// hang has node-cache do nothing for a while.
func (n *node) hang() {
	n.Signal(syscall.SIGSTOP)
	time.Sleep(3 * time.Second)
	n.Signal(syscall.SIGCONT)
}

// onlyAsked waits until each of the wanted resolvers has been asked since the counts were taken, and for a second none but
// they and the tolerated were. The quickest of them gets most of the queries.
func (m *modes) onlyAsked(t *testing.T, n *node, since map[string]int, want []string, tolerated ...string) {
	t.Helper()
	var strays, missing []string
	proctest.Eventually(t, limit, fmt.Sprintf("only %q are asked", want), func() bool {
		before := m.queryCounts(t)
		time.Sleep(time.Second)
		strays, missing = nil, nil
		for pod, count := range m.queryCounts(t) {
			switch wanted := slices.Contains(want, pod); {
			case wanted && count == since[pod]:
				missing = append(missing, pod)
			case !wanted && !slices.Contains(tolerated, pod) && count > before[pod]:
				strays = append(strays, pod)
			}
		}
		return len(strays)+len(missing) == 0
	}, func() string {
		return fmt.Sprintf("%q are asked, %q are not; %s knows of %v", strays, missing, n.Name, n.status(t).tries())
	})
}
