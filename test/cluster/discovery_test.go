// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestNoWatches has agents find the resolvers by DNS. Of the API server each reads its Node once.
func TestNoWatches(t *testing.T) {
	t.Parallel()
	if !proctest.InNamespace(t, nodeCache, firstPod+"/32", secondPod+"/32", lastPod+"/32") {
		return
	}
	c := kubetest.Start(t, kubetest.Options{Audit: true, Users: []string{account}})
	openShop(t, c)
	grant(t, c, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}})
	resolvers := func(endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		s := inNamespace("kube-system", newSlice("resolvers", "resolvers-1", slicePorts("dns-tcp:53"), endpoints...))
		s.Labels[corev1.IsHeadlessService] = ""
		return s
	}
	tenant := newSlice("resolvers", "resolvers-1", slicePorts("dns-tcp:53"), endpoint("10.244.9.9", in("a")))
	tenant.Labels[corev1.IsHeadlessService] = ""
	kubetest.Apply(t, c, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "a"}}},
		newService("kube-system", "resolvers", headless(corev1.IPv4Protocol), ports("dns-tcp:53")),
		resolvers(endpoint(firstPod, in("a")), endpoint(secondPod, in("b"))),
		newService("shop", "resolvers", headless(corev1.IPv4Protocol), ports("dns-tcp:53")), tenant) // of the same name, and not meant

	for _, pod := range []string{firstPod, secondPod, lastPod} { // the last is behind the address of their Service
		startReady(t, settings{
			command: "resolver", addr: netip.MustParseAddrPort(pod + dnsPort), more: "push: {clients: [0.0.0.0/0]}",
			cluster: []string{kubeconfig(c.Kubeconfig(kubetest.Admin))},
		})
	}
	agent := func(push string) *node {
		return startReady(t, settings{
			env:     []string{"NODE_NAME=n1"},
			cluster: []string{"resolver: central", kubeconfig(c.Kubeconfig(account)), `central: {addresses: ["` + lastPod + dnsPort + `"], headless: kube-system/resolvers, push: ` + push + `}`},
		})
	}
	agents := []*node{agent("on"), agent("on"), agent("off")}
	know := func(what string, want map[string]bool) {
		t.Helper()
		took := proctest.Eventually(t, limit, what, func() bool {
			return !slices.ContainsFunc(agents, func(n *node) bool { return !maps.Equal(n.far(t), want) })
		})
		proctest.Figure(t, "%s: all agents know it after %s", what, took.Round(time.Millisecond))
	}
	requests := func() (list []kubetest.Request) {
		all, err := c.Audit()
		assert.NoError(t, err)
		for _, r := range all {
			if r.User == account {
				list = append(list, r)
			}
		}
		return list
	}
	know("the resolvers are known, with their zones", map[string]bool{firstPod + dnsPort: false, secondPod + dnsPort: true})
	for _, n := range agents {
		n.awaitAnswer(t, webName, "NOERROR 10.96.1.1")
	}
	proctest.Eventually(t, limit, "sessions", func() bool {
		return !slices.ContainsFunc(agents[:2], func(n *node) bool { return n.status(t).Cluster.Central.Push.Server == "" })
	})
	rest := time.Now()
	proctest.Eventually(t, limit, "the agents rest", func() bool { return time.Since(rest) > 10*time.Second })
	kubetest.Apply(t, c, resolvers(endpoint(secondPod, in("a"))))
	know("a resolver has left", map[string]bool{secondPod + dnsPort: false})
	kubetest.Apply(t, c, resolvers(endpoint(firstPod, in("b")), endpoint(secondPod, in("a"))))
	know("one has come", map[string]bool{firstPod + dnsPort: true, secondPod + dnsPort: false})
	for _, n := range agents {
		if s := n.status(t); len(s.Problems) > 0 || s.Cluster.Requests > 0 {
			t.Errorf("/status: %+v", s)
		}
	}

	got := kubetest.Count(requests())
	proctest.Figure(t, "requests of %d agents: %+v", len(agents), got)
	assert.Same(t, "requests", []kubetest.Tally{{Agent: "node-cache", Verb: "get", Resource: "nodes", Count: len(agents)}}, got)
}

// far says of each endpoint of the central resolver whether it is in another topology zone, without last resorts.
func (n *node) far(t *testing.T) map[string]bool {
	t.Helper()
	list := map[string]bool{}
	for _, e := range n.status(t).Cluster.Central.Endpoints {
		if !e.LastResort {
			list[e.Address[len("tcp://"):]] = e.Far
		}
	}
	return list
}
