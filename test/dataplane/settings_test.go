// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// A setting is a configuration of Cilium, and what is known not to work with it.
type setting struct {
	name      string
	module    string // below test; empty: currentCilium
	flags     string
	policy    string // allows pods to query the node, and denies them its other ports
	backend   string // of the agent's rules; empty: nftables
	noAnswers string // why the agent does not answer pods, and neither does the fallback
	noHits    string // why the kernel does not answer
	doctor    string // what the doctor says of the address; empty: it is local to Cilium
}

// Flags of several settings.
const (
	replace = "--kube-proxy-replacement=true"
	native  = "--routing-mode=native --ipv4-native-routing-cidr=10.244.0.0/16"
	noL7    = "--enable-l7-proxy=false"

	masquerade = "--enable-bpf-masquerade=true"

	// For pods that query the Service. Cilium also translates at the sockets of pods, by their control groups. The pods here have none.
	sockets = "--bpf-lb-sock-hostns-only=true"
)

// hostPolicy is for the node.
const hostPolicy = `apiVersion: cilium.io/v2
kind: CiliumClusterwideNetworkPolicy
metadata: {name: dns}
spec:
  nodeSelector: {}
  ingress:
  - fromEntities: [cluster]
    toPorts: [{ports: [{port: "53", protocol: ANY}]}]
`

// proxyPolicy is for pods, whose queries Cilium's proxy then sends, as it must to learn the addresses of names.
const proxyPolicy = `apiVersion: cilium.io/v2
kind: CiliumClusterwideNetworkPolicy
metadata: {name: dns}
spec:
  endpointSelector: {matchExpressions: [{key: app, operator: NotIn, values: [dns]}]}
  egress:
  - toEntities: [host]
    toPorts: [{ports: [{port: "53", protocol: ANY}], rules: {dns: [{matchPattern: "*"}]}}]
`

// knownScope is why the agent does not answer: the address has scope host (254), and that Cilium takes addresses up to 252.
const knownScope = "Cilium before 1.19 does not take the agent's address for one of the node's: local-max-addr-scope: 254"

// knownEgress is why the kernel does not answer: it sees no reply of the agent's, so it permits no pod. /status says so.
const knownEgress = "with endpoint routes Cilium's program at egress ends the chain before the agent's"

// knownProxy is why the kernel does not answer: the same, because the proxy's socket sends the replies.
const knownProxy = "the replies come from Cilium's proxy, which has to see them all"

// settings returns those that differ in the way of a pod's packet.
func settings() []setting {
	join := func(flags ...string) string { return strings.Join(flags, " ") }
	noConntrack := join(replace, native, noL7, masquerade, "--install-no-conntrack-iptables-rules=true")
	hostFirewall := join(replace, native, noL7, masquerade, "--enable-host-firewall=true")
	proxy := join(replace, native, masquerade, "--enable-l7-proxy=true --external-envoy-proxy=true")
	return []setting{
		{name: "BPF host routing", flags: join(replace, native, noL7, masquerade)},
		{
			name: "legacy host routing, endpoint routes", noHits: knownEgress,
			flags: join(replace, native, noL7, "--enable-host-legacy-routing=true --enable-endpoint-routes=true --enable-ipv4-masquerade=false"),
		},
		{name: "beside kube-proxy", flags: join("--kube-proxy-replacement=false", native, noL7)},
		{
			name:  "vxlan, host firewall",
			flags: join(replace, noL7, masquerade, "--routing-mode=tunnel --tunnel-protocol=vxlan --enable-host-firewall=true"),
		},
		{name: "no conntrack rules", flags: noConntrack},
		{name: "no conntrack rules, iptables", flags: noConntrack, backend: "iptables"},
		{name: "host policy for port 53", flags: hostFirewall, policy: hostPolicy},
		{name: "host policy for port 53, iptables", flags: hostFirewall, policy: hostPolicy, backend: "iptables"},
		{name: "1.15, BPF host routing", module: olderCilium, flags: join(replace, native, noL7, masquerade), noAnswers: knownScope},
		{name: "1.15, BPF host routing, local-max-addr-scope", module: olderCilium, flags: join(replace, native, noL7, masquerade, "--local-max-addr-scope=254")},
		{
			name: "1.15, legacy host routing", module: olderCilium, doctor: "not take it for an address of the node: policies take it for the world",
			flags: join(replace, native, noL7, "--enable-host-legacy-routing=true --enable-ipv4-masquerade=false"),
		},
		{name: "L7 proxy", flags: proxy},
		{name: "L7 proxy, policy for names", flags: proxy, policy: proxyPolicy, noHits: knownProxy},
		{name: "L7 proxy, policy for names, iptables", flags: proxy, policy: proxyPolicy, backend: "iptables"},
	}
}

// described returns what the doctor says of the setting.
func (s *setting) described() []string {
	has := func(flag, yes, no string) string {
		if strings.Contains(s.flags, flag) {
			return yes
		}
		return no
	}
	return []string{
		has(replace, "in place of kube-proxy", "beside kube-proxy"), has("vxlan", "tunnel cilium_vxlan", "native routing"),
		has(masquerade, "; BPF host routing", "; legacy host routing"), has("--enable-host-firewall=true", "host firewall on", "host firewall off"),
		has("--install-no-conntrack-iptables-rules=true", "; pods are exempt from conntrack in iptables-", "; no rule exempts pods from conntrack"),
	}
}

// startSetting starts a rig with Cilium in a setting, and an agent that answers two pods. The second is younger than the agent.
func startSetting(t *testing.T, s setting, extra string) (r *rig, older, younger *pod) {
	t.Helper()
	r = newRig(t, cmp.Or(s.module, currentCilium), strings.Fields(s.flags)...)
	r.sees = s.noAnswers != ""
	r.configure(t, agentAddr, fmt.Sprintf(`interface: {manage: true, kind: lo}
intercept: {manage: true, backend: %s, lease: %s}
%s`, cmp.Or(s.backend, "nftables"), lease, extra))
	older = r.newPod(t, "older")
	r.launch(t)
	r.awaitServing(t)
	if s.noAnswers == "" {
		took := proctest.Eventually(t, addressesLimit, "the agent answers a pod", func() bool {
			who, _ := nodetest.Ask(older.Host, r.target, "udp")
			return who == byAgent
		})
		proctest.Figure(t, "the first answer after %s", ms(took))
	}
	if s.policy != "" {
		r.applyPolicy(t, older, s.policy)
	}
	return r, older, r.newPod(t, "younger")
}

// TestSettings has pods ask the agent in each setting, while it serves and while it does not.
func TestSettings(t *testing.T) {
	for _, s := range settings() {
		t.Run(s.name, func(t *testing.T) {
			r, older, younger := startSetting(t, s, "")
			if s.noAnswers != "" {
				r.expectLost(t)
				r.expectNoAnswers(t, older, s.noAnswers)
				return
			}
			r.expectAnswers(t, older)
			r.expectAnswers(t, younger)
			r.expectNotLost(t)
			r.expectNoProblems(t)
			r.expectDoctor(t, append(s.described(), cmp.Or(s.doctor, "Cilium takes it for an address of the node"))...)
			r.expectFallback(t, older, syscall.SIGKILL)
			r.expectFallback(t, younger, syscall.SIGSTOP)
			r.expectFallback(t, older, syscall.SIGTERM)
			r.expectHandOver(t, younger)
			r.expectDenied(t, older, younger, 0)
			r.expectManyPods(t)
			r.expectNoProblems(t)
		})
	}
}
