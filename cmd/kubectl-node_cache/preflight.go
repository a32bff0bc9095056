// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/preflight"
)

const (
	// preflightTimeout bounds the time of all requests of preflight.
	preflightTimeout = 2 * time.Minute
	// askedKubelets bounds the kubelets whose configuration preflight reads.
	askedKubelets = 5
)

func preflightCommand(c *cluster) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "preflight [-o json]",
		Short: "Check a cluster before the installation, and choose the variant",
		Long: `Check a cluster before the installation, and choose the variant, with the commands to
type. It reads objects of the API server and, through it, the configuration of a few
kubelets, and changes nothing. It goes on without what you may not read, and names the
permissions.

Exit code 0: no check failed; 1: one failed, or an error; 2: invalid command line.`,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), preflightTimeout)
			defer cancel()
			facts, err := c.facts(ctx)
			if err != nil {
				return err
			}
			report := preflight.Examine(facts)
			if err := show(cmd, output, report.Text(), report); err != nil {
				return err
			}
			if report.Failed() {
				return cli.ExitError(cli.ExitFailed)
			}
			return nil
		},
	}
	cli.AddOutput(cmd, cmd.Flags(), &output)
	return cmd
}

// facts reads what preflight needs. It fails if the API server cannot be reached.
func (c *cluster) facts(ctx context.Context) (*preflight.Facts, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	server, err := c.client.Discovery().ServerVersion()
	if err != nil {
		return nil, c.apiError(err)
	}
	r := &factReader{c, &preflight.Facts{
		Namespace: c.namespace, Version: server.GitVersion, Unread: map[string]preflight.Unread{},
		Kubelets: map[string]preflight.Kubelet{}, ConfigMaps: map[string]map[string]string{},
	}}
	r.readNodes(ctx)
	r.readSystem(ctx)
	r.readOpenShift(ctx)
	r.readDataPlane(ctx)
	r.readNamespace(ctx)
	r.readPolicies(ctx)
	return r.Facts, ctx.Err()
}

// A factReader reads facts.
type factReader struct {
	cluster *cluster
	*preflight.Facts
}

// missing reports whether a request failed, and notes why unless the object does not exist.
func (r *factReader) missing(permission string, err error) bool {
	if err != nil && !apierrors.IsNotFound(err) {
		r.Unread[permission] = preflight.Unread{Why: err.Error(), Denied: isDenied(err)}
	}
	return err != nil
}

// readNodes reads the nodes, and the configuration of some kubelets, which are spread over the list.
func (r *factReader) readNodes(ctx context.Context) {
	nodes, err := r.cluster.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if r.missing(preflight.ListNodes, err) {
		return
	}
	r.Nodes = nodes.Items
	linux := slices.DeleteFunc(r.Linux(), func(n *corev1.Node) bool { // the API server waits long for a kubelet that is away
		return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
		})
	})
	ctx, cancel := context.WithTimeout(ctx, r.cluster.timeout)
	defer cancel()
	asked := min(askedKubelets, len(linux))
	for i := range asked {
		name := linux[i*len(linux)/asked].Name
		k, err := r.kubelet(ctx, name)
		if err == nil {
			r.Kubelets[name] = k
			continue
		}
		r.Unread[preflight.GetKubeletConfig] = preflight.Unread{Why: "the kubelet of " + name + ": " + cell(err.Error()), Denied: isDenied(err)}
		if isDenied(err) || ctx.Err() != nil {
			break
		}
	}
	if len(r.Kubelets) > 0 { // the report says how many were asked
		delete(r.Unread, preflight.GetKubeletConfig)
	}
}

// kubelet reads the configuration of a kubelet through the API server. The node may be compromised.
func (r *factReader) kubelet(ctx context.Context, node string) (preflight.Kubelet, error) {
	var page struct {
		Config preflight.Kubelet `json:"kubeletconfig"`
	}
	body, err := r.cluster.client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy", "configz").Stream(ctx)
	if err != nil {
		return page.Config, err
	}
	defer func() { _ = body.Close() }()
	text, err := io.ReadAll(io.LimitReader(body, maxReply))
	if err == nil {
		err = cli.ReadJSON(text, &page)
	}
	return page.Config, err
}

// readSystem reads kube-system and the DaemonSets.
func (r *factReader) readSystem(ctx context.Context) {
	const system = metav1.NamespaceSystem
	api := r.cluster.client
	if sets, err := api.AppsV1().DaemonSets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{}); !r.missing(preflight.ListDaemonSets, err) {
		r.DaemonSets = sets.Items
	}
	if pods, err := api.CoreV1().Pods(system).List(ctx, metav1.ListOptions{}); !r.missing(preflight.ListSystemPods, err) {
		r.SystemPods = pods.Items
	}
	if maps, err := api.CoreV1().ConfigMaps(system).List(ctx, metav1.ListOptions{}); !r.missing(preflight.ListConfigMaps, err) {
		for _, m := range maps.Items {
			r.ConfigMaps[m.Namespace+"/"+m.Name] = m.Data
		}
	}
	if services, err := api.CoreV1().Services(system).List(ctx, metav1.ListOptions{}); !r.missing(preflight.ListServices, err) {
		r.Services = services.Items
	}
	if ranges, err := api.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{}); !r.missing(preflight.ListServiceCIDRs, err) {
		for i := range ranges.Items {
			r.ServiceCIDRs = append(r.ServiceCIDRs, ranges.Items[i].Spec.CIDRs...)
		}
	}
	if list, err := api.DiscoveryV1().EndpointSlices(system).List(ctx, metav1.ListOptions{}); !r.missing(preflight.ListSlices, err) {
		r.Slices = list.Items
	}
	if one, err := api.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1}); !r.missing(preflight.CountServices, err) {
		r.ServiceCount = int64(len(one.Items))
		if one.RemainingItemCount != nil {
			r.ServiceCount += *one.RemainingItemCount
		}
	}
}

// readOpenShift reads the DNS Service of OpenShift.
func (r *factReader) readOpenShift(ctx context.Context) {
	const namespace, name = "openshift-dns", "dns-default"
	api := r.cluster.client
	service, err := api.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if r.missing(preflight.ListOpenShift, err) {
		if _, also := r.Unread[preflight.ListServices]; also { // that is reported already, and most clusters are not OpenShift
			delete(r.Unread, preflight.ListOpenShift)
		}
		return
	}
	r.Services = append(r.Services, *service)
	if m, err := api.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{}); !r.missing(preflight.ListOpenShift, err) {
		r.ConfigMaps[namespace+"/"+name] = m.Data
	}
	if list, err := api.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{}); !r.missing(preflight.ListOpenShift, err) {
		r.Slices = append(r.Slices, list.Items...)
	}
}

// readDataPlane reads the settings of Cilium and of Calico.
func (r *factReader) readDataPlane(ctx context.Context) {
	for i := range r.DaemonSets {
		d := &r.DaemonSets[i]
		switch {
		case preflight.IsCilium(d):
			r.readCilium(ctx, d)
		case d.Name == "calico-node":
			r.readFelix(ctx)
		}
	}
}

func (r *factReader) readCilium(ctx context.Context, d *appsv1.DaemonSet) {
	key := d.Namespace + "/cilium-config"
	if r.ConfigMaps[key] != nil {
		return
	}
	m, err := r.cluster.client.CoreV1().ConfigMaps(d.Namespace).Get(ctx, "cilium-config", metav1.GetOptions{})
	if !r.missing(preflight.GetCiliumConfig, err) {
		r.ConfigMaps[key] = m.Data
	}
}

func (r *factReader) readFelix(ctx context.Context) {
	text, err := r.cluster.client.CoreV1().RESTClient().Get().AbsPath("/apis/crd.projectcalico.org/v1/felixconfigurations/default").DoRaw(ctx)
	if r.missing(preflight.GetFelix, err) {
		return
	}
	var felix struct {
		Spec struct {
			BPFEnabled bool `json:"bpfEnabled"`
		} `json:"spec"`
	}
	if !r.missing(preflight.GetFelix, json.Unmarshal(text, &felix)) {
		r.CalicoBPF = felix.Spec.BPFEnabled
	}
}

// readNamespace reads the namespace of the agents.
func (r *factReader) readNamespace(ctx context.Context) {
	api := r.cluster.client.CoreV1()
	if n, err := api.Namespaces().Get(ctx, r.Namespace, metav1.GetOptions{}); !r.missing(preflight.GetNamespace, err) {
		r.AgentNamespace = n
	}
	if quotas, err := api.ResourceQuotas(r.Namespace).List(ctx, metav1.ListOptions{}); !r.missing(preflight.ListQuotas, err) {
		r.Quotas = quotas.Items
	}
	if limits, err := api.LimitRanges(r.Namespace).List(ctx, metav1.ListOptions{}); !r.missing(preflight.ListQuotas, err) {
		r.Limits = limits.Items
	}
}
