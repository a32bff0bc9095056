// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// testNodeZone has an agent that asks the API server for its topology zone, and one that is configured with another.
func testNodeZone(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	const name = "near.zoned.svc.cluster.local."
	var set []string
	slice := inNamespace("zoned", newSlice("near", "near-1", slicePorts("sql:5432")))
	slice.Labels[corev1.IsHeadlessService] = ""
	for i := range 9 {
		address := fmt.Sprintf("10.1.6.%d", i+1)
		set = append(set, address)
		slice.Endpoints = append(slice.Endpoints, endpoint(address, in([]string{"zone-a", "zone-b", "zone-c"}[i/3])))
	}
	kubetest.Apply(t, c, kubetest.Node("node-b", "zone-b"), kubetest.Namespace("zoned"))
	kubetest.Apply(t, c, newService("zoned", "near", headless(corev1.IPv4Protocol), ports("sql:5432")), slice)
	own := kubeconfig(c.Kubeconfig(kubetest.Admin))
	for _, tt := range []struct {
		name string
		s    settings
		near []string
	}{
		{"of its node", settings{env: []string{"NODE_NAME=node-b"}, cluster: local(own)}, set[3:6]},
		{"of the environment", settings{env: []string{"NODE_ZONE=zone-a", "NODE_NAME=node-b"}, cluster: local(own)}, set[:3]},
		{"of the configuration", settings{env: []string{"NODE_ZONE=zone-a"}, cluster: local(own, "nodeZone: zone-c")}, set[6:]},
	} {
		n := startReady(t, tt.s)
		n.awaitAnswer(t, name, "NOERROR "+strings.Join(set, " "))
		proctest.Eventually(t, limit, "the endpoints of the zone "+tt.name+" come first", func() bool { return n.comesFirst(t, name, tt.near) })
	}
}

// comesFirst reports whether an answer begins with these addresses in any order.
func (n *node) comesFirst(t *testing.T, name string, near []string) bool {
	t.Helper()
	m, err := exchange(n.settings.addr, name, dns.TypeA)
	if err != nil {
		t.Fatal(err)
	}
	var first []string
	for _, rr := range m.Answer[:min(len(near), len(m.Answer))] {
		first = append(first, rr.(*dns.A).A.String())
	}
	slices.Sort(first)
	return slices.Equal(first, near)
}
