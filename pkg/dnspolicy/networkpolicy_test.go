// SPDX-License-Identifier: Apache-2.0

package dnspolicy_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/policytest"
	"github.com/nodecache/node-cache/pkg/dnspolicy"
)

var (
	agentAddr = netip.MustParseAddr("169.254.20.10")
	nodeAddr  = netip.MustParseAddr("10.10.0.11")
)

// randomInput is a cluster whose policies match addresses.
func randomInput(seed uint64) (*policytest.Cluster, dnspolicy.Input) {
	o := policytest.Options{Name: "random", Node: "node1", Host: nodeAddr, Agent: agentAddr}
	for i := range byte(8) {
		o.Pods = append(o.Pods, netip.AddrFrom4([4]byte{10, 244, 0, 10 + i}))
	}
	c := policytest.Random(rand.New(rand.NewPCG(seed, 1)), o)
	return c, dnspolicy.Input{
		Engine: dnspolicy.Addresses, Namespaces: c.Namespaces, Pods: c.Pods, NetworkPolicies: c.Policies, DNS: c.DNS, Agents: []netip.Addr{agentAddr},
	}
}

// FuzzNetworkPolicies compares with an oracle that reads the specification word for word.
func FuzzNetworkPolicies(f *testing.F) {
	for seed := range uint64(300) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		c, in := randomInput(seed)
		pods, err := dnspolicy.Evaluate(in)
		assert.NoError(t, err)
		assert.Equal(t, "pods", len(c.Pods)-policytest.DNSPods-4, len(pods))
		for i := range pods {
			p := &pods[i]
			from := &c.Pods[slices.IndexFunc(c.Pods, func(x corev1.Pod) bool { return x.Namespace == p.Namespace && x.Name == p.Name })]
			for j, protocol := range []corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolTCP} {
				dns := false
				for k := range policytest.DNSPods {
					to := &c.Pods[k]
					dns = dns || allowed(c, from, from, to, to.Status.PodIP, networkingv1.PolicyTypeEgress, protocol, c.Port) &&
						allowed(c, to, from, to, to.Status.PodIP, networkingv1.PolicyTypeIngress, protocol, c.Port)
				}
				agent := allowed(c, from, from, nil, agentAddr.String(), networkingv1.PolicyTypeEgress, protocol, 53)
				for what, v := range map[string]struct {
					got  dnspolicy.Verdict
					want bool
				}{"before": {p.Before[j], dns}, "after": {p.After[j], agent}} {
					if v.got != dnspolicy.Unknown && (v.got == dnspolicy.Allowed) != v.want {
						t.Errorf("seed %d: %s/%s %s the switch over %s: %s, want allowed: %t", seed, p.Namespace, p.Name, what, protocol, v.got, v.want)
					}
				}
			}
		}
	})
}

// allowed is the oracle: whether the policies of one type of a pod allow what goes from one pod to another, or to an address.
func allowed(c *policytest.Cluster, of, from, to *corev1.Pod, addr string, kind networkingv1.PolicyType, protocol corev1.Protocol, port int32) bool {
	isolated := false
	other, otherAddr := to, addr
	if kind == networkingv1.PolicyTypeIngress {
		other, otherAddr = from, from.Status.PodIP
	}
	for i := range c.Policies {
		p := &c.Policies[i]
		types := p.Spec.PolicyTypes
		if types == nil {
			types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
			if len(p.Spec.Egress) > 0 {
				types = append(types, networkingv1.PolicyTypeEgress)
			}
		}
		if p.Namespace != of.Namespace || !slices.Contains(types, kind) || !matches(&p.Spec.PodSelector, of.Labels) {
			continue
		}
		isolated = true
		rules := p.Spec.Egress
		if kind == networkingv1.PolicyTypeIngress {
			rules = nil
			for _, r := range p.Spec.Ingress {
				rules = append(rules, networkingv1.NetworkPolicyEgressRule{To: r.From, Ports: r.Ports})
			}
		}
		for _, r := range rules {
			peer := len(r.To) == 0
			for _, one := range r.To {
				peer = peer || peerIs(c, p.Namespace, &one, other, otherAddr)
			}
			ports := len(r.Ports) == 0
			for _, one := range r.Ports {
				ports = ports || portIs(&one, to, protocol, port)
			}
			if peer && ports {
				return true
			}
		}
	}
	return !isolated
}

func peerIs(c *policytest.Cluster, namespace string, peer *networkingv1.NetworkPolicyPeer, pod *corev1.Pod, addr string) bool {
	if b := peer.IPBlock; b != nil {
		for _, e := range b.Except {
			if in(e, addr) {
				return false
			}
		}
		return in(b.CIDR, addr)
	}
	if pod == nil || peer.PodSelector != nil && !matches(peer.PodSelector, pod.Labels) {
		return false
	}
	if peer.NamespaceSelector == nil {
		return pod.Namespace == namespace
	}
	for _, n := range c.Namespaces {
		if n.Name == pod.Namespace {
			return matches(peer.NamespaceSelector, n.Labels)
		}
	}
	return false
}

// in compares the first bits, one by one.
func in(cidr, addr string) bool {
	p, a := netip.MustParsePrefix(cidr), netip.MustParseAddr(addr).As4()
	for bit := range p.Bits() {
		mask := byte(0x80) >> (bit % 8)
		if p.Addr().As4()[bit/8]&mask != a[bit/8]&mask {
			return false
		}
	}
	return true
}

func portIs(p *networkingv1.NetworkPolicyPort, to *corev1.Pod, protocol corev1.Protocol, port int32) bool {
	switch {
	case p.Protocol == nil && protocol != corev1.ProtocolTCP, p.Protocol != nil && *p.Protocol != protocol:
		return false
	case p.Port == nil:
		return true
	case p.EndPort != nil:
		return p.Port.IntVal <= port && port <= *p.EndPort
	case p.Port.StrVal == "":
		return p.Port.IntVal == port
	case to == nil:
		return false
	}
	for _, one := range to.Spec.Containers[0].Ports {
		if one.Name == p.Port.StrVal && one.Protocol == protocol && one.ContainerPort == port {
			return true
		}
	}
	return false
}

func matches(s *metav1.LabelSelector, labels map[string]string) bool {
	for k, v := range s.MatchLabels {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		got, ok := labels[e.Key]
		listed := ok && slices.Contains(e.Values, got)
		switch want := string(e.Operator); {
		case want == "In" && !listed, want == "NotIn" && listed, want == "Exists" && !ok, want == "DoesNotExist" && ok:
			return false
		}
	}
	return true
}

// TestRandomClusters shows that the random clusters have what the comparisons are for.
func TestRandomClusters(t *testing.T) {
	t.Parallel()
	verdicts, lose, unknown := map[string]int{}, 0, 0
	for seed := range uint64(300) {
		_, in := randomInput(seed)
		pods, err := dnspolicy.Evaluate(in)
		assert.NoError(t, err)
		for i := range pods {
			for j := range pods[i].Before {
				verdicts[fmt.Sprint(pods[i].Before[j], pods[i].After[j])]++
				if pods[i].Before[j] == dnspolicy.Unknown || pods[i].After[j] == dnspolicy.Unknown {
					unknown++
				}
			}
			if lost, _ := pods[i].Lost(); lost {
				lose++
			}
		}
	}
	t.Logf("pods that lose DNS: %d of 1800; verdicts before and after: %v", lose, verdicts)
	if lose < 100 || unknown > 360 || len(verdicts) < 6 {
		t.Errorf("too few or too many: lose %d, unknown %d", lose, unknown)
	}
}
