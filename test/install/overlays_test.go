// SPDX-License-Identifier: Apache-2.0

package install

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/subscribe"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// TestOverlays applies those that the README leaves out, with kube-proxy in its other mode and with pods at bridges.
func TestOverlays(t *testing.T) {
	t.Parallel()
	_, err := os.Stat("/proc/sys/net/bridge") // of br_netfilter, which kube-proxy needs where pods share a bridge
	b := newHarness(t, kubenode.Options{ProxyMode: "nftables", Bridge: err == nil})
	before := b.nodeStates(t)
	for _, step := range []struct {
		name string
		step func(*testing.T)
	}{
		{"preflight", func(t *testing.T) {
			t.Helper()
			b.testPreflight(t, "nftables", "base")
		}},
		{"transparent", b.testTransparent},
		{"transparent leaves nothing", func(t *testing.T) {
			t.Helper()
			b.awaitClean(t, before)
		}},
		{"helm", b.testHelm},
		{"helm leaves nothing", func(t *testing.T) {
			t.Helper()
			b.runCleanup(t, "daemonset/uninstall")
			b.awaitClean(t, before)
			b.expectNoFiles(t)
		}},
		{"the test of a platform", func(t *testing.T) {
			t.Helper()
			b.testPlatform(t)
			b.awaitClean(t, before)
			b.expectNoFiles(t)
		}},
		{"central", b.testCentral},
		{"resolvers are lost", b.testSurvival},
		{"central over TLS", b.testCentralTLS},
	} {
		if !t.Failed() {
			t.Run(step.name, step.step)
		}
	}
}

// testCentral has the agents ask a Deployment of the same program for the cluster's names, and replaces its pods under load.
func (b *harness) testCentral(t *testing.T) {
	t.Helper()
	b.kubectl(t, "apply", "-k", repository+"/daemonset/overlays/central")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/node-cache-resolver", "--timeout=2m")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
	b.awaitAgentsReady(t)
	b.setDNS(t, "169.254.20.10")
	clients := b.startClients(t, "central")
	got := measure(t, clients, 2*time.Second, "by the central resolver")
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})

	b.testPush(t)
	b.testResolverDoctor(t)
	b.expectResolvers(t)
	// Sessions end with their resolver, and the agents ask again.
	began := time.Now()
	b.kubectl(t, "-n", "kube-system", "rollout", "restart", "deployment/node-cache-resolver")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/node-cache-resolver", "--timeout=2m")
	b.eventually(t, "the old resolvers are gone", func() bool {
		return len(b.pods(t, "kube-system", "app.kubernetes.io/name=node-cache-resolver")) == 2
	})
	took := since(began)
	time.Sleep(6 * time.Second)
	got = takeCounts(t, clients)
	proctest.Figure(t, "2 resolvers replaced in %s: %s", took, got)
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	b.expectResolvers(t)
	b.awaitAgentsReady(t)
}

// testResolverDoctor runs doctor in the pod of a resolver, which finds that one's configuration. Checks of a node fail there.
func (b *harness) testResolverDoctor(t *testing.T) {
	t.Helper()
	out, _ := b.Kubectl(t.Context(), "", "-n", "kube-system", "exec", "deployment/node-cache-resolver", "--", "/node-cache", "doctor", "--no-pod")
	if !regexp.MustCompile(`(?m)^ +ok +subscribers +[0-9]+ sessions?, [0-9]+ subscriptions?$`).MatchString(out) {
		t.Errorf("doctor in the pod of a resolver:\n%s", out)
	}
}

// testCentralTLS gives the resolvers a certificate and the agents its CA, in the order of docs/cluster.md, under load.
func (b *harness) testCentralTLS(t *testing.T) {
	t.Helper()
	authority := upstreamtest.NewAuthority(t, time.Now())
	pair := authority.Issue(t, time.Now().Add(24*time.Hour), "node-cache-resolver.kube-system.svc")
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	assert.NoError(t, err)
	folder := t.TempDir()
	file := func(name string, text []byte) string {
		return proctest.WriteFile(t, filepath.Join(folder, name), string(text))
	}
	b.kubectl(t, "-n", "kube-system", "create", "secret", "tls", "node-cache-resolver-tls",
		"--cert="+file("tls.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})),
		"--key="+file("tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	b.kubectl(t, "-n", "kube-system", "create", "configmap", "node-cache-resolver-ca", "--from-file="+file("ca.crt", authority.PEM()))
	clients := b.startClients(t, "tls")
	for _, components := range [][]string{{"daemonset/components/tls"}, {"daemonset/components/tls", "daemonset/components/tls-agents"}} {
		b.kubectl(t, "apply", "-k", kustomization(t, "daemonset/overlays/central", components...))
		b.kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/node-cache-resolver", "--timeout=2m")
		b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
		b.awaitAgentsReady(t)
	}
	b.eventually(t, "the old agents are gone", func() bool { return len(b.agents(t)) == len(b.Nodes) })
	for _, pod := range b.agents(t) {
		took := b.eventually(t, pod.Name+" asks over TLS, and has a session", func() bool {
			var s struct {
				Cluster struct {
					Central struct {
						Endpoints []status.Server
						Push      subscribe.Stats
					}
				}
			}
			b.status(t, pod, &s)
			central := s.Cluster.Central
			ready := slices.DeleteFunc(central.Endpoints, func(e status.Server) bool { return e.Last }) // that is the Service's address
			return len(ready) == 2 && strings.HasSuffix(central.Push.Server, ":853") &&
				!slices.ContainsFunc(ready, func(e status.Server) bool { return !strings.HasPrefix(e.Address, "tls://") || e.State != "good" })
		})
		proctest.Figure(t, "%s has a session over TLS after %s", pod.Spec.NodeName, took.Round(time.Millisecond))
	}
	got := takeCounts(t, clients)
	proctest.Figure(t, "both sides replaced: %s", got)
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	b.testPush(t)
}

// expectResolvers waits until both agents know the resolvers' pods by DNS. They must not be allowed to watch them.
func (b *harness) expectResolvers(t *testing.T) {
	t.Helper()
	type view struct {
		Cluster struct {
			Requests uint64 `json:"requests"`
			Central  struct {
				Endpoints []struct {
					Address string `json:"address"`
					Last    bool   `json:"lastResort"`
				} `json:"endpoints"`
			} `json:"central"`
		} `json:"cluster"`
	}
	var want []string
	for _, pod := range b.pods(t, "kube-system", "app.kubernetes.io/name=node-cache-resolver") {
		want = append(want, pod.Status.PodIP+":53")
	}
	slices.Sort(want)
	took := b.eventually(t, "both agents know the resolvers", func() bool {
		return !slices.ContainsFunc(b.agents(t), func(pod corev1.Pod) bool {
			var s view
			b.status(t, pod, &s)
			var got []string
			for _, e := range s.Cluster.Central.Endpoints {
				if !e.Last {
					got = append(got, strings.TrimPrefix(e.Address, "tcp://"))
				}
			}
			slices.Sort(got)
			return !slices.Equal(got, want) || s.Cluster.Requests > 0
		})
	})
	proctest.Figure(t, "both agents know the resolvers %s by DNS after %s, without a request", want, took.Round(time.Millisecond))
	for _, resource := range []string{"services", "endpointslices.discovery.k8s.io"} {
		out, _ := b.Kubectl(t.Context(), "", "auth", "can-i", "watch", resource, "-n", "kube-system", "--as=system:serviceaccount:kube-system:node-cache")
		if strings.TrimSpace(out) != "no" {
			t.Errorf("agents may watch %s: %q", resource, out)
		}
	}
}

// testPush gives a Service another address: the agents hear of it, and give no old one for the rest of its TTL.
func (b *harness) testPush(t *testing.T) {
	t.Helper()
	const name = "pushed.default.svc.cluster.local"
	push := func(pod corev1.Pod) (of subscribe.Stats) {
		var s struct {
			Cluster struct {
				Central struct {
					Push *subscribe.Stats `json:"push"`
				} `json:"central"`
			} `json:"cluster"`
		}
		b.status(t, pod, &s)
		if s.Cluster.Central.Push == nil {
			t.Fatalf("%s: push is off", pod.Name)
		}
		return *s.Cluster.Central.Push
	}
	place := func(port string) []string {
		b.kubectl(t, "create", "service", "clusterip", "pushed", "--tcp="+port)
		return []string{strings.TrimSpace(b.kubectl(t, "get", "service", "pushed", "--output=jsonpath={.spec.clusterIP}"))}
	}
	everywhere := func(want []string) func() bool {
		return func() bool {
			return !slices.ContainsFunc(b.Nodes, func(n *kubenode.Node) bool { return !slices.Equal(b.lookupFromNode(t, n, name), want) })
		}
	}
	known := everywhere(place("80"))
	b.eventually(t, "both agents know the Service, and keep answers", func() bool {
		return known() && !slices.ContainsFunc(b.agents(t), func(pod corev1.Pod) bool { s := push(pod); return s.Server == "" || s.Kept == 0 })
	})
	b.kubectl(t, "delete", "service", "pushed")
	took := b.eventually(t, "both agents know the next Service of this name", everywhere(place("81")))
	for _, pod := range b.agents(t) {
		s := push(pod)
		proctest.Figure(t, "both agents have the new address %s after the Service is there; %s: %d names, %d answers kept, %d changes reported",
			took.Round(time.Millisecond), pod.Spec.NodeName, s.Names, s.Kept, s.Events)
		if s.Events == 0 {
			t.Errorf("%s heard of no change", pod.Spec.NodeName)
		}
	}
	b.kubectl(t, "delete", "service", "pushed")
}

// testPlatform runs the script that tests node-cache on any cluster, from the first command to the last.
func (b *harness) testPlatform(t *testing.T) {
	t.Helper()
	_, out, _ := strings.Cut(b.runShell(t, "hack/platform-test.sh", "OUTSIDE=www.example.com"), "\n## ")
	passed := regexp.MustCompile(`(?m)^\| ([^|]+) \| passed \| [0-9]+ s \| (.*) \|$`).FindAllStringSubmatch(out, -1)
	var steps []string
	for _, p := range passed {
		steps = append(steps, p[1])
		if p[2] != "" {
			proctest.Figure(t, "%s: %s", p[1], p[2])
		}
	}
	assert.Same(t, "steps that passed", []string{"install", "pods on two nodes", "queries", "doctor", "lookups", "an agent is killed", "upgrade", "uninstall"}, steps)
	if !strings.Contains(out, "- 2 × ") || !strings.Contains(out, "- Kubernetes v") {
		t.Errorf("no versions:\n%s", out)
	}
}
