// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/policytest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/dnspolicy"
)

type object = map[string]any

// ciliumPolicies makes random policies of Cilium's.
type ciliumPolicies struct {
	*rand.Rand

	cluster *policytest.Cluster
}

func (g *ciliumPolicies) chance(p float64) bool { return g.Float64() < p }

func choose[T any](g *ciliumPolicies, all ...T) T { return all[g.IntN(len(all))] }

// make returns a policy of a namespace, or of the cluster if that is empty.
func (g *ciliumPolicies) make(namespace, name string, ofDNS bool) unstructured.Unstructured {
	spec := object{"endpointSelector": choose(g, object{}, object{"matchLabels": object{"app": choose(g, "a", "b", "c")}}, g.expression())}
	direction := "egress"
	if ofDNS {
		direction = "ingress"
	}
	for _, list := range []string{direction, direction + "Deny"} {
		var rules []any
		for range g.IntN(3) {
			if rule := g.rule(direction); list == direction || len(rule) > 0 && g.chance(0.3) {
				rules = append(rules, rule)
			}
		}
		if rules != nil {
			spec[list] = rules
		}
	}
	if len(spec) == 1 {
		spec[direction] = []any{object{}}
	}
	if g.chance(0.3) {
		spec["enableDefaultDeny"] = object{direction: g.chance(0.4)}
	}
	kind, metadata := "CiliumClusterwideNetworkPolicy", object{"name": name, "uid": name}
	if namespace != "" {
		kind, metadata["namespace"] = "CiliumNetworkPolicy", namespace
	}
	return unstructured.Unstructured{Object: object{"apiVersion": "cilium.io/v2", "kind": kind, "metadata": metadata, "spec": spec}}
}

func (g *ciliumPolicies) expression() object {
	e := object{"key": choose(g, "app", "tier"), "operator": choose(g, "Exists", "DoesNotExist")}
	if g.chance(0.5) {
		e["operator"], e["values"] = choose(g, "In", "NotIn"), []any{choose(g, "a", "b", "x")}
	}
	return object{"matchExpressions": []any{e}}
}

func (g *ciliumPolicies) rule(direction string) object {
	r, end := object{}, map[string]string{"egress": "to", "ingress": "from"}[direction]
	switch g.IntN(6) {
	case 0:
	case 1, 2:
		r[end+"Entities"] = []any{choose(g, "all", "cluster", "host", "world", "remote-node"), choose(g, "world", "remote-node", "health")}
	case 3:
		r[end+"CIDR"] = []any{choose(g, "0.0.0.0/0", "169.254.20.10/32", "10.0.0.0/8")}
	default:
		dns := g.cluster.Namespaces[0].Name
		var list []any
		for range g.IntN(3) {
			list = append(list, choose(g, object{}, g.expression(),
				object{"matchLabels": object{"k8s-app": "kube-dns"}},
				object{"matchLabels": object{"k8s:io.kubernetes.pod.namespace": dns, "any:k8s-app": "kube-dns"}},
				object{"matchLabels": object{"io.kubernetes.pod.namespace": choose(g, g.cluster.Namespaces...).Name}},
				object{"matchLabels": object{"io.cilium.k8s.namespace.labels." + corev1.LabelMetadataName: dns}},
				object{"matchLabels": object{"io.cilium.k8s.namespace.labels.app": choose(g, "a", "b", "c")}},
				object{"matchLabels": object{"reserved:host": ""}}))
		}
		r[end+"Endpoints"] = append([]any{}, list...)
	}
	if g.chance(0.5) {
		port := object{"port": choose(g, "53", "53", fmt.Sprint(g.cluster.Port), "443")}
		if g.chance(0.7) {
			port["protocol"] = choose(g, "UDP", "UDP", "TCP", "ANY")
		}
		if g.chance(0.2) {
			port["port"], port["endPort"] = "50", choose(g, 60, 6000)
		}
		r["toPorts"] = []any{object{"ports": []any{port}}}
	}
	return r
}

// asAPIServer fills in what an API server does, and takes named ports away: Cilium learns them from the pods.
func asAPIServer(p *networkingv1.NetworkPolicy) {
	p.APIVersion, p.Kind, p.UID = "networking.k8s.io/v1", "NetworkPolicy", "uid"
	if p.Spec.PolicyTypes == nil {
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
	fill := func(ports []networkingv1.NetworkPolicyPort) {
		for i := range ports {
			if ports[i].Protocol == nil {
				ports[i].Protocol = new(corev1.ProtocolTCP)
			}
			if ports[i].Port != nil && ports[i].Port.Type == intstr.String {
				ports[i].Port = new(intstr.FromInt32(53))
			}
		}
	}
	for _, r := range p.Spec.Egress {
		fill(r.Ports)
	}
	for _, r := range p.Spec.Ingress {
		fill(r.Ports)
	}
}

// identity is the labels that Cilium has of a pod.
func identity(c *policytest.Cluster, p *corev1.Pod) map[string]string {
	all := map[string]string{"io.kubernetes.pod.namespace": p.Namespace, "io.cilium.k8s.policy.cluster": "default", "io.cilium.k8s.policy.serviceaccount": "default"}
	maps.Copy(all, p.Labels)
	for _, n := range c.Namespaces {
		for k, v := range n.Labels {
			if n.Name == p.Namespace {
				all["io.cilium.k8s.namespace.labels."+k] = v
			}
		}
	}
	return all
}

// A policyCase is what Cilium's code is asked.
type policyCase struct {
	Pods     []map[string]string
	Policies []any
	Flows    []policyFlow
}

type policyFlow struct {
	From, To int // a pod by its number; -1 is the node
	UDP      bool
	Port     int32
}

// TestPoliciesOfRandomClusters compares what package dnspolicy says of random clusters with what Cilium's own code says.
func TestPoliciesOfRandomClusters(t *testing.T) {
	program, err := kubetest.Program(t.Context(), currentCilium+"/policy")
	assert.NoError(t, err)
	clusters := uint64(proctest.OrdinaryOrSoak(300, 3000))
	var cases bytes.Buffer
	var inputs []dnspolicy.Input
	for seed := range clusters {
		in, one := randomCilium(seed)
		inputs = append(inputs, in)
		assert.NoError(t, json.NewEncoder(&cases).Encode(one))
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Stdin = &cases
	out, err := cmd.Output()
	if exit := new(exec.ExitError); err != nil {
		_ = errors.As(err, &exit)
		t.Fatalf("%v: %s", err, exit.Stderr)
	}
	verdicts := json.NewDecoder(bytes.NewReader(out))
	compared, unknown, lost := 0, 0, 0
	for seed, in := range inputs {
		var does []bool // for each pod over UDP and TCP: to each pod of DNS, and to the node
		assert.NoError(t, verdicts.Decode(&does))
		pods, err := dnspolicy.Evaluate(in)
		assert.NoError(t, err)
		for i := range pods {
			for j := range pods[i].Before {
				dns, node := slices.Contains(does[:policytest.DNSPods], true), does[policytest.DNSPods]
				does = does[policytest.DNSPods+1:]
				if dns && !node {
					lost++
				}
				for what, v := range map[string]struct {
					said dnspolicy.Verdict
					does bool
				}{"before": {pods[i].Before[j], dns}, "after": {pods[i].After[j], node}} {
					compared++
					if v.said == dnspolicy.Unknown {
						unknown++
					} else if (v.said == dnspolicy.Allowed) != v.does {
						text, _ := json.MarshalIndent(in.Others, "", " ")
						t.Errorf("seed %d: %s/%s %s: %s, Cilium: %t\n%s", seed, pods[i].Namespace, pods[i].Name, what, v.said, v.does, text)
					}
				}
			}
		}
	}
	proctest.Figure(t, "%d clusters, %d verdicts, %d of them not decided; %d times a pod loses DNS over a protocol", clusters, compared, unknown, lost)
	if unknown > compared/50 || lost < int(clusters)/4 {
		t.Errorf("too few or too many: %d not decided, %d lost", unknown, lost)
	}
}

// randomCilium is a cluster with policies of both kinds, and what Cilium's code is to be asked of it.
func randomCilium(seed uint64) (dnspolicy.Input, policyCase) {
	r := rand.New(rand.NewPCG(seed, 4))
	o := policytest.Options{Name: "random", Node: nodeName, Host: netip.MustParseAddr("10.10.0.11"), Agent: agentAddr}
	for i := range byte(6) {
		o.Pods = append(o.Pods, netip.AddrFrom4([4]byte{10, 244, 0, 10 + i}))
	}
	c := policytest.Random(r, o)
	if r.IntN(2) == 0 {
		c.Policies = nil
	}
	g := &ciliumPolicies{r, c}
	in := dnspolicy.Input{Engine: dnspolicy.Cilium, Namespaces: c.Namespaces, Pods: c.Pods, DNS: c.DNS, Agents: []netip.Addr{agentAddr}}
	for i, n := range c.Namespaces {
		for j := range g.IntN(3) {
			if i > 0 || g.chance(0.2) {
				in.Others = append(in.Others, g.make(n.Name, fmt.Sprintf("cnp-%d-%d", i, j), i == 0))
			}
		}
	}
	if g.chance(0.3) {
		in.Others = append(in.Others, g.make("", "ccnp", false))
	}
	var one policyCase
	for i := range c.Policies {
		asAPIServer(&c.Policies[i])
		one.Policies = append(one.Policies, c.Policies[i])
	}
	in.NetworkPolicies = c.Policies
	for _, p := range in.Others {
		one.Policies = append(one.Policies, p.Object)
	}
	for i := range o.Pods {
		one.Pods = append(one.Pods, identity(c, &c.Pods[i]))
		for _, udp := range []bool{true, false} {
			if i < policytest.DNSPods {
				continue
			}
			for to := range policytest.DNSPods {
				one.Flows = append(one.Flows, policyFlow{i, to, udp, c.Port})
			}
			one.Flows = append(one.Flows, policyFlow{i, -1, udp, 53})
		}
	}
	return in, one
}
