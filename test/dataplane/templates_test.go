// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/dnspolicy"
)

// template is one of the project's policies.
func template(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile("../../daemonset/network-policies/" + file)
	assert.NoError(t, err)
	return string(text)
}

// netpol and cnp are a NetworkPolicy's and a CiliumNetworkPolicy's text for pod older, with rules for egress.
func netpol(rules string) string {
	return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: rules, namespace: default}\nspec: {podSelector: {matchLabels: {app: older}}, policyTypes: [Egress], egress: [" + rules + "]}\n"
}

func cnp(rules string) string {
	return "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: rules, namespace: default}\nspec: {endpointSelector: {matchLabels: {app: older}}, egress: [" + rules + "]}\n"
}

// pathOf is where the API server has an object.
func pathOf(o *unstructured.Unstructured) string {
	path := "/apis/" + o.GetAPIVersion()
	if o.GetNamespace() != "" {
		path += "/namespaces/" + o.GetNamespace()
	}
	resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
	return path + "/" + resource.Resource + "/" + o.GetName()
}

// TestPolicies compares what package dnspolicy says of policies with what Cilium does, and shows that the templates leave the rest alone.
func TestPolicies(t *testing.T) {
	r, older, younger := startSetting(t, setting{flags: strings.Join([]string{replace, native, noL7, masquerade, "--enable-host-firewall=true"}, " ")}, "")
	const (
		toDNS  = `{to: [{podSelector: {matchLabels: {app: dns}}}], ports: [{protocol: UDP, port: 53}]}`
		toHost = `{toEntities: [host], toPorts: [{ports: [{port: "53"}]}]}`
	)
	tests := []struct {
		name     string
		policies []string
	}{
		{"none", nil},
		{"NetworkPolicy for DNS", []string{netpol(toDNS)}},
		{"port 53 anywhere", []string{netpol(`{ports: [{protocol: UDP, port: 53}]}`)}},
		{"ipBlock", []string{netpol(`{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}`)}},
		{"the template", []string{netpol(toDNS), template(t, "cilium.yaml")}},
		{"the template alone", []string{template(t, "cilium.yaml")}},
		{"both kinds", []string{netpol(toDNS), cnp(toHost)}},
		{"host", []string{cnp(toHost)}},
		{"cluster", []string{cnp(`{toEntities: [cluster]}`)}},
		{"world", []string{cnp(`{toEntities: [world]}`)}},
		{"remote nodes", []string{cnp(`{toEntities: [remote-node]}`)}},
		{"addresses", []string{cnp(`{toCIDR: [169.254.20.10/32, 10.0.0.0/8]}`)}},
		{"endpoints", []string{cnp(`{toEndpoints: [{matchLabels: {app: dns}}]}`)}},
		{"all endpoints", []string{cnp(`{toEndpoints: [{}]}`)}},
		{"reserved:host", []string{cnp(`{toEndpoints: [{matchLabels: {"reserved:host": ""}}]}`)}},
		{"an empty rule", []string{cnp(`{}`)}},
		{"ports", []string{cnp(`{toPorts: [{ports: [{port: "50", endPort: 60, protocol: UDP}]}]}`)}},
		{"denied", []string{cnp(`{toEntities: [all]}`), strings.NewReplacer("name: rules", "name: more", "egress: [", "egressDeny: [").Replace(cnp(toHost))}},
	}
	for _, tt := range tests {
		says := r.said(t, tt.policies)
		assert.NoError(t, r.apply(t, denialPath, strings.Replace(denial, "%s", older.Name, 1)))
		r.awaitVerdicts(t, tt.name+", before", older, dnspolicy.Denied, dnspolicy.Denied)
		paths := make([]string, 0, len(tt.policies))
		for _, text := range tt.policies {
			o := objectOf(t, text)
			assert.NoError(t, r.apply(t, pathOf(o), text))
			paths = append(paths, pathOf(o))
		}
		r.remove(t, denialPath)
		r.awaitVerdicts(t, tt.name, older, says.Before[0], says.After[0])
		if tt.name == "the template alone" {
			who, err := nodetest.Ask(younger.Host, netip.AddrPortFrom(r.Upstream.IPv4, 5300), "udp")
			if err != nil || who != byAgent {
				t.Errorf("%s: a pod cannot reach a server of the world: %v", tt.name, err)
			}
		}
		for _, path := range paths {
			r.remove(t, path)
		}
	}
	proctest.Figure(t, "%d sets of policies: Cilium does as said", len(tests))

	closed := strings.NewReplacer(`"53"`, `"54"`, "name: node-cache-host", "name: closed").Replace(template(t, "cilium-host-firewall.yaml"))
	assert.NoError(t, r.apply(t, pathOf(objectOf(t, closed)), closed))
	r.awaitVerdicts(t, "a policy for nodes", older, dnspolicy.Allowed, dnspolicy.Denied)
	assert.Equal(t, "said of it", dnspolicy.Unknown, r.said(t, []string{closed}).After[0])
	open := template(t, "cilium-host-firewall.yaml")
	assert.Equal(t, "said of the template", dnspolicy.Allowed, r.said(t, []string{closed, open}).After[0])
	assert.NoError(t, r.apply(t, pathOf(objectOf(t, open)), open))
	r.awaitVerdicts(t, "the template for nodes", older, dnspolicy.Allowed, dnspolicy.Allowed)
}

// denialPath is where the policy of [denial] is.
const denialPath = "/apis/cilium.io/v2/namespaces/default/ciliumnetworkpolicies/denied"

func objectOf(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	assert.NoError(t, yaml.Unmarshal([]byte(text), &o.Object))
	return o
}

// said is what package dnspolicy says of policies to pod older.
func (r *rig) said(t *testing.T, policies []string) dnspolicy.Pod {
	t.Helper()
	in := dnspolicy.Input{Engine: dnspolicy.Cilium, Agents: []netip.Addr{agentAddr}}
	client := r.cluster.Client()
	namespaces, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	assert.NoError(t, err)
	pods, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	assert.NoError(t, err)
	slicesOfDNS, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
	assert.NoError(t, err)
	in.Namespaces, in.Pods, in.DNS = namespaces.Items, pods.Items, slicesOfDNS.Items
	for _, text := range policies {
		o := objectOf(t, text)
		if o.GetKind() != "NetworkPolicy" {
			in.Others = append(in.Others, *o)
			continue
		}
		var p networkingv1.NetworkPolicy
		assert.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p))
		in.NetworkPolicies = append(in.NetworkPolicies, p)
	}
	all, err := dnspolicy.Evaluate(in)
	assert.NoError(t, err)
	return all[slices.IndexFunc(all, func(p dnspolicy.Pod) bool { return p.Name == "older" })]
}

// awaitVerdicts waits until Cilium does to the queries of a pod, to the fallback and to the agent, what is said, and still does it after a
// while: it applies policies within that.
func (r *rig) awaitVerdicts(t *testing.T, what string, from *pod, before, after dnspolicy.Verdict) {
	t.Helper()
	const asks, lasts = 300 * time.Millisecond, 1500 * time.Millisecond
	done := func(addr netip.AddrPort) dnspolicy.Verdict {
		ctx, cancel := context.WithTimeout(t.Context(), asks)
		defer cancel()
		conn, err := from.Dial(ctx, "udp", addr.String())
		if err != nil {
			return dnspolicy.Denied
		}
		defer func() { _ = conn.Close() }()
		if _, _, err = new(dns.Client).ExchangeWithConnContext(ctx, new(dns.Msg).SetQuestion("example.com.", dns.TypeA), &dns.Conn{Conn: conn}); err != nil {
			return dnspolicy.Denied
		}
		return dnspolicy.Allowed
	}
	var got [2]dnspolicy.Verdict
	var since time.Time
	for end := time.Now().Add(limit); time.Now().Before(end); {
		got = [2]dnspolicy.Verdict{done(netip.AddrPortFrom(r.fallback.ip, 53)), done(r.target)}
		switch {
		case got != [2]dnspolicy.Verdict{before, after}:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > lasts:
			return
		}
	}
	t.Errorf("%s: Cilium does %v, said %v", what, got, [2]dnspolicy.Verdict{before, after})
}
