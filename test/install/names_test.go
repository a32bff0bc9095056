// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
)

// setName is the name of the headless Service.
const setName = "web.default.svc.cluster.local"

const set = `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: web, image: "` + kubenode.BusyboxImage + `", command: [sleep, "3600"]}]
`

// testScaling shows that pods on both nodes see the addresses of a Deployment's pods as it grows and shrinks.
func (b *harness) testScaling(t *testing.T) {
	t.Helper()
	clients := b.startClients(t, "scales", "-every=1s")
	b.kubectlInput(t, set, "apply", "-f", "-")
	var seen []string
	for _, replicas := range []int{2, 6, 1, 0} {
		b.kubectl(t, "scale", "deployment/web", fmt.Sprintf("--replicas=%d", replicas))
		var want []string
		b.eventually(t, fmt.Sprintf("%d pods run", replicas), func() bool {
			want = b.endpoints(t, "web")
			return len(want) == replicas
		})
		took := b.eventually(t, fmt.Sprintf("%s has %v on both nodes", setName, want), func() bool {
			return !slices.ContainsFunc(b.Nodes, func(n *kubenode.Node) bool { return !slices.Equal(b.lookupFromNode(t, n, setName), want) })
		})
		for _, c := range clients {
			if got := c.addressesOf(t, setName); !slices.Equal(got, want) {
				t.Errorf("%s sees %v of %s, and its node %v", c.name, got, setName, want)
			}
		}
		seen = append(seen, fmt.Sprintf("%d pods %.1f s", replicas, took.Seconds()))
	}
	b.kubectl(t, "delete", "deployment/web", "service/web")
	proctest.Figure(t, "both nodes have the addresses of %s after their EndpointSlice", strings.Join(seen, ", "))
}

// endpoints are the ready addresses in the EndpointSlices of a service.
func (b *harness) endpoints(t *testing.T, service string) []string {
	t.Helper()
	list, err := b.Client().DiscoveryV1().EndpointSlices("default").List(t.Context(),
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		t.Fatal(err)
	}
	var addrs []string
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if *e.Conditions.Ready {
				addrs = append(addrs, e.Addresses...)
			}
		}
	}
	slices.Sort(addrs)
	return addrs
}

// addressesOf are the IPv4 addresses of a name, as the client's pod sees it; none when the name is not there.
func (c client) addressesOf(t *testing.T, name string) []string {
	t.Helper()
	out, _ := c.harness.Kubectl(t.Context(), "", "exec", c.name, "--", "nslookup", name) // it fails for one that is denied
	_, answer, _ := strings.Cut(out, "\n\n")                                             // after the server's own
	var found []string
	for _, match := range regexp.MustCompile(`Address: ([\d.]+)\n`).FindAllStringSubmatch(answer, -1) {
		found = append(found, match[1])
	}
	slices.Sort(found)
	return found
}

// testTransparent shows that pods that ask the Service's address are answered on their node, with nothing changed in them and
// in the kubelets. It cannot be seen from outside, unless kube-dns is away.
func (b *harness) testTransparent(t *testing.T) {
	t.Helper()
	clients := b.startClients(t, "transparent")
	if conf := clients[0].exec(t, "cat", "/etc/resolv.conf"); !strings.Contains(conf, "nameserver "+kubenode.DNSService+"\n") {
		t.Fatalf("resolv.conf:\n%s", conf)
	}
	resetCounts(t, clients)
	folder := kustomization(t, "daemonset/overlays/transparent", "daemonset/components/kernel")
	b.kubectl(t, "apply", "-k", folder)
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
	b.awaitAgentsReady(t)
	got := takeCounts(t, clients)
	proctest.Figure(t, "while the agents start: %s", got)
	expectNoLoss(t, map[string]tally{"UDP": got.UDP}) // TCP sessions with kube-dns are reset then: docs/node.md

	b.awaitKernelHits(t)
	b.withoutDNS(t, func() {
		got := measure(t, clients, 3*time.Second, "without CoreDNS")
		expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	})

	resetCounts(t, clients)
	b.kubectl(t, "delete", "-k", folder)
	b.awaitNoAgents(t)
	got = takeCounts(t, clients)
	proctest.Figure(t, "while the agents end: %s", got)
	expectNoLoss(t, map[string]tally{"UDP": got.UDP})
	got = measure(t, clients, 2*time.Second, "without agents")
	expectNoLoss(t, map[string]tally{"UDP": got.UDP})
	if got.TCP.Lost > got.TCP.Answered/20 { // the agents have no part in it
		t.Errorf("TCP without agents: %+v", got.TCP)
	}
}

// withoutDNS does something while the cluster's own DNS is away.
func (b *harness) withoutDNS(t *testing.T, do func()) {
	t.Helper()
	b.kubectl(t, "-n", "kube-system", "scale", "deployment/coredns", "--replicas=0")
	b.eventually(t, "CoreDNS is away", func() bool { return len(b.pods(t, "kube-system", "k8s-app=kube-dns")) == 0 })
	do()
	b.kubectl(t, "-n", "kube-system", "scale", "deployment/coredns", "--replicas=2")
	if err := b.AwaitDNS(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// awaitNoAgents waits until there are no agents.
func (b *harness) awaitNoAgents(t *testing.T) {
	t.Helper()
	b.eventually(t, "the agents are gone", func() bool { return len(b.agents(t)) == 0 })
}
