// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"context"
	_ "embed" // CoreDNS's manifest
	"fmt"
	"net"
	"os/exec"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//go:embed coredns.yaml
var corednsManifest string

// Shell is a shell command on the control machine, in folder dir, with kubectl on its PATH as the cluster's admin.
// Variables are added to its environment.
func (c *Cluster) Shell(ctx context.Context, dir, command string, env ...string) *exec.Cmd {
	env = append([]string{"KUBECONFIG=" + c.Kubeconfig()}, env...)
	return c.Control.Command(ctx, env, "env", "--chdir="+dir, "sh", "-c", command)
}

// Kubectl runs kubectl with stdin and returns what it wrote, standard error included.
func (c *Cluster) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := c.Control.Command(ctx, []string{"KUBECONFIG=" + c.Kubeconfig()}, append([]string{"kubectl"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("running kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// corednsReplicas is how many pods coredns.yaml has.
const corednsReplicas = 2

// deployCoreDNS has the cluster's own DNS run, and waits until it answers.
func (c *Cluster) deployCoreDNS(ctx context.Context) error {
	manifest := strings.Replace(corednsManifest, "clusterIP: "+DNSService, `clusterIP: "`+c.options.dnsService()+`"`, 1)
	if _, err := c.Kubectl(ctx, manifest, "apply", "-f", "-"); err != nil {
		return err
	}
	return c.AwaitDNS(ctx)
}

// AwaitDNS waits until all pods of CoreDNS are ready, and kube-proxy on every node leads to them.
func (c *Cluster) AwaitDNS(ctx context.Context) error {
	families := of(c.options, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6)
	return c.waitUntil(ctx, "every node leads to CoreDNS", func(ctx context.Context) error {
		addrs, err := c.endpointsOfDNS(ctx)
		if err != nil {
			return err
		}
		for _, family := range families {
			if len(addrs[family]) != corednsReplicas {
				return fmt.Errorf("%d pods are ready with %s", len(addrs[family]), family)
			}
			if err := c.proxied(ctx, family, addrs[family]); err != nil {
				return err
			}
		}
		return nil
	})
}

// endpointsOfDNS are the addresses of CoreDNS's pods that are ready.
func (c *Cluster) endpointsOfDNS(ctx context.Context) (map[discoveryv1.AddressType][]string, error) {
	list, err := c.client.DiscoveryV1().EndpointSlices("kube-system").List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kube-dns"})
	if err != nil {
		return nil, err
	}
	addrs := map[discoveryv1.AddressType][]string{}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if *e.Conditions.Ready {
				addrs[s.AddressType] = append(addrs[s.AddressType], e.Addresses...)
			}
		}
	}
	return addrs, nil
}

// proxied fails unless kube-proxy knows endpoints of the DNS on every node, all of one family.
func (c *Cluster) proxied(ctx context.Context, family discoveryv1.AddressType, addrs []string) error {
	show := map[string][]string{"iptables": {"iptables-save", "-t", "nat"}, "nftables": {"nft", "list", "table", "ip", "kube-proxy"}}
	if family == discoveryv1.AddressTypeIPv6 {
		show = map[string][]string{"iptables": {"ip6tables-save", "-t", "nat"}, "nftables": {"nft", "list", "table", "ip6", "kube-proxy"}}
	}
	for _, n := range c.Nodes {
		rules, err := n.Output(ctx, show[c.options.ProxyMode]...)
		if err != nil {
			return err
		}
		for _, addr := range addrs {
			at := net.JoinHostPort(addr, "53")
			if !strings.Contains(rules, at) && !strings.Contains(rules, addr+" . 53") {
				return fmt.Errorf("kube-proxy of %s does not know %s", n.Name, addr)
			}
		}
	}
	return nil
}
