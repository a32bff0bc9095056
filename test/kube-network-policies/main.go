// SPDX-License-Identifier: Apache-2.0

// Command kube-network-policies is the policy engine of that name, without what it needs of a container runtime. It judges pods by
// ClusterNetworkPolicies.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kube-network-policies/pkg/api"
	"sigs.k8s.io/kube-network-policies/pkg/dataplane"
	"sigs.k8s.io/kube-network-policies/pkg/dns"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	"sigs.k8s.io/kube-network-policies/pkg/podinfo"
	npav1alpha2plugin "sigs.k8s.io/kube-network-policies/plugins/npa-v1alpha2"
	npav1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	npaclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"
	npainformers "sigs.k8s.io/network-policy-api/pkg/client/informers/externalversions"
)

// queue is the number of the queue of connections. The next one is that of DNS replies.
const queue = 100

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: kube-network-policies KUBECONFIG NODE")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(kubeconfig string) error {
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
	pods, nodes := factory.Core().V1().Pods(), factory.Core().V1().Nodes()
	resolver, err := podinfo.NewInformerResolver(pods.Informer())
	if err != nil {
		return err
	}
	ctx := context.Background()
	names := dns.NewDomainCache(queue + 1)
	ended := make(chan error)
	go func() { ended <- names.Run(ctx) }()
	engine := networkpolicy.NewPolicyEngine(
		podinfo.NewInformerProvider(pods, factory.Core().V1().Namespaces(), nodes, []podinfo.IPResolver{resolver}),
		[]api.PolicyEvaluator{npav1alpha2plugin.NewClusterNetworkPolicy(npav1alpha2.AdminTier, npa.Policy().V1alpha2().ClusterNetworkPolicies(), names, nodes.Lister())})
	factory.Start(ctx.Done())
	npa.Start(ctx.Done())
	controller, err := dataplane.NewController(engine, dataplane.Config{FailOpen: true, QueueID: queue, NetfilterBug1766Fix: true, StrictMode: true})
	if err != nil {
		return err
	}
	go func() { ended <- controller.Run(ctx) }()
	return <-ended
}
