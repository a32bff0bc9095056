// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"context"
	_ "embed" // CoreDNS's manifest
	"fmt"
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
	if _, err := c.Kubectl(ctx, corednsManifest, "apply", "-f", "-"); err != nil {
		return err
	}
	return c.AwaitDNS(ctx)
}

// AwaitDNS waits until all pods of CoreDNS are ready, and kube-proxy on every node leads to them.
func (c *Cluster) AwaitDNS(ctx context.Context) error {
	return c.until(ctx, "every node leads to CoreDNS", func(ctx context.Context) error {
		list, err := c.client.DiscoveryV1().EndpointSlices("kube-system").List(ctx,
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kube-dns"})
		if err != nil {
			return err
		}
		var addrs []string
		for _, s := range list.Items {
			for _, e := range s.Endpoints {
				if *e.Conditions.Ready {
					addrs = append(addrs, e.Addresses...)
				}
			}
		}
		if len(addrs) != corednsReplicas {
			return fmt.Errorf("%d pods are ready", len(addrs))
		}
		return c.proxied(ctx, addrs)
	})
}

// proxied fails unless kube-proxy knows endpoints of the DNS on every node.
func (c *Cluster) proxied(ctx context.Context, addrs []string) error {
	show := map[string][]string{"iptables": {"iptables-save", "-t", "nat"}, "nftables": {"nft", "list", "table", "ip", "kube-proxy"}}
	command := show[c.options.ProxyMode]
	if command == nil {
		return nil
	}
	for _, n := range c.Nodes {
		rules, err := n.Output(ctx, command...)
		if err != nil {
			return err
		}
		for _, addr := range addrs {
			if !strings.Contains(rules, addr+":53") && !strings.Contains(rules, addr+" . 53") {
				return fmt.Errorf("kube-proxy of %s does not know %s", n.Name, addr)
			}
		}
	}
	return nil
}
