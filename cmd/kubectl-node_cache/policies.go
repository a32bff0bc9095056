// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodecache/node-cache/pkg/dnspolicy"
	"github.com/nodecache/node-cache/pkg/preflight"
)

// policyKinds are the policies that are not Kubernetes' own, and what they name, by the folder of the API. A cluster has those of one engine.
// Calico's are in one of two folders: the first that it has is read.
func policyKinds() [][]string {
	calico := []string{"tiers", "networkpolicies", "globalnetworkpolicies", "networksets", "globalnetworksets", "hostendpoints"}
	return [][]string{
		{"/apis/cilium.io/v2", "ciliumnetworkpolicies", "ciliumclusterwidenetworkpolicies"},
		append([]string{"/apis/crd.projectcalico.org/v1"}, calico...),
		append([]string{"/apis/projectcalico.org/v3"}, calico...),
		{"/apis/crd.antrea.io/v1beta1", "networkpolicies", "clusternetworkpolicies"},
		{"/apis/policy.networking.k8s.io/v1alpha1", "adminnetworkpolicies", "baselineadminnetworkpolicies"},
		{"/apis/policy.networking.k8s.io/v1alpha2", "clusternetworkpolicies"},
	}
}

// readPolicies reads all pods and policies. It is all or nothing: a policy that is missing may be one that denies.
func (r *factReader) readPolicies(ctx context.Context) {
	in, api := &dnspolicy.Input{}, r.cluster.client
	pods, err := api.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if r.missing(preflight.ListPolicies, err) {
		return
	}
	namespaces, err := api.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if r.missing(preflight.ListPolicies, err) {
		return
	}
	policies, err := api.NetworkingV1().NetworkPolicies(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if r.missing(preflight.ListPolicies, err) {
		return
	}
	in.Pods, in.Namespaces, in.NetworkPolicies = pods.Items, namespaces.Items, policies.Items
	calico := false
	for _, kinds := range policyKinds() {
		if calico && kinds[0] == "/apis/projectcalico.org/v3" {
			continue // the same objects
		}
		for _, kind := range kinds[1:] {
			found, err := r.list(ctx, kinds[0]+"/"+kind)
			if err != nil && !apierrors.IsNotFound(err) {
				r.missing(preflight.ListPolicies, err)
				return
			}
			calico = calico || err == nil && kinds[0] == "/apis/crd.projectcalico.org/v1"
			in.Others = append(in.Others, found...)
		}
	}
	r.Policies = in
}

// list lists objects of any kind.
func (r *factReader) list(ctx context.Context, path string) ([]unstructured.Unstructured, error) {
	text, err := r.cluster.client.CoreV1().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var list unstructured.UnstructuredList
	if err := list.UnmarshalJSON(text); err != nil {
		return nil, err
	}
	return list.Items, nil
}
