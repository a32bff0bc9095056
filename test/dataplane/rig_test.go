// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
)

const (
	nodeName = "node1"
	nodeLink = "up0" // the node's, towards the upstream host
	podCIDR  = "10.244.0.0/24"
)

// limit bounds the wait for an event. A machine that runs other tests beside this one is slow.
const limit = 30 * time.Second

// Who answers: what comes through the agent is the answer of the server that it forwards to.
const (
	byAgent    = "agent"
	byFallback = "fallback"
)

var (
	agentAddr   = netip.MustParseAddr("169.254.20.10")
	serviceAddr = nodetest.ServiceIPv4() // of kube-dns
)

// A rig is a node with Cilium, a control plane and a fallback.
type rig struct {
	*nodetest.Network

	cluster    *kubetest.Cluster
	host       *nodetest.Host // where the agent runs: the node, unless a test says otherwise
	kubeconfig string         // works on that host
	cilium     *cilium
	fallback   *pod
	target     netip.AddrPort // what pods ask
	config     string         // of the agent
	sees       bool           // the agent sees Cilium's files
	agent      *proctest.Process
}

// A pod is a network namespace that is an endpoint of Cilium's.
type pod struct {
	*nodetest.Host

	ip   netip.Addr
	spec corev1.PodSpec // as the API server has it
}

// newRig starts everything but the agent, until the test ends: with the Cilium of a module below test, and flags for it.
func newRig(t *testing.T, module string, flags ...string) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	p := buildPrograms(t, module)
	expectNothingLeft(t)
	r := &rig{target: netip.AddrPortFrom(agentAddr, 53), Network: nodetest.Start(t, nodetest.Options{NoPods: true, NoIPv6: true}), cluster: kubetest.Start(t, kubetest.Options{})}
	r.host, r.kubeconfig = r.Node, r.kubeconfigOn(t, r.Node)
	r.defineResources(t, filepath.Join(p.sources, "pkg/k8s/apis/cilium.io/client/crds/v2*/*.yaml"))
	node := kubetest.Node(nodeName, "a")
	node.Spec.PodCIDR, node.Spec.PodCIDRs = podCIDR, []string{podCIDR}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: r.Node.IPv4.String()}}
	kubetest.Apply(t, r.cluster, node)
	r.cilium = &cilium{programs: p, rig: r, mounts: newMountSpace(t, r.Node), library: p.copySources(t), flags: flags}
	r.cilium.agent = filepath.Join(r.cilium.library, "cilium-agent") // the doctor looks for a process of that name
	if module == olderCilium {
		p.adapt(t, r.cilium.library, r.cilium.agent, r.cilium.mounts)
	} else {
		assert.NoError(t, os.Symlink(p.agent, r.cilium.agent))
	}
	r.cilium.publish(t)
	r.cilium.start(t)
	r.serve(t)
	return r
}

// serve starts the upstream's server, and the fallback in a pod, which Service kube-dns has.
func (r *rig) serve(t *testing.T) {
	t.Helper()
	upstream, err := nodetest.Serve(r.Upstream, netip.AddrPortFrom(r.Upstream.IPv4, 5300), byAgent)
	assert.NoError(t, err)
	t.Cleanup(upstream.Close)
	r.fallback = r.newPod(t, "dns")
	r.publish(t, r.fallback)
}

// publish starts the fallback's server in a pod, and defines Service kube-dns, which has it.
func (r *rig) publish(t *testing.T, fallback *pod) {
	t.Helper()
	server, err := nodetest.Serve(fallback.Host, netip.AddrPortFrom(fallback.ip, 53), byFallback)
	assert.NoError(t, err)
	t.Cleanup(server.Close)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-dns"},
		Spec: corev1.ServiceSpec{ClusterIP: serviceAddr.String(), Ports: []corev1.ServicePort{
			{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP},
		}},
	}
	ready := true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: service.Namespace, Name: "kube-dns", Labels: map[string]string{discoveryv1.LabelServiceName: "kube-dns"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{fallback.ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}
	for _, p := range service.Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol})
	}
	kubetest.Apply(t, r.cluster, service, slice)
}

// newPod makes a pod of namespace default, with its name as its label app.
func (r *rig) newPod(t *testing.T, name string) *pod {
	t.Helper()
	return r.addPod(t, kubetest.Pod{Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{"app": name}})
}

// addPod makes a pod.
func (r *rig) addPod(t *testing.T, object kubetest.Pod) *pod {
	t.Helper()
	host, err := r.NewHost(object.Name)
	assert.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, host.Close()) })
	object.Node = nodeName
	kubetest.Apply(t, r.cluster, object.Object())
	p := &pod{Host: host, ip: r.cilium.add(t, object.Namespace, host)}
	object.IPs = []netip.Addr{p.ip}
	pods := r.cluster.Client().CoreV1().Pods(object.Namespace)
	made, err := pods.Get(t.Context(), object.Name, metav1.GetOptions{})
	assert.NoError(t, err)
	p.spec, made.Status = made.Spec, object.Object().Status
	_, err = pods.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
	assert.NoError(t, err)
	return p
}

// kubeconfigOn writes a kubeconfig that works on a host.
func (r *rig) kubeconfigOn(t *testing.T, host *nodetest.Host) string {
	t.Helper()
	var proxy *kubetest.Proxy
	assert.NoError(t, host.Do(func() (err error) {
		proxy, err = kubetest.NewProxy(t.Context(), r.cluster.Address())
		return err
	}))
	t.Cleanup(proxy.Close)
	path, err := r.cluster.KubeconfigAt(kubetest.Admin, proxy.Addr())
	assert.NoError(t, err)
	return path
}

// defineResources gives the API server resources, and waits until it serves them.
func (r *rig) defineResources(t *testing.T, pattern string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	assert.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		assert.NoError(t, err)
		var object metav1.PartialObjectMetadata
		assert.NoError(t, yaml.Unmarshal(text, &object))
		path := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + object.Name
		assert.NoError(t, r.apply(t, path, string(text)))
		proctest.Eventually(t, limit, object.Name+" is served", func() bool {
			text, _ := r.cluster.Client().Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(t.Context())
			var crd struct {
				Status struct{ Conditions []metav1.Condition }
			}
			_ = json.Unmarshal(text, &crd) // what is not there is not true
			for _, c := range crd.Status.Conditions {
				if c.Type == "Established" && c.Status == metav1.ConditionTrue {
					return true
				}
			}
			return false
		})
	}
}

// apply creates or changes the object at a path.
func (r *rig) apply(t *testing.T, path, text string) error {
	t.Helper()
	return r.cluster.Client().Discovery().RESTClient().Patch(types.ApplyYAMLPatchType).AbsPath(path).
		Param("fieldManager", "test").Param("force", "true").Body([]byte(text)).Do(t.Context()).Error()
}

// remove deletes the object at a path.
func (r *rig) remove(t *testing.T, path string) {
	t.Helper()
	assert.NoError(t, r.cluster.Client().Discovery().RESTClient().Delete().AbsPath(path).Do(t.Context()).Error())
}

// configure writes the agent's configuration: where it listens, and more.
func (r *rig) configure(t *testing.T, listen netip.Addr, more string) {
	t.Helper()
	folder, err := os.MkdirTemp("", "dataplane") //nolint:usetesting // t.TempDir is too long for a socket
	assert.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	r.config = proctest.WriteFile(t, filepath.Join(folder, "node-cache.yaml"), fmt.Sprintf(`listen: {addresses: [%[1]s], port: 53}
cluster: {resolver: local, kubeconfig: %[2]q, central: {service: kube-system/kube-dns}}
forward: [{zone: ., to: ["%[3]s:5300"]}]
admin: {address: "127.0.0.1:9253"}
handover: {socket: %[4]s/handover.sock}
snapshot: {folder: %[4]s}
%[5]s`, listen, r.kubeconfig, r.Upstream.IPv4, folder, more))
}

// launch starts the agent and does not wait for anything.
func (r *rig) launch(t *testing.T) {
	t.Helper()
	r.launchVersion(t, nodeCache)
}

// launchVersion starts the agent of a binary.
func (r *rig) launchVersion(t *testing.T, binary string) {
	t.Helper()
	r.agent = proctest.Start(t, "the agent", r.command(t.Context(), binary, "agent", "--config", r.config))
}

// command is a program where the agent runs.
func (r *rig) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	if r.sees {
		return r.cilium.mounts.command(ctx, name, args...)
	}
	return r.host.Command(ctx, name, args...)
}

// awaitServing waits until the agent holds its lease and answers the node.
func (r *rig) awaitServing(t *testing.T) {
	t.Helper()
	proctest.Eventually(t, limit, "the agent answers and holds its lease", func() bool {
		if r.agent.Ended() {
			t.Fatalf("the agent has ended: %v", r.agent.Err())
		}
		who, _ := nodetest.Ask(r.Node, netip.AddrPortFrom(agentAddr, 53), "udp")
		page := r.adminPage(t, "/metrics")
		return who == byAgent && strings.Contains(page, `lease_held{family="ipv4"} 1`) && strings.Contains(page, "intercept_rules_right 1\n")
	})
}

// adminPage is one of the agent's admin server; empty if it cannot be had.
func (r *rig) adminPage(t *testing.T, path string) string {
	t.Helper()
	page, _ := nodetest.Fetch(t.Context(), r.host, "GET", "http://127.0.0.1:9253"+path) // the agent may be away
	return page
}

// status is what the agent's /status says; empty if it cannot be had.
func (r *rig) status(t *testing.T) (s status.Status) {
	t.Helper()
	_ = json.Unmarshal([]byte(r.adminPage(t, "/status")), &s)
	return s
}
