// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/policytest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/dnspolicy"
)

// An engineHarness is a node whose policies kube-router applies.
type engineHarness struct {
	*nodetest.Network

	cluster *kubetest.Cluster
	kubectl string // a shell function
	markers byte   // made
	removed byte   // of these
}

// policyAgent is the address of the agents.
var policyAgent = netip.MustParseAddr("169.254.20.10")

func newEngineHarness(t *testing.T) *engineHarness {
	t.Helper()
	b := &engineHarness{Network: nodetest.Start(t, nodetest.Options{Pods: 8, NoIPv6: true})}
	program, err := kubetest.Program(t.Context(), "policies")
	assert.NoError(t, err)
	kube, err := kubetest.Program(t.Context(), "kube")
	assert.NoError(t, err)
	b.cluster = kubetest.Start(t, kubetest.Options{})
	b.kubectl = fmt.Sprintf("kubectl() { %s kubectl --kubeconfig %s \"$@\"; }\n", kube, b.cluster.Kubeconfig(kubetest.Admin))
	node := kubetest.Node("node1", "a")
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: b.Node.IPv4.String()}}
	kubetest.Apply(t, b.cluster, node)
	var proxy *kubetest.Proxy
	assert.NoError(t, b.Node.Do(func() (err error) {
		proxy, err = kubetest.NewProxy(t.Context(), b.cluster.Address())
		return err
	}))
	t.Cleanup(proxy.Close)
	kubeconfig, err := b.cluster.KubeconfigAt(kubetest.Admin, proxy.Addr())
	assert.NoError(t, err)
	proctest.Start(t, "kube-router", b.Node.Command(t.Context(), program, kubeconfig, "node1", "10.96.0.0/16"))
	for key, value := range map[string]string{"net/ipv4/icmp_ratelimit": "0", "net/ipv4/icmp_msgs_per_sec": "1000000"} {
		assert.NoError(t, b.Node.Sysctl(key, value)) // the engine rejects by ICMP, which tells it from a lost packet
	}
	assert.NoError(t, b.Node.AddAddress(policyAgent))
	b.serve(t, b.Node, netip.AddrPortFrom(policyAgent, 53))
	for _, pod := range b.Pods[:policytest.DNSPods] {
		b.serve(t, pod, netip.AddrPortFrom(pod.IPv4, 53))
		b.serve(t, pod, netip.AddrPortFrom(pod.IPv4, 5353))
	}
	return b
}

func (b *engineHarness) serve(t *testing.T, h *nodetest.Host, addr netip.AddrPort) {
	t.Helper()
	server, err := nodetest.Serve(h, addr, "dns")
	assert.NoError(t, err)
	t.Cleanup(server.Close)
}

func markerName(n byte) string { return fmt.Sprintf("marker-%d", n) }

// await waits until the engine has applied all that was changed before: it has a policy, a pod and a namespace that are newer.
func (b *engineHarness) await(t *testing.T) {
	t.Helper()
	b.markers++
	name := markerName(b.markers)
	namespace := kubetest.Namespace(name)
	namespace.Labels = map[string]string{"marker": name}
	pod := kubetest.Pod{Namespace: name, Name: name, Node: "node1", IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 250, 0, b.markers})}}.Object()
	pod.Status.HostIP, pod.Status.HostIPs = b.Node.IPv4.String(), []corev1.HostIP{{IP: b.Node.IPv4.String()}}
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name},
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
			Egress:      []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: namespace.Labels}}}}},
		},
	}
	kubetest.Apply(t, b.cluster, namespace, pod)
	kubetest.Apply(t, b.cluster, policy)
	proctest.Eventually(t, 30*time.Second, "kube-router applies "+name, func() bool {
		rules, err := b.Node.Output(t.Context(), "iptables-save", "-t", "filter")
		return err == nil && strings.Contains(rules, "POD name:"+name+" ") && strings.Contains(rules, "policy name "+name+" ")
	})
}

// asks has a pod ask a server. It returns whether the server answers; the engine rejects what it denies.
func asks(pod *nodetest.Host, addr netip.AddrPort, network string) (answered bool, err error) {
	for range 3 { // a machine that is busy may lose a packet
		if _, err = nodetest.Ask(pod, addr, network); err == nil {
			return true, nil
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			return false, nil
		}
	}
	return false, err
}

// A done is what the engine does to the queries of a pod, over UDP and TCP.
type done struct{ before, after [2]bool }

// ask has every client ask every server.
func (b *engineHarness) ask(t *testing.T, port int32) []done {
	t.Helper()
	// A query from the port of an earlier one, to the same server, would be part of that one's flow, which the engine accepts.
	assert.NoError(t, b.Node.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
	all := make([]done, len(b.Pods))
	var g errgroup.Group
	for i := policytest.DNSPods; i < len(b.Pods); i++ {
		g.Go(func() error {
			for j, network := range []string{"udp", "tcp"} {
				for _, dns := range b.Pods[:policytest.DNSPods] {
					ok, err := asks(b.Pods[i], netip.AddrPortFrom(dns.IPv4, uint16(port)), network)
					if err != nil {
						return err
					}
					all[i].before[j] = all[i].before[j] || ok
				}
				var err error
				if all[i].after[j], err = asks(b.Pods[i], netip.AddrPortFrom(policyAgent, 53), network); err != nil {
					return err
				}
			}
			return nil
		})
	}
	assert.NoError(t, g.Wait())
	return all
}

// remove deletes the pods and the policies of a cluster, and those of await: while pods ask nothing may change, as the engine fills its sets
// in steps.
func (b *engineHarness) remove(t *testing.T, c *policytest.Cluster) {
	t.Helper()
	for _, n := range c.Namespaces {
		b.removeFrom(t, n.Name)
	}
	for ; b.removed < b.markers; b.removed++ {
		b.removeFrom(t, markerName(b.removed+1))
	}
}

func (b *engineHarness) removeFrom(t *testing.T, namespace string) {
	t.Helper()
	assert.NoError(t, b.cluster.Client().NetworkingV1().NetworkPolicies(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	assert.NoError(t, b.cluster.Client().CoreV1().Pods(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{}))
}

// A tally counts over all clusters.
type tally struct {
	pods, lost, undecided, missed, wrong, verdicts, differ, fixed int
}

// TestPoliciesOfRandomClusters compares what package dnspolicy says of random clusters with what kube-router does to the queries of pods,
// and runs the commands that it gives for those that lose DNS.
func TestPoliciesOfRandomClusters(t *testing.T) {
	t.Parallel()
	b := newEngineHarness(t)
	var sum tally
	clusters := proctest.OrdinaryOrSoak(10, 100)
	for seed := range uint64(clusters) {
		o := policytest.Options{Name: fmt.Sprintf("random-%d", seed), Node: "node1", Host: b.Node.IPv4, Agent: policyAgent}
		for _, p := range b.Pods {
			o.Pods = append(o.Pods, p.IPv4)
		}
		b.compare(t, policytest.Random(rand.New(rand.NewPCG(seed, 2)), o), &sum)
	}
	proctest.Figure(t, "%d clusters, %d pods, of which %d lose DNS: %d missed, %d false, %d not decided; of %d verdicts %d differ; after the commands %d of %d ask again",
		clusters, sum.pods, sum.lost, sum.missed, sum.wrong, sum.undecided, sum.verdicts, sum.differ, sum.fixed, sum.lost)
	if sum.missed+sum.wrong+sum.differ > 0 || sum.fixed < sum.lost || sum.lost < clusters/2 || sum.undecided > sum.pods/20 {
		t.Errorf("%+v", sum)
	}
}

func (b *engineHarness) compare(t *testing.T, c *policytest.Cluster, sum *tally) {
	t.Helper()
	objects := make([]runtime.Object, 0, len(c.Namespaces)+len(c.Pods)+len(c.Policies))
	for i := range c.Namespaces {
		objects = append(objects, &c.Namespaces[i])
	}
	kubetest.Apply(t, b.cluster, objects...)
	objects = objects[:0]
	for i := range c.Pods {
		objects = append(objects, &c.Pods[i])
	}
	for i := range c.Policies {
		objects = append(objects, &c.Policies[i])
	}
	kubetest.Apply(t, b.cluster, objects...)
	b.await(t)
	in := dnspolicy.Input{
		Engine: dnspolicy.Addresses, Namespaces: c.Namespaces, Pods: c.Pods, NetworkPolicies: c.Policies, DNS: c.DNS, Agents: []netip.Addr{policyAgent},
	}
	pods, err := dnspolicy.Evaluate(in)
	assert.NoError(t, err)
	does := b.ask(t, c.Port)
	var loses []int // pods that lose DNS
	for i := range pods {
		p := &pods[i]
		at := slices.IndexFunc(c.Pods, func(x corev1.Pod) bool { return x.Namespace == p.Namespace && x.Name == p.Name })
		if sum.add(t, p, does[at]) {
			loses = append(loses, at)
		}
	}
	b.fix(t, in, c, loses, sum)
	b.remove(t, c)
}

// add compares a pod, and reports whether it loses DNS.
func (s *tally) add(t *testing.T, p *dnspolicy.Pod, does done) (loses bool) {
	t.Helper()
	s.pods++
	for j := range does.before {
		loses = loses || does.before[j] && !does.after[j]
		for _, v := range []struct {
			said dnspolicy.Verdict
			does bool
		}{{p.Before[j], does.before[j]}, {p.After[j], does.after[j]}} {
			if v.said == dnspolicy.Unknown {
				continue
			}
			s.verdicts++
			if (v.said == dnspolicy.Allowed) != v.does {
				s.differ++
				t.Errorf("%s/%s: before %v, after %v; the engine: %v", p.Namespace, p.Name, p.Before, p.After, does)
			}
		}
	}
	said, certain := p.Lost()
	if loses {
		s.lost++
	}
	switch {
	case loses && !said:
		s.missed++
	case !loses && said && certain:
		s.wrong++
	case said && !certain:
		s.undecided++
	}
	return loses
}

// fix runs the commands for the pods that lose DNS.
func (b *engineHarness) fix(t *testing.T, in dnspolicy.Input, c *policytest.Cluster, loses []int, sum *tally) {
	t.Helper()
	findings, err := dnspolicy.Check(in)
	assert.NoError(t, err)
	if len(findings) == 0 {
		return
	}
	for i := range findings {
		if out, err := exec.CommandContext(t.Context(), "sh", "-c", b.kubectl+findings[i].Fix).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", findings[i].Fix, err, out)
		}
	}
	b.await(t)
	does := b.ask(t, c.Port)
	for _, i := range loses {
		if does[i].after == [2]bool{true, true} {
			sum.fixed++
		} else {
			t.Errorf("%s/%s has no DNS after the commands: %v", c.Pods[i].Namespace, c.Pods[i].Name, does[i])
		}
	}
}
