// SPDX-License-Identifier: Apache-2.0

// Command policies applies NetworkPolicies to the pods of a node: kube-router's controller for them, without its others.
package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: policies KUBECONFIG NODE SERVICE-CIDR")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(kubeconfig, node, services string) error {
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	config := options.NewKubeRouterConfig()
	config.HostnameOverride, config.ClusterIPCIDRs, config.EnableIPv4 = node, []string{services}, true
	factory := informers.NewSharedInformerFactory(client, 0)
	pods, policies, namespaces := factory.Core().V1().Pods().Informer(), factory.Networking().V1().NetworkPolicies().Informer(), factory.Core().V1().Namespaces().Informer()
	never := make(chan struct{})
	factory.Start(never)
	factory.WaitForCacheSync(never)
	tables, sets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return err
	}
	controller, err := netpol.NewNetworkPolicyController(client, config, pods, policies, namespaces, new(sync.Mutex), tables, sets)
	if err != nil {
		return err
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods: controller.PodEventHandler, policies: controller.NetworkPolicyEventHandler, namespaces: controller.NamespaceEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	beats := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range beats { // no health server reads them
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	config.IPTablesSyncPeriod = time.Minute
	controller.Run(beats, never, &running)
	return nil
}
