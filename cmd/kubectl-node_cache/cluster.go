// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nodecache/node-cache/pkg/hint"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// agentName is the name of the agents' DaemonSet and of their container, in the manifests and in the chart.
const agentName = "node-cache"

// A cluster is the cluster that the flags name.
type cluster struct {
	kubeconfig, context, namespace string

	timeout time.Duration // longest time for the requests to one node

	config *rest.Config
	client kubernetes.Interface
}

// A node is a node that has an agent.
type node struct {
	name string
	pods []*corev1.Pod // oldest first; two while an agent takes over from another
	err  error         // why the command failed on this node; nil: it did not
}

// open makes the client. The first call reads the kubeconfig.
func (c *cluster) open() error {
	if c.client != nil {
		return nil
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: c.context}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err == nil {
		config.UserAgent = "kubectl-node_cache/" + version
		config.QPS = -1 // no limit of the client's: the API server has its own
		c.config = config
		c.client, err = kubernetes.NewForConfig(config)
	}
	if err != nil {
		return &hint.Error{Err: fmt.Errorf("reading the kubeconfig: %w", err), Hint: "check --kubeconfig, --context and KUBECONFIG"}
	}
	return nil
}

// daemonSet returns the agents' DaemonSet.
func (c *cluster) daemonSet(ctx context.Context) (*appsv1.DaemonSet, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	set, err := c.client.AppsV1().DaemonSets(c.namespace).Get(ctx, agentName, metav1.GetOptions{})
	if err != nil {
		return nil, c.apiError(err)
	}
	return set, nil
}

// nodes returns the nodes that have an agent, by name, and how many more should have one.
func (c *cluster) nodes(ctx context.Context) (list []*node, missing int, err error) {
	set, err := c.daemonSet(ctx)
	if err != nil {
		return nil, 0, err
	}
	selector := metav1.FormatLabelSelector(set.Spec.Selector)
	pods, err := c.client.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, 0, c.apiError(err)
	}
	byName := map[string]*node{}
	for i := range pods.Items {
		p := &pods.Items[i]
		if !metav1.IsControlledBy(p, set) {
			continue
		}
		name := cmp.Or(p.Spec.NodeName, "of pod "+p.Name)
		if byName[name] == nil {
			byName[name] = &node{name: name}
			list = append(list, byName[name])
		}
		byName[name].pods = append(byName[name].pods, p)
	}
	for _, n := range list {
		slices.SortFunc(n.pods, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	}
	slices.SortFunc(list, func(a, b *node) int { return cmp.Compare(a.name, b.name) })
	return list, max(0, int(set.Status.DesiredNumberScheduled)-len(list)), nil
}

// apiError adds a hint to an error of the API server.
func (c *cluster) apiError(err error) error {
	advice := "check that the API server is reachable: `kubectl version`"
	switch {
	case apierrors.IsNotFound(err):
		advice = "set --namespace to that of the agents, and --context to their cluster"
	case isDenied(err):
		advice = "you need to get daemonsets, to list pods, and to get and create pods/exec in the namespace " + c.namespace
	}
	return &hint.Error{Err: fmt.Errorf("asking the API server: %w", err), Hint: advice}
}

// isDenied reports whether the API server refused the user.
func isDenied(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// running returns the pods that run, oldest first.
func (n *node) running() ([]*corev1.Pod, error) {
	pods := slices.DeleteFunc(slices.Clone(n.pods), func(p *corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning })
	if len(pods) == 0 {
		last := n.pods[len(n.pods)-1]
		return nil, fmt.Errorf("pod %s does not run: %s", last.Name, last.Status.Phase)
	}
	return pods, nil
}

// agent returns the pod that answers the node's queries: the newest ready one, or the newest.
func (n *node) agent() (*corev1.Pod, error) {
	pods, err := n.running()
	if err != nil {
		return nil, err
	}
	for _, p := range slices.Backward(pods) {
		if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			return p, nil
		}
	}
	return pods[len(pods)-1], nil
}

// oneNode returns the node of that name.
func (c *cluster) oneNode(ctx context.Context, name string) (*node, error) {
	list, _, err := c.nodes(ctx)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(list, func(n *node) bool { return n.name == name }); i >= 0 {
		return list[i], nil
	}
	return nil, noAgent(name)
}

func noAgent(name string) error {
	return &hint.Error{Err: errors.New("no agent on a node " + name), Hint: "`kubectl node-cache status` lists the nodes"}
}
