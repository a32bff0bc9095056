// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// On every node.
const (
	containerdSocket = "/run/containerd/containerd.sock"
	containerdConfig = stateFolder + "/containerd.toml"
	kubeletConfig    = "/var/lib/kubelet/config.yaml" // where kubeadm has it
	cniFolder        = "/etc/cni/net.d"
)

// A Node is a machine with kubelet, containerd and kube-proxy, which are its services of these names.
type Node struct {
	*Host

	cluster *Cluster
	number  int // from 1
	cgroup  string
}

// startContainerd starts the container runtime and loads images.
func (n *Node) startContainerd(ctx context.Context) error {
	err := errors.Join(
		n.Write(containerdConfig, containerdText),
		n.Write(cniFolder+"/10-pods.conflist", n.cluster.options.network(n.number)),
		n.Start("containerd", n.cluster.programs.containerd, "--config", containerdConfig),
	)
	if err != nil {
		return err
	}
	return n.cluster.waitUntil(ctx, n.Name+"'s containerd serves", func(context.Context) error {
		_, err := os.Stat(n.Path(containerdSocket))
		return err
	})
}

// mirrors is the folder of containerd's hosts.toml files.
const mirrors = stateFolder + "/certs.d"

// containerdText is containerd's configuration. The machine that runs the test may not let it make a process less likely to be
// killed.
const containerdText = `version = 3
[grpc]
  address = "` + containerdSocket + `"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "` + pauseImage + `"
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = "` + mirrors + `"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "` + cniFolder + `"
`

// cniText wants the plugin, the networks of the node's pods and their ways out, as lists. With ptp packets between two pods of a node
// pass its rules, as kube-proxy needs. With a bridge they do if the kernel has br_netfilter.
const cniText = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {%s, "ipMasq": false,
   "ipam": {"type": "host-local", "ranges": [%s], "routes": [%s]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
`

// startKubelet starts the kubelet, with the cluster's DNS at its Service, and kube-proxy.
func (n *Node) startKubelet() error {
	err := errors.Join(
		makeCgroup(n.cgroup),
		n.Write(kubeletConfig, fmt.Sprintf(kubeletText, n.cluster.options.dnsService(), n.cgroup)),
		n.Start("kubelet", n.cluster.programs.kube, "kubelet", "--config="+kubeletConfig, "--kubeconfig="+n.cluster.Kubeconfig(),
			"--hostname-override="+n.Name, "--node-ip="+n.cluster.options.families(nodeAddr(n.number).String(), nodeAddr6(n.number).String())),
	)
	if err != nil {
		return err
	}
	return n.Start("kube-proxy", n.cluster.programs.kube, "kube-proxy", "--kubeconfig="+n.cluster.Kubeconfig(),
		"--hostname-override="+n.Name, "--proxy-mode="+n.cluster.options.ProxyMode,
		"--cluster-cidr="+n.cluster.options.families(podNet, podNet6),
		// These are settings of the whole machine.
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
}

// kubeletText wants the address of the DNS and the node's control group. clusterDNS stands as kubeadm writes it.
const kubeletText = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
clusterDNS:
- %s
clusterDomain: cluster.local
resolvConf: /etc/resolv.conf
containerRuntimeEndpoint: unix://` + containerdSocket + `
cgroupDriver: cgroupfs
cgroupRoot: /%s
failCgroupV1: false
enforceNodeAllocatable: []
failSwapOn: false
localStorageCapacityIsolation: false
evictionHard: {memory.available: "10Mi"}
imageGCHighThresholdPercent: 100
protectKernelDefaults: true
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
# As often as a changed ConfigMap is to be seen at the latest; a watch tells sooner.
syncFrequency: 5s
nodeStatusUpdateFrequency: 2s
`

// dnsLines is where the kubelet's configuration names the DNS.
func dnsLines() *regexp.Regexp { return regexp.MustCompile(`(?m)^clusterDNS:\n(- .*\n)+`) }

// SetDNS has the pods that start from now on ask these addresses: it changes the kubelet's configuration and restarts it.
func (n *Node) SetDNS(addrs ...netip.Addr) error {
	text, err := os.ReadFile(n.Path(kubeletConfig))
	if err != nil {
		return fmt.Errorf("%s: reading the kubelet's configuration: %w", n.Name, err)
	}
	var lines strings.Builder
	lines.WriteString("clusterDNS:\n")
	for _, a := range addrs {
		lines.WriteString("- " + a.String() + "\n")
	}
	if err := n.Write(kubeletConfig, dnsLines().ReplaceAllLiteralString(string(text), lines.String())); err != nil {
		return err
	}
	return n.Restart("kubelet")
}

// awaitReady waits until the API server has the node as ready.
func (n *Node) awaitReady(ctx context.Context) error {
	return n.cluster.waitUntil(ctx, n.Name+" is ready", func(ctx context.Context) error {
		node, err := n.cluster.client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return errors.New("not ready")
	})
}

// LoadImage makes an image archive's content known to the node's containers.
func (n *Node) LoadImage(ctx context.Context, archive string) error {
	_, err := n.Output(ctx, "ctr", "images", "import", archive)
	return err
}
