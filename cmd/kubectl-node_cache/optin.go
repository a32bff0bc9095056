// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/pkg/hint"
)

const (
	// optInLabel of a namespace or a pod is "on" or "off". "on": new pods ask the agents.
	optInLabel = "node-cache.io/dns"
	// optInPolicy is the MutatingAdmissionPolicy that acts on the label, in the manifests and in the chart.
	optInPolicy = "node-cache-dns"
)

// An optIn counts the pods of a namespace that is in, or that has pods that are.
type optIn struct {
	Namespace string `json:"namespace"`
	In        int    `json:"in"`        // pods that ask the agents
	Recreate  int    `json:"recreate"`  // pods that are older than the label
	LeftAlone int    `json:"leftAlone"` // pods with the label "off", or that do not use the cluster's DNS
}

// optIns returns the namespaces that are in, or have pods that are, by name. The agents have the addresses. A node limits the pods to its own;
// empty: those of all. It returns none if the user may not list them.
func (c *cluster) optIns(ctx context.Context, addresses []string, node string) ([]*optIn, error) {
	const on = optInLabel + "=on"
	ofNode := ""
	if node != "" {
		ofNode = "spec.nodeName=" + node
	}
	namespaces, err := c.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: on})
	if err != nil {
		return nil, c.optInError(err)
	}
	byName := map[string][]corev1.Pod{}
	for _, ns := range namespaces.Items {
		pods, err := c.client.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{FieldSelector: ofNode})
		if err != nil {
			return nil, c.optInError(err)
		}
		byName[ns.Name] = pods.Items
	}
	pods, err := c.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: on, FieldSelector: ofNode})
	if err != nil {
		return nil, c.optInError(err)
	}
	for _, p := range pods.Items {
		if !slices.ContainsFunc(namespaces.Items, func(ns corev1.Namespace) bool { return ns.Name == p.Namespace }) {
			byName[p.Namespace] = append(byName[p.Namespace], p)
		}
	}
	var list []*optIn
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		in := &optIn{Namespace: name}
		in.add(byName[name], addresses)
		list = append(list, in)
	}
	if len(list) == 0 {
		return nil, nil
	}
	_, err = c.client.AdmissionregistrationV1().MutatingAdmissionPolicies().Get(ctx, optInPolicy, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return list, &hint.Error{
			Err:  fmt.Errorf("namespaces or pods have the label %s=on, and there is no MutatingAdmissionPolicy %s", optInLabel, optInPolicy),
			Hint: "install component opt-in, or remove the label: docs/opt-in.md",
		}
	}
	return list, c.optInError(err)
}

// optInError returns nil if the API server refused the user: the agents' status needs none of this.
func (c *cluster) optInError(err error) error {
	if err == nil || isDenied(err) {
		return nil
	}
	return c.apiError(err)
}

// add counts the pods that have not ended.
func (in *optIn) add(pods []corev1.Pod, addresses []string) {
	for i := range pods {
		p := &pods[i]
		policy, config := p.Spec.DNSPolicy, p.Spec.DNSConfig
		_, static := p.Annotations[corev1.MirrorPodAnnotationKey]
		switch {
		case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		case policy == corev1.DNSNone && config != nil && slices.ContainsFunc(config.Nameservers, func(s string) bool { return slices.Contains(addresses, s) }):
			in.In++
		case p.Labels[optInLabel] == "off", p.Spec.HostNetwork, static, policy == corev1.DNSNone, policy == corev1.DNSDefault,
			p.Spec.OS != nil && p.Spec.OS.Name == corev1.Windows:
			in.LeftAlone++
		default:
			in.Recreate++
		}
	}
}

// optInTable formats the list as a table with a header, empty if it is.
func optInTable(list []*optIn) string {
	if len(list) == 0 {
		return ""
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "\nNAMESPACE\tPODS IN\tTO RECREATE\tLEFT ALONE")
	for _, in := range list {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", cell(in.Namespace), in.In, in.Recreate, in.LeftAlone)
	}
	_ = w.Flush()
	return b.String()
}
