// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

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

// TestModes runs agents in the modes that have central resolvers, and the resolvers.
func TestModes(t *testing.T) { //nolint:tparallel // they count the queries of the same resolvers
	t.Parallel()
	if !proctest.InNamespace(t, nodeCache, firstPod+"/32", secondPod+"/32", lastPod+"/32") {
		return
	}
	m := &modes{cluster: kubetest.Start(t, kubetest.Options{})}
	openShop(t, m.cluster)
	kubetest.Apply(t, m.cluster,
		inNamespace("kube-system", newSlice("kube-dns", "kube-dns-old", nil))) // one without a port says nothing
	m.corp = serveAddress(t, func() string { return "1 IN A 192.0.2.9" })
	m.api = kubeconfig(m.cluster.Kubeconfig(kubetest.Admin))
	m.resolvers = map[string]*node{}
	for _, pod := range []string{firstPod, secondPod, lastPod} {
		m.resolvers[pod] = m.startResolver(t, pod)
	}
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
		cluster: []string{m.api},
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
			then: func() { m.resolvers[firstPod].Stop(t) },
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
				m.resolvers[firstPod].Killed = true
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
