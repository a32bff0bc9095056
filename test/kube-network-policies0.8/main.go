// SPDX-License-Identifier: Apache-2.0

// Command kube-network-policies is the policy engine of that name, with a kubeconfig. It is its own command in all else that matters here.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	npaclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"
	npainformers "sigs.k8s.io/network-policy-api/pkg/client/informers/externalversions"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: kube-network-policies KUBECONFIG NODE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(kubeconfig, node string) error {
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	policies, err := npaclient.NewForConfig(rest)
	if err != nil {
		return err
	}
	factory, npa := informers.NewSharedInformerFactory(client, 0), npainformers.NewSharedInformerFactory(policies, 0)
	controller, err := networkpolicy.NewController(client,
		factory.Networking().V1().NetworkPolicies(), factory.Core().V1().Namespaces(), factory.Core().V1().Pods(), factory.Core().V1().Nodes(),
		policies, npa.Policy().V1alpha1().AdminNetworkPolicies(), npa.Policy().V1alpha1().BaselineAdminNetworkPolicies(),
		networkpolicy.Config{AdminNetworkPolicy: true, NodeName: node, NetfilterBug1766Fix: true})
	if err != nil {
		return err
	}
	ctx := context.Background()
	factory.Start(ctx.Done())
	npa.Start(ctx.Done())
	return controller.Run(ctx)
}
