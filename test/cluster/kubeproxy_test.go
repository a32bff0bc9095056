// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
)

// The DNS service of these tests, and the port of its endpoints, on the upstream host.
var (
	dnsIPv4 = netip.MustParseAddr("10.96.0.10")
	dnsIPv6 = netip.MustParseAddr("fd00:10:96::a")
)

const endpointPort = 5353

// TestKubeProxy has pods ask the address of the DNS service on a node with kube-proxy, with and without an agent in
// transparent mode that answers hits in the kernel, and inspects the node while kube-proxy answers and when it does not.
func TestKubeProxy(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	c := kubetest.Start(t, kubetest.Options{})
	first := nodetest.Start(t, nodetest.Options{}) // its addresses are those of every network
	kubetest.Apply(t, c, append(dnsService(first.Upstream), kubetest.Namespace("kube-system"))...)
	for _, tt := range []struct {
		mode, backend string
		rules         string // as the evidence describes them
	}{
		{"nftables", "nftables", "table kube-proxy of nftables"},
		{"iptables", "iptables-nft", "chain KUBE-SERVICES of iptables-nft"},
		{"iptables", "iptables-legacy", "chain KUBE-SERVICES of iptables-legacy"},
	} {
		t.Run(tt.backend, func(t *testing.T) {
			t.Parallel()
			p := newProxied(t)
			o := kubetest.KubeProxyOptions{Mode: tt.mode, Enter: p.network.Node.Enter}
			if tt.mode == "iptables" {
				o.Programs = iptablesPrograms(t, tt.backend)
			}
			k, err := c.LaunchKubeProxy(t.Context(), t.TempDir(), o)
			assert.NoError(t, err)
			t.Cleanup(k.Close)
			p.test(t, tt.backend)
			want := dataplane.Found{
				Proxy: dataplane.Proxy(tt.mode), Backend: tt.backend, Reason: "kube-proxy uses " + tt.backend,
				Evidence: []string{"kube-proxy reports mode " + tt.mode, tt.rules + " for IPv4 and IPv6"},
			}
			if tt.mode == tt.backend {
				want.Reason = "kube-proxy uses it"
			}
			p.expectFound(t, want)
			assert.NoError(t, syscall.Kill(k.PID(), syscall.SIGSTOP))
			want.Evidence = want.Evidence[1:] // only its rules are left
			p.expectFound(t, want)
		})
	}
}

// expectFound waits until what is found on the node is right: kube-proxy reports that it is healthy before it has written a rule.
func (p *proxied) expectFound(t *testing.T, want dataplane.Found) {
	t.Helper()
	diff := ""
	proctest.Eventually(t, limit, "kube-proxy is found", func() bool {
		assert.NoError(t, p.network.Node.Do(func() error {
			got, err := dataplane.Find(t.Context(), nil)
			diff = cmp.Diff(want, got)
			return err
		}))
		return diff == ""
	}, func() string { return "found (-want +got):\n" + diff })
}

// iptablesPrograms is a folder in which iptables is the given variant.
func iptablesPrograms(t *testing.T, backend string) string {
	t.Helper()
	tool, err := exec.LookPath("/usr/sbin/xtables-" + strings.TrimPrefix(backend, "iptables-") + "-multi")
	if err != nil {
		t.Skip("no iptables: apt-get install iptables")
	}
	dir := t.TempDir()
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, name := range []string{family, family + "-save", family + "-restore"} {
			assert.NoError(t, os.Symlink(tool, filepath.Join(dir, name)))
		}
	}
	return dir
}

// dnsService are the service and its endpoints at the upstream host.
func dnsService(upstream *nodetest.Host) []runtime.Object {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "kube-system", Name: name} }
	both := corev1.IPFamilyPolicyRequireDualStack
	objects := []runtime.Object{&corev1.Service{ObjectMeta: meta("kube-dns"), Spec: corev1.ServiceSpec{
		ClusterIP: dnsIPv4.String(), ClusterIPs: []string{dnsIPv4.String(), dnsIPv6.String()}, IPFamilyPolicy: &both,
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		Ports: []corev1.ServicePort{
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromInt32(endpointPort)},
			{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53, TargetPort: intstr.FromInt32(endpointPort)},
		},
	}}}
	ready, port, udp, tcp, dns, dnsTCP := true, int32(endpointPort), corev1.ProtocolUDP, corev1.ProtocolTCP, "dns", "dns-tcp"
	for family, a := range map[discoveryv1.AddressType]netip.Addr{discoveryv1.AddressTypeIPv4: upstream.IPv4, discoveryv1.AddressTypeIPv6: upstream.IPv6} {
		slice := &discoveryv1.EndpointSlice{ObjectMeta: meta("kube-dns-" + strings.ToLower(string(family))), AddressType: family}
		slice.Labels = map[string]string{discoveryv1.LabelServiceName: "kube-dns"}
		slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{a.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}}
		slice.Ports = []discoveryv1.EndpointPort{{Name: &dns, Protocol: &udp, Port: &port}, {Name: &dnsTCP, Protocol: &tcp, Port: &port}}
		objects = append(objects, slice)
	}
	return objects
}

// proxied is a node with kube-proxy.
type proxied struct {
	network *nodetest.Network
	config  string
}

func newProxied(t *testing.T) *proxied {
	t.Helper()
	p := &proxied{network: nodetest.Start(t, nodetest.Options{}), config: filepath.Join(t.TempDir(), "node-cache.yaml")}
	up := p.network.Upstream
	for addr, name := range map[netip.AddrPort]string{
		netip.AddrPortFrom(up.IPv4, endpointPort): "central", netip.AddrPortFrom(up.IPv6, endpointPort): "central",
		netip.AddrPortFrom(up.IPv4, 5300): "agent",
	} {
		s, err := nodetest.Serve(up, addr, name)
		assert.NoError(t, err)
		t.Cleanup(s.Close)
	}
	proctest.WriteFile(t, p.config, fmt.Sprintf(`
listen: {addresses: [169.254.20.10, "fd00:20::10"], port: 53}
interface: {manage: true}
intercept: {manage: true, mode: transparent, services: [%q, %q]}
forward: [{zone: ., to: ["%s:5300"]}]
admin: {address: "169.254.20.10:9253"}
kernel: {hits: on}
`, dnsIPv4, dnsIPv6, up.IPv4))
	return p
}

// test has the agent come, go and die.
func (p *proxied) test(t *testing.T, backend string) {
	t.Helper()
	p.await(t, "central")
	for _, kill := range []bool{false, true} {
		a := proctest.Start(t, "node-cache agent", p.network.Node.Command(t.Context(), nodeCache, "agent", "--config", p.config))
		p.await(t, "agent")
		proctest.Eventually(t, limit, "the agent says that it uses "+backend, func() bool { return strings.Contains(a.Stderr.String(), backend) })
		p.all(t, "agent")
		meter := p.meter(t)
		proctest.Eventually(t, limit, "the kernel answers", func() bool { return p.kernelHits(t) > 0 })
		if kill {
			a.Kill()
		} else {
			p.interrupt(t, a)
		}
		took := passesTo(t, meter, "central", time.Now())
		p.all(t, "central")
		t.Logf("figure: kube-proxy, %s, transparent: killed %t, asked kube-proxy's endpoints after %s", backend, kill, took)
	}
}

// kernelHits returns the queries that the kernel has answered, as of the agent's last count.
func (p *proxied) kernelHits(t *testing.T) (hits int) {
	t.Helper()
	page, err := nodetest.Fetch(t.Context(), p.network.Node, http.MethodGet, "http://169.254.20.10:9253/status")
	assert.NoError(t, err)
	var s struct{ Kernel struct{ Hits int } }
	assert.NoError(t, json.Unmarshal([]byte(page), &s))
	return s.Kernel.Hits
}

// meter has a pod ask in both families, from a new port every 20 ms, so that no query waits for the one before.
func (p *proxied) meter(t *testing.T) []*nodetest.Meter {
	t.Helper()
	var meters []*nodetest.Meter
	for _, a := range []netip.Addr{dnsIPv4, dnsIPv6} {
		m, err := nodetest.StartMeter(nodetest.MeterConfig{
			Host: p.network.Pods[0], Target: netip.AddrPortFrom(a, 53), Loads: []nodetest.Load{{Network: "udp", Fresh: true, Rate: 50}},
		})
		assert.NoError(t, err)
		t.Cleanup(func() { m.Stop() })
		meters = append(meters, m)
	}
	return meters
}

// passesTo waits until who answers each of the meters, stops them, and gives how long after the agent's end the first of
// these queries was sent. A lease of 3 s and half a second after that end none may go without an answer. What counts is
// when a query was sent: how long it was waited for says nothing about the kernel.
func passesTo(t *testing.T, meters []*nodetest.Meter, who string, end time.Time) (took time.Duration) {
	t.Helper()
	const lapse = 3500 * time.Millisecond
	for _, m := range meters {
		proctest.Eventually(t, limit, who+" answers after the agent's end", func() bool {
			_, ok := m.FirstBy(0, who, end)
			return ok
		}, func() string { return m.Report().String() })
	}
	for _, m := range meters {
		report := m.Stop()
		first := slices.IndexFunc(report.Outcomes, func(o nodetest.Outcome) bool {
			return o.Result == nodetest.Answered && o.Who == who && !o.Sent.Before(end)
		})
		sent := report.Outcomes[first].Sent
		if late := report.Between(end.Add(lapse), sent); late.Sent() > 0 {
			t.Errorf("%s answers queries that are sent %s after the agent's end; of those sent after %s: %s", who, sent.Sub(end), lapse, late)
		}
		took = max(took, sent.Sub(end))
	}
	return took.Round(time.Millisecond)
}

func (p *proxied) interrupt(t *testing.T, a *proctest.Process) {
	t.Helper()
	a.Signal(syscall.SIGTERM)
	if err := a.Wait(t, time.Minute); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}

// await waits until who answers in both families.
func (p *proxied) await(t *testing.T, who string) {
	t.Helper()
	for _, a := range []netip.Addr{dnsIPv4, dnsIPv6} {
		var got string
		proctest.Eventually(t, limit, who+" answers at "+a.String(), func() bool {
			got, _ = nodetest.Ask(p.network.Pods[0], netip.AddrPortFrom(a, 53), "udp") // no answer yet
			return got == who
		}, func() string { return fmt.Sprintf("the answer is from %q", got) })
	}
}

// all asks from every pod and the node.
func (p *proxied) all(t *testing.T, who string) {
	t.Helper()
	for _, from := range append([]*nodetest.Host{p.network.Node}, p.network.Pods...) {
		for _, a := range []netip.Addr{dnsIPv4, dnsIPv6} {
			for _, network := range []string{"udp", "tcp"} {
				if got, err := nodetest.Ask(from, netip.AddrPortFrom(a, 53), network); got != who || err != nil {
					t.Errorf("%s asks %s over %s: answered by %q, %v; want %s", from.Name, a, network, got, err, who)
				}
			}
		}
	}
}
